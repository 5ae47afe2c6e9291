package runner

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// execution is one command. Its fields belong to the goroutine of Run, those below
// mu to whoever holds it.
type execution struct {
	s       *Session
	number  uint32
	cmd     sandbox.Command
	limit   int64 // of output, in bytes
	output  int64 // read so far
	started time.Time
	input   *window
	overdue chan struct{} // closed when a cancelled command wasn't reported in time

	mu      sync.Mutex
	why     sandbox.Limit  // the limit for which it was cancelled
	failure *sandbox.Error // of the caller's reader or writers
	grace   *time.Timer    // closes overdue; nil until cancelled
}

// Run runs one command; see sandbox.Sandbox. The writers are called on the
// goroutine of the caller and never after Run returned; one that blocks holds
// up the command, but not its cancellation at the deadline. A Read of Stdin
// that is going on when the command ends is left alone, since nothing can
// interrupt it: what it returns is dropped.
func (s *Session) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	wire, err := encode(&cmd)
	if err != nil {
		return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "running command", Err: err}
	}
	number, err := s.begin()
	if err != nil {
		return sandbox.Exit{}, err
	}
	defer s.end()
	r := &execution{
		s: s, number: number, cmd: cmd, limit: s.outputLimit(cmd.OutputBytes), started: time.Now(),
		input: newWindow(initwire.StdinWindow), overdue: make(chan struct{}),
	}
	defer r.rest()
	// Both end a write that an init which doesn't read would block for ever.
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if cmd.Timeout > 0 {
		deadline := time.AfterFunc(cmd.Timeout, func() { r.cancel(sandbox.LimitTimeout) })
		defer deadline.Stop()
	}
	s.start(number, wire)
	if cmd.Stdin != nil {
		go r.feed(cmd.Stdin) // left to itself while it waits in Read; see above
	}
	return r.follow(ctx)
}

// encode fills in the defaults of the contract and checks the command, so that
// what init refuses was refused here with a sentence.
func encode(cmd *sandbox.Command) ([]byte, error) {
	if cmd.Dir == "" {
		cmd.Dir = sandbox.Workspace
	}
	if cmd.Env == nil {
		cmd.Env = sandbox.DefaultEnv()
	}
	c := initwire.Command{Dir: cmd.Dir, Argv: cmd.Argv, Env: cmd.Env}
	if cmd.Stderr == nil {
		c.Flags |= initwire.Merged
	}
	if cmd.Alone {
		c.Flags |= initwire.Alone
	}
	if cmd.Stdin == nil {
		c.Flags |= initwire.NoStdin
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	wire := c.Encode()
	if len(wire) > initwire.MaxCommand {
		return nil, errors.New("command and environment are larger than 1 MiB")
	}
	return wire, nil
}

// start sends the command. Errors need no word: the reader sees the end of the
// other pipe.
func (s *Session) start(number uint32, wire []byte) {
	for len(wire) > initwire.MaxPayload {
		_ = s.out.Write(initwire.Part, number, wire[:initwire.MaxPayload])
		wire = wire[initwire.MaxPayload:]
	}
	_ = s.out.Write(initwire.Start, number, wire)
}

// outputLimit is the smaller of the command's and the sandbox's limit, where 0
// sets none.
func (s *Session) outputLimit(asked int64) int64 {
	limit := s.limits.OutputReadBytes
	if limit <= 0 {
		limit = math.MaxInt64
	}
	if asked > 0 {
		limit = min(limit, asked)
	}
	return limit
}

// follow takes frames until the command is over. A context that ends takes the
// sandbox with it.
func (r *execution) follow(ctx context.Context) (sandbox.Exit, error) {
	for {
		select {
		case f, ok := <-r.s.frames:
			if !ok {
				return r.lost(ctx)
			}
			exit, done, err := r.take(f)
			r.s.release()
			if err != nil {
				_ = r.s.Close()
				return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindCrashed, Op: "reading frame", Err: err}
			}
			if failure := r.failed(); done && failure != nil {
				return sandbox.Exit{}, failure
			}
			if done {
				return r.finished(ctx, exit)
			}
		case <-ctx.Done():
			_ = r.s.Close()
			return sandbox.Exit{}, ctx.Err()
		}
	}
}

// take handles one frame; done says that it was the command's last.
func (r *execution) take(f initwire.Frame) (exit initwire.Exit, done bool, err error) {
	if f.Command != r.number {
		return exit, false, initwire.ErrFrame
	}
	switch f.Type {
	case initwire.Stdout:
		r.write(r.cmd.Stdout, f.Payload)
	case initwire.Stderr:
		r.write(r.cmd.Stderr, f.Payload)
	case initwire.Credit:
		var n uint32
		n, err = initwire.DecodeUint32(f.Payload)
		r.input.give(int(min(n, initwire.StdinWindow)))
	case initwire.StdinClosed:
		r.input.close()
	case initwire.Exited:
		exit, err = initwire.DecodeExit(f.Payload)
		return exit, true, err
	default:
		err = initwire.ErrFrame
	}
	return exit, false, err
}

// write passes output on up to the limit and drops the rest, so that init can
// go on to report a cancelled command.
func (r *execution) write(w io.Writer, p []byte) {
	keep := min(int64(len(p)), max(r.limit-r.output, 0))
	r.output += int64(len(p))
	if keep > 0 && w != nil && r.failed() == nil {
		if _, err := w.Write(p[:keep]); err != nil {
			r.fail("writing output", err)
		}
	}
	if r.output > r.limit {
		r.cancel(sandbox.LimitOutput)
	}
}

// feed copies input inside the window that init grants.
func (r *execution) feed(stdin io.Reader) {
	buf := make([]byte, initwire.MaxPayload)
	for {
		room := r.input.take(len(buf))
		if room == 0 {
			return
		}
		n, err := stdin.Read(buf[:room])
		r.input.give(room - n)
		if r.input.isClosed() {
			return
		}
		if n > 0 && r.s.out.Write(initwire.Stdin, r.number, buf[:n]) != nil {
			return
		}
		if err != nil {
			// A command must not take half an input for the whole of it.
			if !errors.Is(err, io.EOF) {
				r.fail("reading standard input", err)
				return
			}
			_ = r.s.out.Write(initwire.StdinEnd, r.number, nil)
			return
		}
	}
}

// fail keeps the first error of the caller's own reader or writers and ends the
// command.
func (r *execution) fail(op string, err error) {
	r.mu.Lock()
	if r.failure == nil {
		r.failure = &sandbox.Error{Kind: sandbox.KindRefused, Op: op, Err: err}
	}
	r.mu.Unlock()
	r.cancel("")
}

func (r *execution) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		return nil // not a nil *Error in an interface
	}
	return r.failure
}

// cancel has every process inside killed; the first reason counts. It may be
// called by the deadline's goroutine.
func (r *execution) cancel(why sandbox.Limit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.grace != nil {
		return
	}
	r.why = why
	r.grace = time.AfterFunc(cancelGrace, func() {
		close(r.overdue)
		_ = r.s.Close() // ends everything inside, if anything still listens
	})
	// Not on this goroutine: it may hold up Run's, and Close ends the write.
	go func() { _ = r.s.out.Write(initwire.Cancel, r.number, nil) }()
}

func (r *execution) reason() sandbox.Limit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// rest stops what belongs to the command alone.
func (r *execution) rest() {
	r.input.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.grace != nil {
		r.grace.Stop()
	}
}

// window counts the input that may be sent.
type window struct {
	mu     sync.Mutex // guards what follows
	room   int
	closed bool
	change *sync.Cond
}

func newWindow(room int) *window {
	w := &window{room: room}
	w.change = sync.NewCond(&w.mu)
	return w
}

// take waits for room and takes at most most bytes of it; 0 means closed.
func (w *window) take(most int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.room == 0 && !w.closed {
		w.change.Wait()
	}
	if w.closed {
		return 0
	}
	n := min(w.room, most)
	w.room -= n
	return n
}

func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	w.change.Broadcast()
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.change.Broadcast()
}

func (w *window) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}
