package supervisor

import (
	"log/slog"
	"math"
	"sync/atomic"
	"time"
)

// warnOffset is how far the clocks may be apart before somebody should know.
const warnOffset = 5 * time.Second

// clock knows how far the control plane's clock is from ours, so that a lease's
// end, which it names in its own time, is kept by our monotonic clock (attack
// case G16).
type clock struct {
	offset atomic.Int64 // nanoseconds, theirs minus ours; noOffset: unknown
	warned atomic.Bool
	log    *slog.Logger
}

const noOffset = math.MinInt64

func newClock(log *slog.Logger) *clock {
	c := &clock{log: log}
	c.offset.Store(noOffset)
	return c
}

// measured notes an offset that an answer showed.
func (c *clock) measured(offset time.Duration) {
	c.offset.Store(int64(offset))
	far := offset.Abs() > warnOffset
	if far != c.warned.Swap(far) && far {
		c.log.Warn("the control plane's clock and ours differ: check this host's time", "offset", offset.String())
	}
}

// knows tells whether an answer has shown the offset.
func (c *clock) knows() bool { return c.offset.Load() != noOffset }

// known is the offset, 0 while there is none.
func (c *clock) known() time.Duration {
	if n := c.offset.Load(); n != noOffset {
		return time.Duration(n)
	}
	return 0
}

// local turns a time of theirs into one of ours with a monotonic reading, so
// that a later step of our clock moves nothing.
func (c *clock) local(theirs time.Time) time.Time {
	now := time.Now()
	return now.Add(theirs.Sub(now.Add(c.known()).Round(0)))
}
