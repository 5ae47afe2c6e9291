package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

const (
	// pingEvery keeps init's dead-man switch open: six pings fit into its 30 s,
	// so that a busy host doesn't end jobs.
	pingEvery = 5 * time.Second
	// cancelGrace is how long init may take to report a command that was
	// cancelled; after that it is not trusted to report anything. On a busy host
	// an honest one needs its patience with those that it kills.
	cancelGrace = initwire.EndPatience + 5*time.Second
	// helloGrace is how long init may take to speak first.
	helloGrace = 30 * time.Second
)

// Session speaks with the init of one sandbox, over the pipes that are its
// standard input and output. It is the only thing that can start something in
// there, and closing it ends everything in there. Run may be called again after
// it returned, not meanwhile; Close at any time.
type Session struct {
	out      *initwire.Writer
	stdin    io.WriteCloser
	stdout   io.ReadCloser
	limits   policies.Limits
	counters func(context.Context) (sandbox.Counters, error)

	frames chan initwire.Frame // closed after the last frame
	taken  chan struct{}       // the receiver is done with the payload
	stop   chan struct{}       // closed by Close
	once   sync.Once           // closes stop
	loops  sync.WaitGroup      // read and ping
	// guest says that the sandbox has a kernel of its own, so that what init
	// counts of it counts against the sandbox's limits.
	guest atomic.Bool

	mu     sync.Mutex // guards what follows
	busy   bool
	number uint32           // of the last command
	before sandbox.Counters // after the last command
}

// NewSession waits for the first frame of an init that was just started and
// returns what init read about itself, for the caller to compare with what it
// had asked for. Both pipes must allow Close while another goroutine reads or
// writes, as those of os.Pipe do; they belong to the Session from here on, also
// when it fails (KindStart). counters is asked after each command.
func NewSession(ctx context.Context, stdin io.WriteCloser, stdout io.ReadCloser, limits policies.Limits,
	counters func(context.Context) (sandbox.Counters, error),
) (*Session, Ready, error) {
	s := &Session{
		out: initwire.NewWriter(stdin), stdin: stdin, stdout: stdout, limits: limits, counters: counters,
		frames: make(chan initwire.Frame), taken: make(chan struct{}), stop: make(chan struct{}),
	}
	s.loops.Go(s.read)
	s.loops.Go(s.ping)
	ready, err := s.hello(ctx)
	if err != nil {
		_ = s.Close() // the first error says more
		return nil, Ready{}, &sandbox.Error{Kind: sandbox.KindStart, Op: "waiting for init", Err: err}
	}
	return s, ready, nil
}

// Close closes the pipes, the dead-man switch: init and with it every process
// of the sandbox ends at once. It doesn't wait for that end. A second call does
// nothing.
func (s *Session) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		err = errors.Join(s.stdin.Close(), s.stdout.Close())
	})
	s.loops.Wait()
	return err
}

// read hands each frame to whoever waits for one, and waits until it was used:
// a caller that is slow to take output slows down the job, and no memory grows.
func (s *Session) read() {
	defer close(s.frames)
	r := initwire.NewReader(s.stdout)
	for {
		f, err := r.Next()
		if err != nil {
			return
		}
		select {
		case s.frames <- f:
		case <-s.stop:
			return
		}
		select {
		case <-s.taken:
		case <-s.stop:
			return
		}
	}
}

// ping tells init that somebody still wants the sandbox. A write error needs no
// word here: the reader sees the end of the other pipe.
func (s *Session) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = s.out.Write(initwire.Ping, 0, nil)
		case <-s.stop:
			return
		}
	}
}

func (s *Session) hello(ctx context.Context) (Ready, error) {
	late := time.NewTimer(helloGrace)
	defer late.Stop()
	select {
	case f, ok := <-s.frames:
		if !ok {
			return Ready{}, io.ErrUnexpectedEOF
		}
		defer s.release()
		return parseHello(f)
	case <-late.C:
		return Ready{}, fmt.Errorf("no word from init for %s", helloGrace)
	case <-ctx.Done():
		return Ready{}, ctx.Err()
	}
}

// release gives the payload of the last frame back to the reader.
func (s *Session) release() {
	select {
	case s.taken <- struct{}{}:
	case <-s.stop:
	}
}

// begin books the sandbox for one command and numbers it.
func (s *Session) begin() (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return 0, &sandbox.Error{Kind: sandbox.KindBusy, Op: "starting command"}
	}
	s.busy = true
	s.number++
	return s.number, nil
}

func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
}

// closed reports whether Close was called.
func (s *Session) closed() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}
