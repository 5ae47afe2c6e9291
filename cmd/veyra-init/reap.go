package main

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// processes knows which children are the main process of a command and reaps
// every other that the kernel hands to PID 1.
type processes struct {
	forker *thread
	score  *oomScore

	// mu is held over a fork with its registration, and over each wait4: so a
	// child that ends at once is not reaped before its number is known.
	mu    sync.Mutex
	waits map[int]chan<- unix.WaitStatus
}

func newProcesses() (*processes, error) {
	forker, err := newThread(becomeForker)
	if err != nil {
		return nil, err
	}
	p := &processes{forker: forker, score: openOOMScore(), waits: map[int]chan<- unix.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	// Go leaves these two ignored when it was started so, and exec hands that
	// on: with a receiver they have a handler here and the default in a child.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT)
	go func() {
		for range ended {
			p.reap()
		}
	}()
	return p, nil
}

// fork starts a program and returns the channel that gets its wait status.
func (p *processes) fork(path string, argv []string, attr *syscall.ProcAttr) (<-chan unix.WaitStatus, error) {
	done := make(chan unix.WaitStatus, 1)
	var err error
	p.forker.do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.score.raise()
		defer p.score.restore()
		var pid int
		if pid, err = syscall.ForkExec(path, argv, attr); err == nil {
			p.waits[pid] = done
		}
	})
	return done, err
}

// reap takes every status there is; one SIGCHLD may stand for many.
func (p *processes) reap() {
	for {
		pid, status, err := p.reapOne()
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid == 0:
			return
		case status.Stopped():
			p.untrace(pid, status.StopSignal())
		}
	}
}

func (p *processes) reapOne() (pid int, status unix.WaitStatus, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err = unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
	ended := status.Exited() || status.Signaled()
	if done, ok := p.waits[pid]; ok && err == nil && ended {
		done <- status
		delete(p.waits, pid)
	}
	return pid, status, err
}

// untrace lets a process go that made its parent its tracer (PTRACE_TRACEME)
// and would wait for us for ever at its next signal. Only the thread that
// forked it may do so; an orphan that was handed to another thread is killed.
func (p *processes) untrace(pid int, signal syscall.Signal) {
	if signal == unix.SIGTRAP {
		signal = 0 // the stop that exec makes of itself
	}
	p.forker.do(func() {
		_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(signal), 0, 0)
		if e != 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
}

// killAll ends every process but init and returns when /proc lists no other.
// kill(-1) reaches stopped, traced, orphaned and renamed sessions alike; the
// repetition is for what was being born meanwhile. When something outlives
// EndPatience the sandbox ends: it hangs in the kernel, where only the end of PID 1
// reaches it, and nothing may run beside the next command.
func (p *processes) killAll() {
	pause := 100 * time.Microsecond
	for start := time.Now(); ; {
		p.mu.Lock()
		_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: nobody left
		p.mu.Unlock()
		alone, err := onlyInit()
		if err == nil && alone {
			return
		}
		if time.Since(start) > initwire.EndPatience {
			lastWords(errors.New("processes did not end"))
		}
		time.Sleep(pause)
		pause = min(pause*2, 10*time.Millisecond)
	}
}

// onlyInit reports whether /proc lists PID 1 alone. Zombies are listed until
// they are reaped.
func onlyInit() (bool, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, notNumber := strconv.Atoi(name); notNumber == nil && pid != 1 {
			return false, nil
		}
	}
	return true, err
}
