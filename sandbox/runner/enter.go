package runner

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
)

// capabilities are all that the runner keeps; each was taken away once to see
// what breaks. Overlays act with the credentials of whoever mounted them: a
// runner without FOWNER and FSETID starts sandboxes in which chmod, utimes and
// cp -p fail and setgid bits vanish. SYS_CHROOT and SYS_PTRACE are runc's.
var capabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN,
}

func capabilityMask() uint64 {
	var mask uint64
	for _, c := range capabilities {
		mask |= 1 << uint(c)
	}
	return mask
}

// enteredFlag marks the second half of the start.
const enteredFlag = "--entered"

// enter takes namespaces and capabilities away from one thread and executes the
// same program on it: execve ends every other thread, so nothing is left that
// still holds them. It returns only when that failed.
func enter(rootless bool) error {
	runtime.LockOSThread() // never unlocked: the thread is changed for good
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making the runner's namespaces: %w", err)
	}
	if rootless {
		// What the user may read as a member of a group is no sandbox's.
		if err := unix.Setgroups(nil); err != nil {
			return fmt.Errorf("leaving all groups: %w", err)
		}
	}
	if err := dropThread(capabilityMask()); err != nil {
		return err
	}
	return again(enteredFlag)
}

// again executes this program with one flag more.
func again(flag string) error {
	if _, err := unix.FcntlInt(socketFD, unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keeping the runner's socket: %w", err)
	}
	args := append(append([]string{}, os.Args...), flag)
	err := syscall.Exec("/proc/self/exe", args, os.Environ())
	return fmt.Errorf("executing the runner: %w", err)
}

// dropThread narrows the calling thread to keep.
func dropThread(keep uint64) error {
	for c := range 64 {
		if keep&(1<<uint(c)) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // one past the kernel's last
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	sets := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("setting the runner's capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// settle finishes the start in the new process: it reads back what enter did on
// every thread, cuts the mount namespace off and puts a tmpfs over stage.
func settle(stage, outside string) error {
	if err := checkEntered(outside); err != nil {
		return err
	}
	// Slave, not private: what the host unmounts must not live on in here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cutting off the mount namespace: %w", err)
	}
	if err := unix.Mount("veyra", stage, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755,size=1g"); err != nil {
		return fmt.Errorf("mounting the runner's tmpfs: %w", err)
	}
	// Sandboxes become our children when their runtime has done its work.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming a subreaper: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming undumpable: %w", err)
	}
	return nil
}

func checkEntered(outside string) error {
	threads, err := confine.Threads(os.Getpid())
	if err != nil {
		return err
	}
	want := capabilityMask()
	for _, t := range threads {
		if t.Permitted != want || t.Effective != want || t.Bounding != want ||
			t.Inheritable|t.Ambient != 0 || !t.NoNewPrivs {
			return fmt.Errorf("runner's thread %d has other capabilities than it should: %w", t.ID, confine.ErrNotApplied)
		}
	}
	if outside == "" {
		if outside, err = namespaces(os.Getppid(), "mnt", "net"); err != nil {
			return err
		}
	}
	ours, err := namespaces(os.Getpid(), "mnt", "net")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(ours) {
		if slices.Contains(strings.Fields(outside), name) {
			return fmt.Errorf("the runner shares %s: %w", name, confine.ErrNotApplied)
		}
	}
	return nil
}

// namespaces names those of a process, such as "mnt:[4026531841]", by spaces.
func namespaces(pid int, kinds ...string) (string, error) {
	var all []string
	for _, kind := range kinds {
		name, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + kind)
		if err != nil {
			return "", fmt.Errorf("looking at a %s namespace: %w", kind, err)
		}
		all = append(all, name)
	}
	return strings.Join(all, " "), nil
}
