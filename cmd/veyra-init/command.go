package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

const (
	// sampleEvery is how often free space is looked at while a command runs.
	sampleEvery = 100 * time.Millisecond
	// diskPath is on the sandbox's one disk, as home and /tmp are.
	diskPath = "/workspace"
	// Less than this once, and the disk counts as full: at ENOSPC f_bavail is
	// 0 to 24 KiB, f_bfree still shows ext4's reserve.
	lowBytes = 1 << 20
	lowFiles = 64
	// drainFor is how long output is read on after the main process ended
	// while another process holds the pipe.
	drainFor = 50 * time.Millisecond
)

// Exit statuses as shells have them.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
)

// command is one command. cancel and input are for the goroutine that reads
// frames, everything else belongs to run.
type command struct {
	s      *server
	number uint32
	spec   initwire.Command
	input  *input
	flags  uint32

	once      sync.Once // closes cancelled
	cancelled chan struct{}
}

func newCommand(s *server, number uint32, spec initwire.Command) *command {
	return &command{s: s, number: number, spec: spec, input: newInput(), cancelled: make(chan struct{})}
}

func (c *command) cancel() { c.once.Do(func() { close(c.cancelled) }) }

// run goes the whole way of a command. When it returns, init has sent all of
// its output and holds nothing of it.
func (c *command) run() initwire.Exit {
	if c.spec.Flags&initwire.Alone != 0 {
		c.s.procs.killAll()
	}
	p, err := c.openPipes()
	if err != nil {
		return c.refuse(statusNotExecutable, err)
	}
	defer p.close()
	done, err := c.fork(p)
	p.closeTheirs() // else the pipes would never end
	if err != nil {
		return c.refuse(statusOf(err), err)
	}
	var pumps sync.WaitGroup
	for kind, file := range p.ours {
		pumps.Go(func() { c.pump(kind, file) })
	}
	var feeding sync.WaitGroup
	feeding.Go(func() { c.input.feed(p.input, c.s.out, c.number) })
	status := c.wait(done)
	// The command is its main process: what it left behind may hold its pipes
	// (case B17), but not the report.
	c.input.stop()
	if p.input != nil {
		_ = p.input.Close() // wakes feed
	}
	deadline := time.Now().Add(drainFor)
	for _, file := range p.ours {
		_ = file.SetReadDeadline(deadline)
	}
	pumps.Wait()
	feeding.Wait()
	return c.report(status)
}

// wait returns the wait status of the main process, and kills everything when
// a cancel comes first.
func (c *command) wait(done <-chan unix.WaitStatus) unix.WaitStatus {
	samples := time.NewTicker(sampleEvery)
	defer samples.Stop()
	for {
		select {
		case status := <-done:
			return status
		case <-c.cancelled:
			// Everything, not the one process: what it started must not live on.
			c.flags |= initwire.Cancelled
			c.s.procs.killAll()
			return <-done
		case <-samples.C:
			c.sample()
		}
	}
}

// report takes the last sample and sees to it that a cancel leaves nobody, also
// when it came after the main process had ended.
func (c *command) report(status unix.WaitStatus) initwire.Exit {
	c.sample()
	select {
	case <-c.cancelled:
		c.s.procs.killAll()
	default:
	}
	return initwire.Exit{Status: uint32(status), Flags: c.flags}
}

// sample looks at the disk's free space and files, and at the tasks of this
// kernel.
func (c *command) sample() {
	if c.s.tasks.full() {
		c.flags |= initwire.FullTasks
	}
	var fs unix.Statfs_t
	if unix.Statfs(diskPath, &fs) != nil {
		return
	}
	// A file system without a limit says 0 of 0.
	if fs.Blocks > 0 && fs.Bavail*uint64(fs.Bsize) < lowBytes {
		c.flags |= initwire.LowDisk
	}
	if fs.Files > 0 && fs.Ffree < lowFiles {
		c.flags |= initwire.LowInodes
	}
}

// refuse says on the command's own output why it did not start.
func (c *command) refuse(status uint32, err error) initwire.Exit {
	kind := initwire.Stderr
	if c.spec.Flags&initwire.Merged != 0 {
		kind = initwire.Stdout
	}
	line := fmt.Sprintf("veyra-init: %.200q: %v\n", c.spec.Argv[0], err)
	_ = c.s.out.Write(kind, c.number, []byte(line))
	exit := c.report(unix.WaitStatus(status << 8)) // as wait4 encodes an exit
	exit.Flags |= initwire.NotStarted
	return exit
}

// statusOf tells "there is no such program" from "it can't be run".
func statusOf(err error) uint32 {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return statusNotFound
	}
	return statusNotExecutable
}

// fork looks the program up as the job would see it and starts it: a session of
// its own, no terminal, three descriptors, uid 1000 without groups.
func (c *command) fork(p *pipes) (<-chan unix.WaitStatus, error) {
	program, err := c.find()
	if err != nil {
		return nil, err
	}
	return c.s.procs.fork(program, c.spec.Argv, &syscall.ProcAttr{
		Dir: c.spec.Dir, Env: c.spec.Env, Files: p.theirs[:],
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: jobUID, Gid: jobGID},
		},
	})
}

// find checks the directory and looks the program up in the PATH of the
// command's own environment, with the rights of the job.
func (c *command) find() (program string, err error) {
	c.s.maker.do(func() {
		var fd int
		if fd, err = openDir(c.spec.Dir); err != nil {
			// Not %w: a missing directory is no missing program, so 126.
			err = fmt.Errorf("directory %q: %v", c.spec.Dir, err)
			return
		}
		_ = unix.Close(fd)
		program, err = lookUp(c.spec)
	})
	return program, err
}

// lookUp is execvp's search. A candidate that exists but may not be executed is
// remembered, so that 126 and 127 are told apart as shells do.
func lookUp(spec initwire.Command) (string, error) {
	name := spec.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil // exec decides
	}
	found := error(unix.ENOENT)
	for _, dir := range strings.Split(initwire.Getenv(spec.Env, "PATH"), ":") {
		if !path.IsAbs(dir) {
			dir = path.Join(spec.Dir, dir)
		}
		candidate := path.Join(dir, name)
		var st unix.Stat_t
		if unix.Stat(candidate, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if executable(candidate, &st) {
			return candidate, nil
		}
		found = unix.EACCES
	}
	return "", found
}

// executable asks with the thread's effective ids; without faccessat2 the mode
// decides, and exec has the last word.
func executable(candidate string, st *unix.Stat_t) bool {
	err := unix.Faccessat2(unix.AT_FDCWD, candidate, unix.X_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return st.Mode&0o111 != 0
	}
	return err == nil
}

// pump sends what one pipe holds until its writers are gone or the deadline
// that run sets has passed.
func (c *command) pump(kind initwire.Type, file *os.File) {
	buf := c.s.bufs[kind]
	for {
		n, err := file.Read(buf)
		if n > 0 && c.s.out.Write(kind, c.number, buf[:n]) != nil {
			return // the other side is gone, and we with it
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.rest(kind, file, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// rest sends what is in the pipe at this moment and not what a left-over
// process adds: a slow reader may have used up the deadline while output of the
// main process was still waiting.
func (c *command) rest(kind initwire.Type, file *os.File, buf []byte) {
	_ = file.SetReadDeadline(time.Time{})
	waiting := 0
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	for waiting > 0 {
		n, err := file.Read(buf[:min(len(buf), waiting)])
		if err != nil || c.s.out.Write(kind, c.number, buf[:n]) != nil {
			return
		}
		waiting -= n
	}
}
