package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// User and group of every command.
const (
	jobUID = 1000
	jobGID = 1000
)

// thread is one OS thread whose credentials differ from init's. Rights belong
// to threads in Linux, so raw system calls are used on a thread that is never
// unlocked; Go's wrappers would change all threads.
type thread struct{ calls chan func() }

// newThread starts a thread and gives it credentials with become.
func newThread(become func() error) (*thread, error) {
	t := &thread{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		ready <- become()
		for call := range t.calls {
			call()
		}
	}()
	return t, <-ready
}

// do runs f on the thread and waits for it.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.calls <- func() { f(); close(done) }
	<-done
}

// becomeForker drops what commands must not have and can't give up themselves
// once they are uid 1000: the bounding and the inheritable set. The effective
// and permitted sets stay, to set ids with; a change from uid 0 to 1000 clears
// them in the child.
func becomeForker() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := raw("dropping bounding capability", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); err != nil {
			return err
		}
	}
	if err := clearInheritable(); err != nil {
		return err
	}
	if err := prctl("clearing ambient capabilities", unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return err
	}
	return prctl("setting no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1)
}

// becomeMaker lends the thread uid and gid 1000 without groups: what it makes
// belongs to the job, what the job can't see it doesn't see either. The real
// uid stays 0, so that no job may signal it; the permitted capabilities stay as
// well, so that none may renice or pin it (capabilities(7), cap_safe_nice).
func becomeMaker() error {
	keep := ^uintptr(0)
	if err := raw("clearing groups", unix.SYS_SETGROUPS, 0, 0, 0); err != nil {
		return err
	}
	if err := raw("setting effective gid", unix.SYS_SETRESGID, keep, jobGID, keep); err != nil {
		return err
	}
	if err := raw("setting effective uid", unix.SYS_SETRESUID, keep, jobUID, keep); err != nil {
		return err
	}
	// A changed uid sets the process's dumpable to the host's suid_dumpable.
	return prctl("staying not dumpable", unix.PR_SET_DUMPABLE, 0)
}

func clearInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("clearing inheritable capabilities: %w", err)
	}
	return nil
}

func prctl(what string, option, value uintptr) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, option, value, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("%s: %w", what, e)
	}
	return nil
}

func raw(what string, call, a, b, c uintptr) error {
	// EINVAL of PR_CAPBSET_DROP: the kernel knows fewer capabilities than we.
	if _, _, e := unix.RawSyscall6(call, a, b, c, 0, 0, 0); e != 0 && !(call == unix.SYS_PRCTL && e == unix.EINVAL) {
		return fmt.Errorf("%s: %w", what, e)
	}
	return nil
}

// warmThreads makes the runtime create n threads now. It keeps idle ones, so
// that a job that fills the table of processes can't end init by making it
// need one more.
func warmThreads(n int) {
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}

// oomScore raises the score of children: init writes 1000 to itself, forks and
// takes it back, so that there is no moment in which the child has another. A
// kernel allows the way back down to where init started.
type oomScore struct {
	file *os.File
	own  []byte
}

const oomScorePath = "/proc/self/oom_score_adj"

// openOOMScore returns nil when the file can't be written; the children then
// have init's own score.
func openOOMScore() *oomScore {
	own, err := os.ReadFile(oomScorePath)
	if err != nil {
		return nil
	}
	file, err := os.OpenFile(oomScorePath, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	return &oomScore{file, own}
}

func (s *oomScore) raise() {
	if s != nil {
		_, _ = s.file.WriteAt([]byte("1000"), 0)
	}
}

func (s *oomScore) restore() {
	if s != nil {
		_, _ = s.file.WriteAt(s.own, 0)
	}
}
