package confine

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stay as a UID or GID of a Lockdown leaves the process's own.
const Stay = -1

// Lockdown is all that a process gives up, in one value, since the order
// matters: the bounding set needs a capability, other ids take it away, a new id
// makes a process dumpable again, and Landlock and seccomp end all of that.
type Lockdown struct {
	// UID and GID are switched to (all three ids, no supplementary group);
	// Stay leaves them. A switch away from 0 keeps no capability.
	UID, GID int
	// Keep is the exact permitted, effective and bounding set afterwards;
	// inheritable and ambient sets are always empty. A process without SETPCAP
	// can't empty its bounding set, which no_new_privs then makes worthless.
	Keep []Capability
	// NewPrivileges leaves no_new_privs off, which only a rootless runner
	// needs: newuidmap is setuid.
	NewPrivileges bool
	// Rules is the Landlock ruleset; nil applies none.
	Rules *Rules
	// Filter names the seccomp filter.
	Filter Filter
}

// Apply gives everything up, reads it back on every thread and returns a
// sentence for each thing that this kernel can't enforce. After an error the
// process is half locked and must end. Call it once, after everything that
// needs power is open, and before goroutines that hold threads of their own.
func (l Lockdown) Apply() (weakenings []string, err error) {
	if l.UID > 0 && len(l.Keep) > 0 {
		return nil, fmt.Errorf("switching to uid %d with capabilities: %w", l.UID, syscall.EINVAL)
	}
	dropped, err := l.dropPowers()
	if err != nil {
		return nil, err
	}
	files, err := openThreads("/proc/self/task")
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	want := l.wanted(dropped)
	// First with a fresh list, then below with these files: /proc is gone then.
	if err := want.check(files); err != nil {
		return nil, err
	}
	weakenings, err = l.Rules.restrict()
	if err != nil {
		return nil, err
	}
	if err := l.Filter.load(); err != nil {
		return nil, err
	}
	want.seccomp = l.Filter.mode()
	return weakenings, want.check(files)
}

func (l Lockdown) dropPowers() (boundingDropped bool, err error) {
	startPoller()
	keep := maskOf(l.Keep)
	if boundingDropped, err = dropBounding(keep); err != nil {
		return false, err
	}
	if err := l.switchIDs(); err != nil {
		return false, err
	}
	if err := setCapabilities(keep); err != nil {
		return false, err
	}
	if err := noCore(); err != nil {
		return false, err
	}
	if l.NewPrivileges {
		return boundingDropped, nil
	}
	return boundingDropped, allThreads("setting no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0)
}

// startPoller makes the runtime open its epoll descriptors now. It does so at
// the first timer, else, and ends the process when a filter forbids it then.
func startPoller() {
	reader, writer, err := os.Pipe()
	if err != nil {
		return // the filters allow it all the same; the descriptors are few
	}
	_ = reader.Close()
	_ = writer.Close()
}

// switchIDs uses the standard library's calls, which reach every thread.
func (l Lockdown) switchIDs() error {
	if l.GID != Stay {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("leaving all groups: %w", err)
		}
		if err := syscall.Setresgid(l.GID, l.GID, l.GID); err != nil {
			return fmt.Errorf("switching to gid %d: %w", l.GID, err)
		}
	}
	if l.UID != Stay {
		if err := syscall.Setresuid(l.UID, l.UID, l.UID); err != nil {
			return fmt.Errorf("switching to uid %d: %w", l.UID, err)
		}
	}
	return nil
}

// noCore keeps secrets out of core files (by limit, which a core_pattern pipe
// ignores at 1 only) and out of a same-uid process's ptrace and /proc/PID/mem.
// Both belong to the process, not to a thread.
func noCore() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("setting the core limit to 0: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming undumpable: %w", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || dumpable != 0 {
		return fmt.Errorf("becoming undumpable: still %d: %w", dumpable, ErrNotApplied)
	}
	// A traceback of all goroutines may print memory that holds a key.
	debug.SetTraceback("none")
	return nil
}

// wanted is what each thread's status must show.
type wanted struct {
	uid, gid   int
	caps       uint64
	bounding   bool // compare the bounding set, too
	noNewPrivs bool
	seccomp    int
}

func (l Lockdown) wanted(boundingDropped bool) wanted {
	want := wanted{
		uid: l.UID, gid: l.GID, caps: maskOf(l.Keep),
		bounding: boundingDropped, noNewPrivs: !l.NewPrivileges, seccomp: -1,
	}
	if want.uid == Stay {
		want.uid = os.Getuid()
	}
	if want.gid == Stay {
		want.gid = os.Getgid()
	}
	return want
}

// check compares every thread. No thread may start unseen between opening and
// reading: each starts as a copy of one that was locked already.
func (w wanted) check(files []*os.File) error {
	threads, err := readThreads(files)
	if err != nil {
		return err
	}
	for _, thread := range threads {
		if differs := w.differs(thread); differs != "" {
			return fmt.Errorf("thread %d of %d: %s differs: %w", thread.ID, len(threads), differs, ErrNotApplied)
		}
	}
	runtime.KeepAlive(files)
	return nil
}

func (w wanted) differs(t Thread) string {
	switch {
	case t.UIDs != [4]int{w.uid, w.uid, w.uid, w.uid}:
		return "uid"
	case t.GIDs != [4]int{w.gid, w.gid, w.gid, w.gid}:
		return "gid"
	case t.Permitted != w.caps || t.Effective != w.caps:
		return "capabilities"
	case t.Inheritable != 0 || t.Ambient != 0:
		return "inheritable capabilities"
	case w.bounding && t.Bounding != w.caps:
		return "bounding set"
	case w.noNewPrivs && !t.NoNewPrivs:
		return "no_new_privs"
	case w.seccomp >= 0 && t.Seccomp != w.seccomp:
		return "seccomp"
	}
	return ""
}
