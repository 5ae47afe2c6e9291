package confine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
)

// childArg makes the test binary play a process that locks itself down. What it
// can still do afterwards is its answer; its threads are read from outside.
const childArg = "__confined"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == childArg {
		if err := playChild(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// attempts maps what a child tried to the error text, "" for success.
type attempts struct {
	Weakenings []string
	Tried      map[string]syscall.Errno
}

func playChild(kind string, dirs []string) error {
	lockdown, tries := plan(kind, dirs)
	busy() // several threads exist before the lock-down, as in a real process
	weakenings, err := lockdown.Apply()
	if err != nil {
		return err
	}
	busy()
	answer := attempts{Weakenings: weakenings, Tried: map[string]syscall.Errno{}}
	for name, try := range tries {
		answer.Tried[name] = errnoOf(try())
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // stays until the parent has looked
	return nil
}

// busy holds eight threads at once.
func busy() {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			time.Sleep(time.Millisecond) // makes timers run under the filter
		})
	}
	group.Wait()
	runtime.GC()
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	}
	return syscall.Errno(9999)
}

func plan(kind string, dirs []string) (confine.Lockdown, map[string]func() error) {
	stay := confine.Lockdown{UID: confine.Stay, GID: confine.Stay}
	switch kind {
	case "runner":
		stay.Keep = []confine.Capability{unix.CAP_SYS_ADMIN, unix.CAP_CHOWN}
		return stay, map[string]func() error{
			"chown": func() error { return os.Chown(dirs[0], 1, 1) },
			"setid": func() error { return unix.Setuid(1) },
			"start": func() error { return exec.Command("/bin/true").Run() },
		}
	case "signer":
		stay.Rules, stay.Filter = &confine.Rules{NoNetwork: true}, confine.SignerFilter
		if len(dirs) > 1 {
			stay.UID, stay.GID = 4321, 4321
		}
		return stay, signerTries(dirs[0])
	case "thread":
		// The kernel drops what it does not know without an error: only reading
		// back shows it.
		stay.Keep = []confine.Capability{unix.CAP_SYS_ADMIN, 63}
		return stay, nil
	}
	return confine.Lockdown{
		UID: 4321, GID: 4321, Filter: confine.SupervisorFilter,
		Rules: &confine.Rules{Read: dirs[:1], Write: dirs[1:3], ReadIfPresent: []string{"/etc/resolv.conf", "/no/such", "/root/out of reach"}},
	}, supervisorTries(dirs)
}

func signerTries(dir string) map[string]func() error {
	return map[string]func() error{
		"open":   func() error { _, err := os.Open(dir); return err },
		"socket": func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); return err },
		"exec":   tryExec,
		"fork":   tryFork,
		"kill":   func() error { return unix.Kill(os.Getppid(), 0) },
		"pipe":   func() error { return unix.Pipe2(make([]int, 2), 0) },
		"code": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
			return err
		},
		"write": func() error { _, err := os.Stderr.WriteString(""); return err },
	}
}

func tryExec() error { return unix.Exec("/bin/true", []string{"true"}, nil) }

func tryFork() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

func supervisorTries(dirs []string) map[string]func() error {
	readable, journal, jobs, closed := dirs[0], dirs[1], dirs[2], dirs[3]
	socket := func(family int) func() error {
		return func() error { _, err := unix.Socket(family, unix.SOCK_STREAM, 0); return err }
	}
	return map[string]func() error{
		"read":         func() error { _, err := os.ReadFile(readable + "/file"); return err },
		"write":        func() error { return os.WriteFile(journal+"/file", []byte("x"), 0o600) },
		"move":         func() error { return os.Rename(journal+"/old", jobs+"/new") },
		"truncate":     func() error { return os.Truncate(journal+"/file", 0) },
		"unwritable":   func() error { return os.WriteFile(readable+"/file", nil, 0o600) },
		"closed":       func() error { _, err := os.ReadFile(closed + "/file"); return err },
		"list /":       func() error { _, err := os.ReadDir("/"); return err },
		"link":         func() error { return os.Symlink("x", journal+"/link") },
		"listen":       tryListen,
		"AF_INET6":     socket(unix.AF_INET6),
		"AF_UNIX":      socket(unix.AF_UNIX),
		"AF_NETLINK":   socket(unix.AF_NETLINK),
		"AF_VSOCK":     socket(unix.AF_VSOCK),
		"any family":   tryFamilies,
		"high bits":    func() error { _, _, errno := unix.RawSyscall(unix.SYS_SOCKET, 1<<32|unix.AF_INET, 1, 0); return errno },
		"socketpair":   func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"exec":         tryExec,
		"fork":         tryFork,
		"mount":        func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") },
		"unshare":      func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"ptrace":       func() error { return unix.PtraceAttach(os.Getppid()) },
		"io_uring":     func() error { _, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 1, 0, 0); return errno },
		"keyctl":       func() error { _, err := unix.KeyctlGetKeyringID(-1, false); return err },
		"kill parent":  func() error { return unix.Kill(os.Getppid(), 0) },
		"kill self":    func() error { return unix.Kill(os.Getpid(), 0) },
		"TIOCSTI":      func() error { return unix.IoctlSetPointerInt(0, unix.TIOCSTI, 0) },
		"unknown call": func() error { _, _, errno := unix.RawSyscall(5000, 0, 0, 0); return errno },
	}
}

// tryFamilies returns EPERM only if all other families give it: a filter that
// takes an argument for a call's number lets single ones through.
func tryFamilies() error {
	for family := range 512 {
		if family == unix.AF_INET || family == unix.AF_INET6 {
			continue
		}
		if _, err := unix.Socket(family, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("family %d: %w", family, err)
		}
	}
	return unix.EPERM
}

func tryListen() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// run starts a child, returns what it tried, and its threads seen from outside.
func run(t *testing.T, kind string, dirs ...string) (attempts, []confine.Thread, error) {
	t.Helper()
	child := exec.Command(os.Args[0], append([]string{childArg, kind}, dirs...)...)
	var stderr strings.Builder
	child.Stderr = &stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var answer attempts
	failed := json.NewDecoder(stdout).Decode(&answer)
	threads, _ := confine.Threads(child.Process.Pid)
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		return answer, nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	return answer, threads, failed
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not applicable: giving up capabilities needs root")
	}
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: a cgo build can't confine its threads")
	}
}

func checkTried(t *testing.T, got, want map[string]syscall.Errno) {
	t.Helper()
	for name, errno := range want {
		if have, tried := got[name]; !tried || have != errno {
			t.Errorf("%s: got %d (tried %v), want %d", name, have, tried, errno)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d things were tried, %d are judged", len(got), len(want))
	}
}

func checkThreads(t *testing.T, threads []confine.Thread, uid int, caps uint64, seccomp int) {
	t.Helper()
	if len(threads) < 3 {
		t.Fatalf("only %d threads were seen", len(threads))
	}
	for _, thread := range threads {
		sets := []uint64{thread.Permitted, thread.Effective, thread.Bounding, thread.Inheritable, thread.Ambient}
		if want := []uint64{caps, caps, caps, 0, 0}; !slices.Equal(sets, want) {
			t.Errorf("thread %d: capabilities %x, want %x", thread.ID, sets, want)
		}
		if !thread.NoNewPrivs || thread.Seccomp != seccomp || thread.UIDs != [4]int{uid, uid, uid, uid} {
			t.Errorf("thread %d: %+v", thread.ID, thread)
		}
	}
}

func TestRunnerKeepsExactlyItsCapabilities(t *testing.T) {
	needRoot(t)
	answer, threads, err := run(t, "runner", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	checkTried(t, answer.Tried, map[string]syscall.Errno{"chown": 0, "start": 0, "setid": unix.EPERM})
	checkThreads(t, threads, 0, 1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_CHOWN, 0)
}

func TestSignerCanOnlyUseWhatIsOpen(t *testing.T) {
	needRoot(t)
	eperm := unix.EPERM
	for name, args := range map[string][]string{"root": {t.TempDir()}, "other uid": {t.TempDir(), "switch"}} {
		t.Run(name, func(t *testing.T) {
			answer, threads, err := run(t, "signer", args...)
			if err != nil {
				t.Fatal(err)
			}
			checkTried(t, answer.Tried, map[string]syscall.Errno{
				"open": eperm, "socket": eperm, "exec": eperm, "fork": eperm, "kill": eperm,
				"pipe": eperm, "code": eperm, "write": 0,
			})
			uid := 0
			if len(args) > 1 {
				uid = 4321
			}
			checkThreads(t, threads, uid, 0, 2)
		})
	}
}

// supervisorDirs makes four directories with a file each below one that any uid
// may pass; the child owns them, so that only Landlock can stand in its way.
func supervisorDirs(t *testing.T) []string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "confine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	var dirs []string
	for _, name := range []string{"readable", "journal", "jobs", "closed"} {
		dir := filepath.Join(base, name)
		for _, step := range []error{
			os.Mkdir(dir, 0o700), os.WriteFile(dir+"/file", []byte("x"), 0o600),
			os.WriteFile(dir+"/old", nil, 0o600), os.Chown(dir, 4321, 4321),
			os.Chown(dir+"/file", 4321, 4321), os.Chown(dir+"/old", 4321, 4321), os.Chmod(base, 0o755),
		} {
			if step != nil {
				t.Fatal(step)
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

func TestSupervisorKeepsItsFilesAndTheNetwork(t *testing.T) {
	needRoot(t)
	if confine.LandlockABI() < 6 {
		t.Skip("not applicable: Landlock of this kernel scopes no signals")
	}
	answer, threads, err := run(t, "supervisor", supervisorDirs(t)...)
	if err != nil {
		t.Fatal(err)
	}
	eperm, eacces := unix.EPERM, unix.EACCES
	checkTried(t, answer.Tried, map[string]syscall.Errno{
		"read": 0, "write": 0, "move": 0, "truncate": 0, "listen": 0, "AF_INET6": 0, "kill self": 0,
		"unwritable": eacces, "closed": eacces, "list /": eacces, "link": eacces,
		"AF_UNIX": eperm, "AF_NETLINK": eperm, "AF_VSOCK": eperm, "any family": eperm, "high bits": eperm, "socketpair": eperm,
		"exec": eperm, "fork": eperm, "mount": eperm, "unshare": eperm, "ptrace": eperm,
		"io_uring": eperm, "keyctl": eperm, "kill parent": eperm, "TIOCSTI": eperm, "unknown call": eperm,
	})
	checkThreads(t, threads, 4321, 0, 2)
	if len(answer.Weakenings) != 0 {
		t.Errorf("weakenings on a kernel with all of it: %q", answer.Weakenings)
	}
}

func TestWhatTheKernelDoesNotShowIsRefused(t *testing.T) {
	needRoot(t)
	if _, _, err := run(t, "thread", t.TempDir()); err == nil {
		t.Fatal("a capability that no kernel has counted as kept")
	}
}

func TestCapabilitiesDoNotSurviveAnotherUID(t *testing.T) {
	lockdown := confine.Lockdown{UID: 4321, GID: 4321, Keep: []confine.Capability{unix.CAP_SYS_ADMIN}}
	if _, err := lockdown.Apply(); !errors.Is(err, unix.EINVAL) {
		t.Fatalf("got %v, want EINVAL before any effect", err)
	}
}

func TestMissingPathIsAnError(t *testing.T) {
	needRoot(t)
	if _, _, err := run(t, "supervisor", "/no/such", "/no/such", "/no/such", "/no/such"); err == nil {
		t.Fatal("a rule for a missing directory was left out without a word")
	}
}

func TestCloseFromMarksAllButKept(t *testing.T) {
	fds := make([]int, 2)
	if err := unix.Pipe2(fds, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if err := confine.CloseFrom(3, fds[1], 1); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{unix.FD_CLOEXEC, 0} {
		flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0)
		if err != nil || flags != want {
			t.Errorf("descriptor %d: flags %d, %v; want %d", fds[i], flags, err, want)
		}
	}
}
