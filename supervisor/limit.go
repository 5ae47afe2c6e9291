package supervisor

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// wrongBurst wrong tokens are answered as such, then one every wrongEvery.
	wrongBurst = 10
	wrongEvery = 6 * time.Second
	// maxAddresses bounds the table; over it the oldest half is forgotten.
	maxAddresses = 4096
)

// addressLimits limits wrong tokens per address. It never sees a right one.
type addressLimits struct {
	mu    sync.Mutex
	table map[netip.Addr]*addressLimit
}

type addressLimit struct {
	limiter *rate.Limiter
	last    time.Time
}

func newAddressLimits() *addressLimits {
	return &addressLimits{table: map[netip.Addr]*addressLimit{}}
}

// allow counts one wrong token and tells whether it is within the limit.
func (l *addressLimits) allow(from netip.Addr, now time.Time) bool {
	from = callerOf(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.table[from]
	if entry == nil {
		l.makeRoom(now)
		entry = &addressLimit{limiter: rate.NewLimiter(rate.Every(wrongEvery), wrongBurst)}
		l.table[from] = entry
	}
	entry.last = now
	return entry.limiter.AllowN(now, 1)
}

// makeRoom forgets addresses whose allowance is full again, and if that is not
// enough any of them: the table's bound matters more than one stranger.
func (l *addressLimits) makeRoom(now time.Time) {
	if len(l.table) < maxAddresses {
		return
	}
	for from, entry := range l.table {
		if now.Sub(entry.last) > wrongBurst*wrongEvery {
			delete(l.table, from)
		}
	}
	for from := range l.table {
		if len(l.table) < maxAddresses {
			return
		}
		delete(l.table, from)
	}
}
