package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// The attack mode is a hostile program of ours: uid 1000 in a sandbox tries
// what a job might try and reports each attempt (see internal/attack). It is no
// part of PID 1 and has no more rights than the job, so that what it achieves
// any job could.

// attacks are carried out by name. Each reports all of its attempts, whatever
// came of the others.
var attacks = map[string]func(*attacker){
	attack.Identity:    (*attacker).identity,
	attack.Descriptors: (*attacker).descriptors,
	attack.Environment: (*attacker).environment,
	attack.Alone:       (*attacker).alone,
	attack.Plain:       (*attacker).plain,
	attack.Namespaces:  (*attacker).namespaces,
	attack.Mounts:      func(a *attacker) { a.all(mountCalls()) },
	attack.Calls:       func(a *attacker) { a.all(kernelCalls()); a.all(nativeCalls()) },
	attack.Families:    (*attacker).families,
	attack.Doors:       (*attacker).doors,
	attack.Network:     (*attacker).network,
	attack.Sockets:     (*attacker).sockets,
	attack.Terminal:    (*attacker).terminal,
	attack.Init:        (*attacker).init,
	attack.Devices:     (*attacker).devices,
	attack.SetID:       (*attacker).setID,
	attack.Settings:    (*attacker).settings,
	attack.Masked:      (*attacker).masked,
	attack.Paths:       (*attacker).paths,
	attack.Root:        (*attacker).root,
	attack.Schedule:    (*attacker).schedule,
	attack.PIDs:        (*attacker).pids,
	attack.Memory:      (*attacker).memory,
	attack.Disk:        (*attacker).disk,
	attack.Inodes:      (*attacker).inodes,
	attack.Tmpfs:       (*attacker).tmpfs,
	attack.OpenFiles:   (*attacker).openFiles,
	attack.Core:        (*attacker).core,
	attack.Stubborn:    (*attacker).stubborn,
	attack.Flood:       (*attacker).flood,
	attack.Linger:      (*attacker).linger,
}

// attacker reports the attempts of one attack.
type attacker struct {
	args   []string
	out    *bufio.Writer
	exit   int // a status of its own, for attacks whose report is the status
	failed error
}

// runAttack carries out the attack args[0] and returns the exit status.
func runAttack(args []string, out io.Writer) int {
	carryOut := attacks[args[0]]
	if carryOut == nil {
		return modeStatus(errUsage)
	}
	a := &attacker{args: args[1:], out: bufio.NewWriter(out)}
	carryOut(a)
	if err := errors.Join(a.failed, a.out.Flush()); err != nil {
		return 1
	}
	return a.exit
}

// report writes at once: an attempt may be the last.
func (a *attacker) report(name, result, detail string) {
	err := attack.Write(a.out, attack.Try{Name: name, Result: result, Detail: detail})
	a.failed = errors.Join(a.failed, err, a.out.Flush())
}

func (a *attacker) seen(name, detail string) { a.report(name, attack.Seen, detail) }

// tried reports an attempt that failed with err, or worked.
func (a *attacker) tried(name string, err error) {
	if err == nil {
		a.report(name, attack.Done, "")
		return
	}
	a.report(name, errnoName(err), "")
}

func errnoName(err error) string {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return "error"
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return fmt.Sprintf("E%d", int(errno))
}

// call is one system call as it is made: raw, since the wrappers of Go change
// all threads or check arguments.
type call struct {
	name string
	nr   uintptr
	args [6]uintptr
	// old enters by the door of 32-bit programs, with three arguments.
	old bool
}

func sys(name string, nr uintptr, args ...uintptr) call {
	c := call{name: name, nr: nr}
	copy(c.args[:], args)
	return c
}

// do returns 0 or the errno. It must stay what a forked child may call.
//
//go:nosplit
//go:norace
func (c *call) do() unix.Errno {
	if c.old {
		return int80(c.nr, c.args[0], c.args[1], c.args[2])
	}
	_, _, errno := unix.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
	return errno
}

func (a *attacker) all(calls []call) {
	for i := range calls {
		a.answered(calls[i].name, calls[i].do())
	}
}

// answered reports what a call returned.
func (a *attacker) answered(name string, errno unix.Errno) {
	if errno == 0 {
		a.tried(name, nil)
		return
	}
	a.tried(name, errno)
}

// fork makes a process that makes the calls and ends with the errno of the
// first that failed; forever starts anew and stops at none. The child is one
// thread of a Go program and shares no lock with anybody, so it must do nothing
// but these raw calls.
//
//go:noinline
//go:norace
func fork(flags uintptr, calls []call, forever bool) (int, error) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if pid != 0 {
		return int(pid), nil
	}
	for again := true; again; again = forever {
		for i := range calls {
			if errno = calls[i].do(); errno != 0 && !forever {
				break
			}
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
}

// inChild reports the calls as one attempt of a process born with flags.
func (a *attacker) inChild(name string, flags uintptr, calls ...call) {
	pid, err := fork(flags, calls, false)
	var status unix.WaitStatus
	if err == nil {
		_, err = unix.Wait4(pid, &status, 0, nil)
	}
	switch {
	case err != nil:
		a.tried(name, err)
	case status.Signaled(): // a filter's answer, too
		a.report(name, unix.SignalName(status.Signal()), "")
	default:
		a.answered(name, unix.Errno(status.ExitStatus()))
	}
}

// sleeps blocks until a signal.
func sleeps() call { return sys("ppoll", unix.SYS_PPOLL, 0, 0, 0, 0, 0) }

// kept holds what a raw call was given the address of: it lies on the heap,
// where nothing moves, and is never collected.
var kept []any

// address keeps v and returns where it is.
func address[T any](v *T) uintptr {
	kept = append(kept, v)
	return uintptr(unsafe.Pointer(v))
}

// scratch is memory for calls that want some.
var scratch [4096]byte

func scratchAddr() uintptr { return address(&scratch) }

// text returns the address of a NUL-terminated string.
func text(s string) uintptr { return address(&append([]byte(s), 0)[0]) }
