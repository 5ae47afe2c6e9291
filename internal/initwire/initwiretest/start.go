// Package initwiretest starts a real veyra-init as PID 1 of its own user, pid,
// mount, ipc and network namespaces, without an OCI runtime: a root of tmpfs
// with the host's tools, the four capabilities, nothing else. It is for tests
// that run as root. Start reading at Start.
package initwiretest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
)

// enteredVar marks the test binary that was started again inside the
// namespaces; its value is the directory for the new root.
const enteredVar = "VEYRA_INITWIRETEST_ROOT"

// carried is the descriptor on which the started binary gets veyra-init. It
// stays open on purpose: it must not reach a command.
const carried = 3

// init takes over in the binary that Start has started. A TestMain would do the
// same, but there may be only one in a package.
func init() {
	if root := os.Getenv(enteredVar); root != "" {
		fmt.Fprintln(os.Stderr, enter(root))
		os.Exit(1)
	}
}

// build makes veyra-init once and keeps it in memory.
var build = sync.OnceValues(func() (*os.File, error) {
	dir, err := os.MkdirTemp("", "veyra-init-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := readSources(); err != nil {
		return nil, err
	}
	binary := filepath.Join(dir, "init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary,
		"github.com/veyra-labs/veyra-sandboxd/cmd/veyra-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building veyra-init: %w\n%s", err, out)
	}
	return os.Open(binary) // readable after the directory is gone
})

// readSources opens what veyra-init is made of: the test cache knows only files
// that the test itself has opened, not those of the compiler it starts.
func readSources() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for root != "/" {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Dir(root)
	}
	for _, dir := range []string{"cmd/veyra-init", "internal/attack", "internal/initwire", "internal/treestream"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.[gs]*"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("looking for the sources of %s below %s: %w", dir, root, err)
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// Init is a running init.
type Init struct {
	// Stdin and Stdout are our ends of its pipes.
	Stdin, Stdout *os.File
	// PID is its number on the host.
	PID int

	stderr bytes.Buffer
	ended  chan struct{}
}

// Options of Start.
type Options struct {
	// WorkspaceTmpfs holds mount options of a small file system at /workspace,
	// for example "size=4m,nr_inodes=200".
	WorkspaceTmpfs string
	// Processes limits the processes of the user namespace; 0: no limit.
	Processes uint64
}

// Start starts an init that ends with the test. Tests without root are skipped.
func Start(t testing.TB, opts Options) *Init {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "veyra-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(root) })
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	i := &Init{Stdin: inW, Stdout: outR, ended: make(chan struct{})}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{enteredVar + "=" + root, "TMPFS=" + opts.WorkspaceTmpfs, fmt.Sprintf("NPROC=%d", opts.Processes)}
	cmd.ExtraFiles = []*os.File{binary}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, &i.stderr
	cmd.SysProcAttr = namespaces()
	err = cmd.Start()
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		t.Fatal(err)
	}
	i.PID = cmd.Process.Pid
	go func() { _ = cmd.Wait(); close(i.ended) }()
	t.Cleanup(func() {
		_, _ = inW.Close(), outR.Close()
		select {
		case <-i.ended:
		case <-time.After(waittest.Patience):
			_ = cmd.Process.Kill()
			t.Error("init outlived its pipes")
		}
		if t.Failed() {
			t.Logf("init's last words: %s", i.stderr.String())
		}
	})
	return i
}

// Ended is closed when init and with it everything inside is gone.
func (i *Init) Ended() <-chan struct{} { return i.ended }

// LastWords is what init wrote to its standard error. Valid after Ended.
func (i *Init) LastWords() string { return i.stderr.String() }

func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: 1000, Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: 1000, Size: 1}},
		GidMappingsEnableSetgroups: true,
	}
}

// enter makes the root, gives up what init doesn't have and becomes init. It
// returns only when it failed.
func enter(root string) error {
	if err := makeRoot(root); err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if text := os.Getenv("NPROC"); text != "0" {
		var n uint64
		if _, err := fmt.Sscan(text, &n); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return err
		}
	}
	return become("/.veyra/init")
}

// makeRoot builds a root file system of which only the sandbox's own places
// can be written.
func makeRoot(root string) error {
	m := mounts{root: root}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") // the host sees none of this
	m.mount("root", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp", "/proc", "/dev", "/.veyra"} {
		m.dir(dir)
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev"} {
		m.bind(dir)
	}
	m.mount("proc", root+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if opts := os.Getenv("TMPFS"); opts != "" {
		m.mount("small", root+"/workspace", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts)
	}
	m.copy(fmt.Sprintf("/proc/self/fd/%d", carried), "/.veyra/init")
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp"} {
		m.keep(os.Chmod(root+dir, 0o755))
		m.keep(os.Chown(root+dir, 1000, 1000))
	}
	return m.err
}

// mounts keeps the first error.
type mounts struct {
	root string
	err  error
}

func (m *mounts) keep(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *mounts) mount(source, target, kind string, flags uintptr, opts string) {
	if m.err == nil {
		if err := unix.Mount(source, target, kind, flags, opts); err != nil {
			m.err = fmt.Errorf("mounting %s: %w", target, err)
		}
	}
}

func (m *mounts) dir(path string) {
	if m.err == nil {
		m.keep(os.MkdirAll(m.root+path, 0o755))
	}
}

// bind shows one directory of the host, as the link that it may be.
func (m *mounts) bind(path string) {
	if target, err := os.Readlink(path); err == nil {
		m.keep(os.Symlink(target, m.root+path))
		return
	}
	if _, err := os.Stat(path); err != nil {
		return
	}
	m.dir(path)
	m.mount(path, m.root+path, "", unix.MS_BIND|unix.MS_REC, "")
}

func (m *mounts) copy(from, to string) {
	content, err := os.ReadFile(from)
	m.keep(err)
	if m.err == nil {
		m.keep(os.WriteFile(m.root+to, content, 0o755))
	}
}

// become gives up all capabilities but init's four and executes the program.
func become(program string) error {
	const four = 1<<unix.CAP_KILL | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if four&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// As careless as a runtime may be: init itself has to close the door.
	if _, err := unix.FcntlInt(carried, unix.F_SETFD, 0); err != nil {
		return err
	}
	return unix.Exec(program, []string{program}, strings.Fields("SECRET=canary PATH=/nowhere"))
}
