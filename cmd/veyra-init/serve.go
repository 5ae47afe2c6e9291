package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// maxSilence is how long init lives without a frame. A ping may shorten it.
const maxSilence = 30 * time.Second

// warmed is how many threads exist from the start: frames in, frames out, the
// network poller, waiting for children, looking at the disk, forker, maker and two
// that run; and two more, since on a busy host any call into the kernel that takes
// long makes the runtime want one. A thread that can't be made would end init.
const warmed = 11

// server is one life of init.
type server struct {
	out   *initwire.Writer
	procs *processes
	maker *thread // effective uid 1000
	tasks tasks

	// What follows belongs to the goroutine that reads frames.
	silence  time.Duration
	watchdog *time.Timer
	parts    []byte
	last     uint32 // number of the last command

	// bufs hold output on its way, one for each stream of the one command.
	bufs map[initwire.Type][]byte

	mu      sync.Mutex // guards current
	current *command   // nil while none runs
}

// serve tells what init measured of itself, then obeys frames until the pipe
// closes. Its return is the end of everything in the sandbox.
func serve(in io.Reader, out io.Writer) error {
	s, err := newServer(out)
	if err != nil {
		return err
	}
	hello, err := s.hello()
	if err != nil {
		return err
	}
	if err := s.out.Write(initwire.HelloFrame, 0, hello.Encode()); err != nil {
		return fmt.Errorf("writing first frame: %w", err)
	}
	// A timer of its own, since the reader below waits in the kernel. A stopped
	// supervisor is silent, too: nothing runs on that nobody watches.
	s.watchdog = time.AfterFunc(s.silence, func() { lastWords(errors.New("no frame came in time")) })
	for frames := initwire.NewReader(in); ; {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return nil // closed on purpose, or its holder is dead
		}
		if err != nil {
			return fmt.Errorf("reading frame: %w", err)
		}
		s.watchdog.Reset(s.silence)
		if err := s.take(f); err != nil {
			return err
		}
	}
}

// newServer makes itself unreadable first, then the threads.
func newServer(out io.Writer) (*server, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming not dumpable: %w", err)
	}
	// Whatever the OCI runtime left open must not reach a command (case A04).
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		if err := closeOnExecAll(); err != nil {
			return nil, err
		}
	}
	unix.Umask(0o022)                                 // the runtime's may be anything; what jobs build must not depend on it
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 2)) // init forwards bytes; each thread counts against pids
	warmThreads(warmed)
	maker, err := newThread(becomeMaker)
	if err != nil {
		return nil, err
	}
	procs, err := newProcesses()
	if err != nil {
		return nil, err
	}
	bufs := map[initwire.Type][]byte{
		initwire.Stdout: make([]byte, initwire.MaxPayload), initwire.Stderr: make([]byte, initwire.MaxPayload),
	}
	return &server{
		out: initwire.NewWriter(out), procs: procs, maker: maker, tasks: countTasks(), bufs: bufs, silence: maxSilence,
	}, nil
}

// closeOnExecAll is for kernels whose close_range knows no flag (before 5.11)
// and for gVisor.
func closeOnExecAll() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing descriptors: %w", err)
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// hello reads what the kernel says of this process and of the forker.
func (s *server) hello() (h initwire.Hello, err error) {
	read := func(path string) string {
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		return string(text)
	}
	h = initwire.Hello{
		Status: read("/proc/self/status"), UIDMap: read("/proc/self/uid_map"),
		GIDMap: read("/proc/self/gid_map"), MountInfo: read("/proc/self/mountinfo"),
	}
	s.procs.forker.do(func() { h.Forker = read("/proc/thread-self/status") })
	dumpable, callErr := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	h.Dumpable = uint32(dumpable)
	return h, errors.Join(err, callErr, hardLimits(&h))
}

// hardLimits asks for what binds init and all that it starts.
func hardLimits(h *initwire.Hello) error {
	for _, l := range []struct {
		which int
		to    *uint64
	}{{unix.RLIMIT_NOFILE, &h.Files}, {unix.RLIMIT_CORE, &h.Core}, {unix.RLIMIT_NPROC, &h.Procs}} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(l.which, &limit); err != nil {
			return fmt.Errorf("reading a limit: %w", err)
		}
		*l.to = limit.Max
	}
	return nil
}

// take obeys one frame and never blocks on a command: only so can the next
// ping or cancel be read. An error is a broken rule.
func (s *server) take(f initwire.Frame) error {
	switch f.Type {
	case initwire.Ping:
		return s.ping(f.Payload)
	case initwire.Part, initwire.Start:
		if len(s.parts)+len(f.Payload) > initwire.MaxCommand {
			return fmt.Errorf("command is too long: %w", initwire.ErrFrame)
		}
		// A long command line comes in pieces; MaxCommand bounds what is held.
		s.parts = append(s.parts, f.Payload...)
		if f.Type == initwire.Part {
			return nil
		}
		return s.start(f.Command)
	case initwire.Stdin, initwire.StdinEnd, initwire.Cancel:
		return s.steer(f)
	}
	return fmt.Errorf("frame of type %d: %w", f.Type, initwire.ErrFrame)
}

func (s *server) ping(payload []byte) error {
	if len(payload) == 0 {
		return nil
	}
	ms, err := initwire.DecodeUint32(payload)
	if err != nil {
		return err
	}
	s.silence = min(s.silence, time.Duration(ms)*time.Millisecond)
	s.watchdog.Reset(s.silence)
	return nil
}

// start begins the command whose parts have arrived.
func (s *server) start(number uint32) error {
	spec, err := initwire.DecodeCommand(s.parts)
	s.parts = nil
	if err == nil {
		err = spec.Check()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil || number <= s.last {
		return fmt.Errorf("command %d is out of turn: %w", number, initwire.ErrFrame)
	}
	// Numbers only grow: a late frame for an old command is told from one for
	// a command that never was.
	c := newCommand(s, number, spec)
	s.current, s.last = c, number
	go func() {
		exit := c.run()
		s.mu.Lock()
		s.current = nil // before the last frame: the next Start may follow at once
		s.mu.Unlock()
		_ = s.out.Write(initwire.Exited, number, exit.Encode())
	}()
	return nil
}

// steer passes a frame to the running command. One for a command that is over
// crossed its last frame on the way and means nothing any more.
func (s *server) steer(f initwire.Frame) error {
	s.mu.Lock()
	c := s.current
	s.mu.Unlock()
	if f.Command > s.last {
		return fmt.Errorf("frame for command %d: %w", f.Command, initwire.ErrFrame)
	}
	if c == nil || c.number != f.Command {
		return nil
	}
	switch f.Type {
	case initwire.Stdin:
		return c.input.put(f.Payload)
	case initwire.StdinEnd:
		c.input.finish()
	case initwire.Cancel:
		c.cancel()
	}
	return nil
}
