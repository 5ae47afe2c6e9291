package supervisor

import (
	"net/http"
	"time"
)

// Hurry makes a supervisor beat every few milliseconds, for tests over real
// HTTP; the true pauses are tested under testing/synctest.
func Hurry(s *Supervisor) {
	s.heart.interval = 20 * time.Millisecond
	s.heart.afterClaim, s.heart.untilFirst = time.Millisecond, 20*time.Millisecond
}

// Reach makes a supervisor call the control plane without a network.
func Reach(s *Supervisor, transport http.RoundTripper) { s.transport = transport }
