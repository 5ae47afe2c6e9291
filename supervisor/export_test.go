package supervisor

import (
	"net"
	"net/http"
	"net/netip"
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

// WrongTokens counts n wrong tokens from as many addresses and returns how many
// addresses are remembered.
func WrongTokens(n int) int {
	limits := newAddressLimits()
	for i := range n {
		from := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		limits.allow(from, time.Unix(int64(i), 0))
	}
	return len(limits.table)
}

// LimitCallers is the public listener's limit.
func LimitCallers(l net.Listener, proxied bool) net.Listener { return limitCallers(l, proxied) }
