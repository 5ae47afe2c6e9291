package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// pipes are the ends of one command's three streams.
type pipes struct {
	theirs [3]uintptr // the command's 0, 1, 2; 1 and 2 are equal when merged
	input  *os.File   // nil when the command gets no input
	ours   map[initwire.Type]*os.File
	shut   bool // theirs are closed
}

// openPipes makes new pipes for each command, so that what an earlier one left
// behind holds none of them. They belong to uid 1000: a job opens /dev/stderr,
// which asks for the rights of the pipe.
func (c *command) openPipes() (*pipes, error) {
	p := &pipes{ours: map[initwire.Type]*os.File{}}
	var err error
	c.s.maker.do(func() { err = p.open(c.spec.Flags) })
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pipes) open(flags uint32) (err error) {
	for i := range p.theirs {
		p.theirs[i] = ^uintptr(0)
	}
	if err := p.openInput(flags); err != nil {
		return err
	}
	p.ours[initwire.Stdout], p.theirs[1], err = outputPipe()
	if err != nil {
		return err
	}
	if flags&initwire.Merged != 0 {
		p.theirs[2] = p.theirs[1]
		return nil
	}
	p.ours[initwire.Stderr], p.theirs[2], err = outputPipe()
	return err
}

func (p *pipes) openInput(flags uint32) error {
	if flags&initwire.NoStdin != 0 {
		// An image's /dev is the runtime's and has it; if not, an input that
		// ends at once does as well.
		if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			p.theirs[0] = uintptr(fd)
			return nil
		}
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("making pipe: %w", err)
	}
	p.theirs[0] = uintptr(ends[0])
	p.input = pollable(ends[1])
	return nil
}

func outputPipe() (ours *os.File, theirs uintptr, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, ^uintptr(0), fmt.Errorf("making pipe: %w", err)
	}
	return pollable(ends[0]), uintptr(ends[1]), nil
}

// pollable makes init's own end non-blocking (the command's end has its own
// flags), so that a waiting pump costs no thread.
func pollable(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "pipe")
}

// closeTheirs leaves the command's ends to the command.
func (p *pipes) closeTheirs() {
	if p.shut {
		return
	}
	p.shut = true
	for i, fd := range p.theirs {
		// Merged streams share one descriptor, to be closed once.
		if fd != ^uintptr(0) && (i < 2 || fd != p.theirs[1]) {
			_ = unix.Close(int(fd))
		}
	}
}

// close ends the streams: whoever still holds one gets EPIPE.
func (p *pipes) close() {
	p.closeTheirs()
	if p.input != nil {
		_ = p.input.Close()
	}
	for _, file := range p.ours {
		if file != nil {
			_ = file.Close()
		}
	}
}

// input is what arrived for a command's standard input and was not taken yet,
// at most the window. The goroutine that reads frames never waits in it.
type input struct {
	mu     sync.Mutex // guards what follows
	change *sync.Cond
	queue  [][]byte
	held   int
	ended  bool // no more comes
	over   bool // nobody reads any more
}

func newInput() *input {
	in := &input{}
	in.change = sync.NewCond(&in.mu)
	return in
}

// put keeps a copy of p. More than the window is a broken rule.
func (in *input) put(p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return nil
	}
	if in.held+len(p) > initwire.StdinWindow || in.ended {
		return fmt.Errorf("input beyond the window: %w", initwire.ErrFrame)
	}
	in.held += len(p)
	in.queue = append(in.queue, append([]byte(nil), p...))
	in.change.Broadcast()
	return nil
}

func (in *input) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.change.Broadcast()
}

// stop drops what was not taken. feed returns soon, since its file is told to
// give up as well.
func (in *input) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	in.queue = nil
	in.change.Broadcast()
}

func (in *input) stopped() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.over
}

// next waits for a piece; nil means that there will be none.
func (in *input) next() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.queue) == 0 && !in.ended && !in.over {
		in.change.Wait()
	}
	if len(in.queue) == 0 {
		return nil
	}
	p := in.queue[0]
	in.queue = in.queue[1:]
	return p
}

// taken gives room back to the window.
func (in *input) taken(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.held -= n
}

// feed writes to the command and grants the room again. It closes file at the
// end of the input and when the command reads no more.
func (in *input) feed(file *os.File, out *initwire.Writer, number uint32) {
	if file == nil {
		return
	}
	defer file.Close()
	// Room is granted only for what the command has taken, so that the sender
	// is as slow as the command.
	for p := in.next(); p != nil; p = in.next() {
		_, err := file.Write(p)
		if err != nil {
			// Either the command closed its input or run stopped us; only the
			// first is news to the other side.
			if !in.stopped() {
				in.stop()
				_ = out.Write(initwire.StdinClosed, number, nil)
			}
			return
		}
		in.taken(len(p))
		if out.Write(initwire.Credit, number, initwire.Uint32(uint32(len(p)))) != nil {
			return
		}
	}
}
