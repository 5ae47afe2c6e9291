package supervisor

import (
	"net"
	"net/netip"
	"sync"
)

const (
	maxPublicConnections = 256
	maxAdminConnections  = 32
	// maxCallerConnections is what one caller may hold of the public ones: the
	// control plane needs one, and a stranger who takes all would keep it out.
	maxCallerConnections = 16
)

// capped closes connections over its limits at once, so that strangers can't use
// up the descriptors that beats need, nor one of them those of all others.
type capped struct {
	net.Listener
	slots chan struct{}
	// each bounds one caller; 0: only all are bounded.
	each int
	// proxied says that near peers are a proxy, which brings many callers.
	proxied bool

	mu   sync.Mutex
	held map[netip.Addr]int
}

// LimitStrangers is a listener that holds as many connections at once as the
// public one may, of all and of each address; more are closed at once.
func LimitStrangers(l net.Listener) net.Listener { return limitCallers(l, false) }

// limitCallers is for the public listener; proxied says that TLS ends before it.
func limitCallers(l net.Listener, proxied bool) net.Listener {
	return &capped{
		Listener: l, slots: make(chan struct{}, maxPublicConnections), each: maxCallerConnections, proxied: proxied,
		held: map[netip.Addr]int{},
	}
}

func limitConnections(l net.Listener, most int) net.Listener {
	return &capped{Listener: l, slots: make(chan struct{}, most)}
}

// Accept returns the next connection that is within the limits.
func (c *capped) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if free := c.take(conn); free != nil {
			return &slotted{Conn: conn, free: free}, nil
		}
		_ = conn.Close()
	}
}

// take books a connection and returns what frees it again, or nil.
func (c *capped) take(conn net.Conn) (free func()) {
	leave := c.enter(peerOf(conn.RemoteAddr().String()))
	if leave == nil {
		return nil
	}
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots; leave() }
	default:
		leave()
		return nil
	}
}

// enter counts a caller's connection, or returns nil if there are enough.
func (c *capped) enter(peer netip.Addr) (leave func()) {
	if c.each == 0 || !peer.IsValid() || c.proxied && isNear(peer) {
		return func() {}
	}
	peer = callerOf(peer)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[peer] >= c.each {
		return nil
	}
	c.held[peer]++
	return func() { c.leave(peer) }
}

func (c *capped) leave(peer netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[peer]--; c.held[peer] == 0 {
		delete(c.held, peer)
	}
}

// slotted gives its slot back when it is closed.
type slotted struct {
	net.Conn
	once sync.Once
	free func()
}

// Close closes the connection; a second call frees nothing more.
func (s *slotted) Close() error {
	s.once.Do(s.free)
	return s.Conn.Close()
}

// peerOf reads the address of host:port; the zero address if there is none.
func peerOf(hostport string) netip.Addr {
	host, _, _ := net.SplitHostPort(hostport)
	peer, _ := netip.ParseAddr(host)
	return peer.Unmap()
}

// isNear tells whether a peer may be the owner's own proxy.
func isNear(peer netip.Addr) bool { return peer.IsLoopback() || peer.IsPrivate() }

// callerOf is what counts as one caller: a host has a whole /64 of IPv6 addresses.
func callerOf(from netip.Addr) netip.Addr {
	if from.Is6() {
		if prefix, err := from.WithZone("").Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return from
}
