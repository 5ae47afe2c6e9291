package supervisor

import "time"

// repeatEvery is how often a failure that repeats itself is logged.
const repeatEvery = 5 * time.Minute

// repeats decides when a failure that repeats itself is worth a line: the first
// time, then every five minutes with its count, then the recovery. One goroutine
// owns it.
type repeats struct {
	count int
	said  time.Time
}

// failed counts a failure and tells whether to log it now.
func (r *repeats) failed(now time.Time) bool {
	r.count++
	if r.count > 1 && now.Sub(r.said) < repeatEvery {
		return false
	}
	r.said = now
	return true
}

// recovered forgets the failures and returns how many there were.
func (r *repeats) recovered() int {
	n := r.count
	*r = repeats{}
	return n
}
