package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/client"
)

// engine is a Docker Engine behind its socket. It may be restarted, replaced or
// gone at any time; every call has its own deadline, and every answer its end.
// Methods may run at once.
type engine struct {
	socket string

	mu      sync.Mutex     // guards what follows
	current *client.Client // speaks the version that was agreed with the engine
	api     string         // the engine's own when it was; empty: not yet
}

// newEngine makes the client. Nothing of our environment decides where it goes or
// what it speaks.
func newEngine(socket string) (*engine, error) {
	e := &engine{socket: socket}
	var err error
	e.current, err = e.newClient()
	return e, err
}

func (e *engine) newClient() (*client.Client, error) {
	c, err := client.NewClientWithOpts(client.WithHost("unix://"+e.socket),
		client.WithDialContext(e.dial), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("making the engine's client: %w", err)
	}
	return c, nil
}

func (e *engine) client() *client.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current
}

func (e *engine) close() { _ = e.client().Close() }

// apiVersion becomes a part of every address that is asked for.
var apiVersion = regexp.MustCompile(`^[0-9]{1,4}\.[0-9]{1,4}$`)

// meet agrees on a version with the engine that has just answered. The client does
// so once in its life, and an engine that was replaced, by an older or a newer one,
// would refuse every call in the version of its predecessor.
func (e *engine) meet(answer types.Ping) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answer.APIVersion == e.api || !apiVersion.MatchString(answer.APIVersion) {
		return nil
	}
	c, err := e.newClient()
	if err != nil {
		return err
	}
	c.NegotiateAPIVersionPing(answer)
	_ = e.current.Close() // idle connections only: calls that go on end well
	e.current, e.api = c, answer.APIVersion
	return nil
}

// answerBytes is the most that an engine may say to one request: more than a
// thousand containers. The client keeps whatever comes in memory.
const answerBytes = 4 << 20

// errTooLong is in the chain when an answer has no end.
var errTooLong = errors.New("the engine's answer is too long")

// line is a connection to the engine that ends with an answer that is too long.
// One that became a container's streams has no such end.
type line struct {
	*net.UnixConn
	left    atomic.Int64 // bytes that the answer may still have
	endless atomic.Bool
}

// Write begins a request, or goes on with one.
func (l *line) Write(b []byte) (int, error) {
	l.left.Store(answerBytes)
	return l.UnixConn.Write(b)
}

// Read reads what the answer may still have.
func (l *line) Read(b []byte) (int, error) {
	if l.endless.Load() {
		return l.UnixConn.Read(b)
	}
	left := l.left.Load()
	if left <= 0 {
		return 0, errTooLong
	}
	n, err := l.UnixConn.Read(b[:min(int64(len(b)), left)])
	l.left.Add(-int64(n))
	return n, err
}

// guard ties a connection to a context while the client doesn't: attaching
// ignores its context once it waits for an answer.
type guard struct {
	line    *line
	release func() bool
}

type guardKey struct{}

// let unties it, once the connection is a container's streams. It reports whether
// that was in time.
func (g *guard) let() bool {
	if g.line == nil {
		return true
	}
	g.line.endless.Store(true)
	return g.release()
}

// dial opens the socket, and closes the connection of a guarded call when that
// call's context ends.
func (e *engine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
	if err != nil {
		return nil, err
	}
	l := &line{UnixConn: conn.(*net.UnixConn)}
	l.left.Store(answerBytes)
	if g, found := ctx.Value(guardKey{}).(*guard); found {
		g.line, g.release = l, context.AfterFunc(ctx, func() { _ = l.Close() })
	}
	return l, nil
}

// callError is a call that failed. What the engine says of it may be a megabyte of
// anything, and ends up in logs.
type callError struct {
	op  string
	err error
}

func failed(op string, err error) error { return &callError{op, err} }

// Error tells the operation, and the beginning of the reason in one line.
func (e *callError) Error() string { return e.op + ": " + oneLine(e.err.Error(), 400) }

// Unwrap returns the reason.
func (e *callError) Unwrap() error { return e.err }

// oneLine keeps the beginning of a text, without what a terminal would obey.
func oneLine(text string, most int) string {
	text = strings.ToValidUTF8(text[:min(len(text), most)], "")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
