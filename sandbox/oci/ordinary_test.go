package oci_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// ordinaryEnv names the directory that an ordinary user's test finds its parts in.
const ordinaryEnv = "VEYRA_TEST_ORDINARY"

// rootlessUnable is what an ordinary user's sandboxes can't be held by.
var rootlessUnable = []policies.Control{policies.ControlMemory, policies.ControlSwap, policies.ControlCPU}

// TestContractAsOrdinaryUser runs the whole suite again in a process of an ordinary
// user, which starts its runner by newuidmap. That process has two capabilities, so
// that the cases can look at sandboxes from outside as root does; the runner, being
// in a user namespace, loses them at its start.
func TestContractAsOrdinaryUser(t *testing.T) {
	if dir := os.Getenv(ordinaryEnv); dir != "" {
		sandboxtest.Run(t, func(t testing.TB) sandboxtest.Host { return ordinaryHost(t, dir) })
		return
	}
	if sandboxtest.PythonImage(t) == "" {
		t.Skip("not applicable: no python image")
	}
	out, err := runOrdinary(t, prepareOrdinary(t), "^TestContractAsOrdinaryUser$")
	t.Logf("%s", out)
	if err != nil || !strings.Contains(out, "\nPASS\n") || strings.Contains(out, "--- SKIP") {
		t.Errorf("the suite as an ordinary user: %v", err)
	}
}

func ordinaryHost(t testing.TB, dir string) sandboxtest.Host {
	t.Helper()
	config := runner.Config{
		Instance: "test-ordinary", Policy: filepath.Join(dir, "policy.yaml"), Disks: filepath.Join(dir, "own", "disks"),
		Images: sandboxtest.ImageStore(), Runtime: filepath.Join(dir, "runc"), Init: filepath.Join(dir, "init"),
		Run: filepath.Join(dir, "own", "run"), Rootless: true, Stderr: os.Stderr,
	}
	c := start(t, config)
	policy, err := policies.Load(config.Policy)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Host{
		Name: "oci/runc as an ordinary user", Class: sandboxtest.Kernel, Backend: c, Limits: policy.Limits,
		Image: sandboxtest.PythonImage(t), Unable: rootlessUnable, Unnamed: []sandbox.Limit{sandbox.LimitPIDs},
		Inside: func() []int { return children(t, c.Pid()) },
		Left:   func() []string { return leftBelow(t, c.Pid(), config.Instance, config.Run) },
	}
}

// prepareOrdinary makes a directory that an ordinary user can use.
func prepareOrdinary(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root, to become an ordinary user")
	}
	dir := t.TempDir()
	for at := dir; at != os.TempDir(); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyTo(t, "/proc/self/exe", filepath.Join(dir, "self"))
	copyTo(t, program(t, "runc"), filepath.Join(dir, "runc"))
	copyTo(t, sandboxtest.Init(t), filepath.Join(dir, "init"))
	for name, text := range map[string]string{
		"policy.yaml": "name: ordinary\nextends: standard\nwithout: [memory, swap, cpu]\n",
		"passwd":      fmt.Sprintf("veyra-ordinary:x:%d:%d::/:/bin/sh\n", ordinary, ordinary),
		"subuid":      fmt.Sprintf("veyra-ordinary:300000:%d\n", 16*65_536),
		"subgid":      fmt.Sprintf("%d:300000:%d\n", ordinary, 16*65_536),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cache/images", "own/run", "own/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"own", "own/run", "own/tmp"} {
		if err := os.Chown(filepath.Join(dir, name), ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o755); err != nil {
		t.Fatal(err)
	}
}

// runOrdinary runs tests of this program as that user, in a mount namespace of
// their own in which the account exists and owns the host's images.
func runOrdinary(t *testing.T, dir, which string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", ordinaryCommand, dir, which)
	cmd.Env = append(os.Environ(), ordinaryEnv+"="+dir, "VEYRA_CACHE_DIR="+filepath.Join(dir, "cache"),
		"TMPDIR="+filepath.Join(dir, "own", "tmp"), "VEYRA_TEST_IMAGES="+sandboxtest.ImageStore())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ordinaryCommand is the first argument of the process that becomes the user.
const ordinaryCommand = "__ordinary"

// becomeOrdinary makes the mounts and executes the tests; it returns only when that
// failed.
func becomeOrdinary(dir, which string) error {
	for _, name := range []string{"passwd", "subuid", "subgid"} {
		if err := unix.Mount(filepath.Join(dir, name), "/etc/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := lendImages(os.Getenv("VEYRA_TEST_IMAGES"), filepath.Join(dir, "cache", "images")); err != nil {
		return fmt.Errorf("lending the images: %w", err)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return err
	}
	const seeing = "-all,+sys_ptrace,+dac_read_search"
	id := fmt.Sprint(ordinary)
	return syscall.Exec(setpriv, []string{
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=" + seeing, "--ambient-caps=" + seeing,
		filepath.Join(dir, "self"), "-test.run=" + which, "-test.v",
	}, os.Environ())
}

// lendImages shows the store at target as if the user owned all of it.
func lendImages(store, target string) error {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: ordinary, Size: 1}}
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, Ptrace: true, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil { // stopped before its first instruction
		return err
	}
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
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
