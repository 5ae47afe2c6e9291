package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// OrdinaryID is the user and the group of an account that only a test's mount
	// namespace knows.
	OrdinaryID = 64_996
	// WithoutControls is a policy for what such a user's sandboxes can't be held by.
	WithoutControls = "name: ordinary\nextends: standard\nwithout: [memory, swap, cpu]\n"

	ordinaryCommand = "__ordinary"
	imagesEnv       = "VEYRA_TEST_IMAGES"
	// seeing lets a process look at others from outside, as root does.
	seeing = "-all,+sys_ptrace,+dac_read_search"
)

// Ordinary is an account with subordinate ids, and a directory of root's with what
// its programs need. Own is a directory in it that is the user's.
type Ordinary struct{ Dir, Own string }

// NewOrdinary makes the directory for an account that has ids of both kinds.
func NewOrdinary(t testing.TB, ids int) Ordinary {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root, to become an ordinary user")
	}
	o := Ordinary{Dir: t.TempDir()}
	o.Own = filepath.Join(o.Dir, "own")
	var failed error
	for at := o.Dir; at != os.TempDir(); at = filepath.Dir(at) {
		failed = errors.Join(failed, os.Chmod(at, 0o755))
	}
	for name, text := range map[string]string{
		"policy.yaml": WithoutControls,
		"passwd":      fmt.Sprintf("veyra-ordinary:x:%d:%d::/:/bin/sh\n", OrdinaryID, OrdinaryID),
		"subuid":      fmt.Sprintf("veyra-ordinary:300000:%d\n", ids),
		"subgid":      fmt.Sprintf("%d:300000:%d\n", OrdinaryID, ids),
	} {
		failed = errors.Join(failed, os.WriteFile(filepath.Join(o.Dir, name), []byte(text), 0o644))
	}
	for _, name := range []string{"", "run", "tmp", "cache", "cache/images"} {
		dir := filepath.Join(o.Own, name)
		failed = errors.Join(failed, os.Mkdir(dir, 0o700), os.Chown(dir, OrdinaryID, OrdinaryID))
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return o
}

// Copy puts a program where the user can reach it, and returns the place.
func (o Ordinary) Copy(t testing.TB, from, name string) string {
	t.Helper()
	to := filepath.Join(o.Dir, name)
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	WriteProgram(t, to, string(raw), 0o755)
	return to
}

// Command runs a program as the user, in a mount namespace of its own in which the
// account exists and owns the host's images, below Own/cache. One that sees may look
// at other processes from outside.
func (o Ordinary) Command(t testing.TB, sees bool, argv ...string) *exec.Cmd {
	t.Helper()
	caps := "-all"
	if sees {
		caps = seeing
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{ordinaryCommand, o.Dir, caps}, argv...)...)
	cmd.Env = append(os.Environ(), "VEYRA_CACHE_DIR="+filepath.Join(o.Own, "cache"), "TMPDIR="+filepath.Join(o.Own, "tmp"), imagesEnv+"="+ImageStore())
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd
}

// OrdinaryMain is the process that becomes the user. A TestMain calls it first; it
// returns if this is no such process.
func OrdinaryMain() {
	if len(os.Args) < 5 || os.Args[1] != ordinaryCommand {
		return
	}
	fmt.Fprintln(os.Stderr, "becoming an ordinary user:", becomeOrdinary(os.Args[2], os.Args[3], os.Args[4:]))
	os.Exit(1)
}

// becomeOrdinary returns only when it failed.
func becomeOrdinary(dir, caps string, argv []string) error {
	for _, name := range []string{"passwd", "subuid", "subgid"} {
		if err := unix.Mount(filepath.Join(dir, name), "/etc/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hiding /etc/%s: %w", name, err)
		}
	}
	if err := lendImages(os.Getenv(imagesEnv), filepath.Join(dir, "own", "cache", "images")); err != nil {
		return fmt.Errorf("lending the images: %w", err)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return err
	}
	id := fmt.Sprint(OrdinaryID)
	words := []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=" + caps, "--ambient-caps=" + caps}
	return syscall.Exec(setpriv, append(words, argv...), os.Environ())
}

// lendImages shows the store, if there is one, at target as if all of it were the
// user's.
func lendImages(store, target string) error {
	if _, err := os.Stat(store); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	userns, err := onlyOrdinary()
	if err != nil {
		return err
	}
	defer userns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, store, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// onlyOrdinary is a user namespace in which root is the user. A process is stopped
// in it before its first instruction and killed.
func onlyOrdinary() (*os.File, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: OrdinaryID, Size: 1}}
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, Ptrace: true, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return userns, err
}
