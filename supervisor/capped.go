package supervisor

import (
	"net"
	"sync"
)

const (
	maxPublicConnections = 256
	maxAdminConnections  = 32
)

// capped closes connections over its limit at once, so that strangers can't use
// up the descriptors that beats need.
type capped struct {
	net.Listener
	slots chan struct{}
}

// LimitStrangers is a listener that holds as many connections at once as the
// public one may; more are closed at once.
func LimitStrangers(l net.Listener) net.Listener { return limitConnections(l, maxPublicConnections) }

func limitConnections(l net.Listener, most int) net.Listener {
	return &capped{l, make(chan struct{}, most)}
}

// Accept returns the next connection that is within the limit.
func (c *capped) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case c.slots <- struct{}{}:
			return &slotted{Conn: conn, free: func() { <-c.slots }}, nil
		default:
			_ = conn.Close()
		}
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
