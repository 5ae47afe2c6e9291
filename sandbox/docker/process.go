package docker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// process is the PID 1 of a container, held by descriptor: it isn't our child.
type process struct {
	pid   int
	file  *os.File // its pidfd
	group linux.Group
	ended chan struct{} // closed once it is dead and last is set

	mu   sync.Mutex // guards what follows
	last sandbox.Counters
	lost error // why last could not be read
}

// hold takes hold of a process in whose control groups the id stands.
func hold(pid int, id string) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("taking hold of PID 1: %w", err)
	}
	p := &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}
	// After the descriptor: a number that was given again meanwhile lies in
	// another group.
	if p.group, err = linux.GroupOf(pid, id); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	go p.follow()
	return p, nil
}

// limitCores bounds the core files of a guest's kernel and its helpers, which keep
// the engine's limit: a container's own is the guest's.
func (p *process) limitCores(bytes uint64) error {
	pids, err := p.group.Members()
	if err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: bytes, Max: bytes}
	for _, pid := range pids {
		err := unix.Prlimit(pid, unix.RLIMIT_CORE, &limit, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("limiting core files of the guest's kernel: %w", err)
		}
	}
	return nil
}

// follow waits for the end and reads the counters once more at once: engines
// remove the control group some milliseconds later.
func (p *process) follow() {
	defer close(p.ended)
	p.await()
	counters, err := p.group.Counters()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = err
	if err == nil {
		p.last = counters
	}
}

// await returns when the process is dead. Where the Go runtime can't wait for a
// pidfd, this goroutine's thread does.
func (p *process) await() {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return // closed, which is after the end only
	}
	if conn.Read(func(fd uintptr) bool { return isDead(fd, 0) }) == nil {
		return
	}
	for dead := false; !dead; {
		if conn.Control(func(fd uintptr) { dead = isDead(fd, 1000) }) != nil {
			return
		}
	}
}

// isDead waits for some milliseconds at most.
func isDead(pidfd uintptr, patience int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, patience)
	return n > 0
}

// patienceForEnd is how long a process may outlive its control group's files.
const patienceForEnd = 2 * time.Second

// counters reads the kernel's numbers; after the end, the last ones. An error
// means that nobody knows whether they rose in between.
func (p *process) counters() (sandbox.Counters, error) {
	select {
	case <-p.ended:
		return p.final()
	default:
	}
	c, err := p.group.Counters()
	if err != nil {
		select {
		case <-p.ended: // the group went because the process did
			return p.final()
		case <-time.After(patienceForEnd):
			return c, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = c
	return c, nil
}

func (p *process) final() (sandbox.Counters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.last
	c.Ended = true
	return c, p.lost
}

// kill ends the process. One that has ended already is no error.
func (p *process) kill() error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var killErr error
	err = conn.Control(func(fd uintptr) { killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if errors.Is(killErr, unix.ESRCH) {
		killErr = nil
	}
	return errors.Join(err, killErr)
}

func (p *process) release() error { return p.file.Close() }
