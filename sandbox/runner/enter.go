package runner

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
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
func enter() error {
	runtime.LockOSThread() // never unlocked: the thread is changed for good
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making the runner's namespaces: %w", err)
	}
	if err := dropThread(capabilityMask()); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(socketFD, unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keeping the runner's socket: %w", err)
	}
	args := append(append([]string{}, os.Args...), enteredFlag)
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
func settle(stage string) error {
	if err := checkEntered(); err != nil {
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

func checkEntered() error {
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
	for _, name := range []string{"mnt", "net"} {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		theirs, err2 := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/" + name)
		if err != nil || err2 != nil || ours == theirs {
			return fmt.Errorf("runner's %s namespace: %w", name, errors.Join(err, err2, confine.ErrNotApplied))
		}
	}
	return nil
}
