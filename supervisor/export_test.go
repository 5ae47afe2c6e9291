package supervisor

import "time"

// Hurry makes a supervisor beat every few milliseconds, for tests over real
// HTTP; the true pauses are tested under testing/synctest.
func Hurry(s *Supervisor) {
	s.heart.interval = 20 * time.Millisecond
	s.heart.afterClaim, s.heart.untilFirst = time.Millisecond, 20*time.Millisecond
}
