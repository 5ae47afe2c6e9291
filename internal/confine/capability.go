package confine

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capability is a Linux capability by its number, for example
// unix.CAP_SYS_ADMIN.
type Capability int

// errCgo is what a cgo build gets: its threads are out of the Go runtime's
// reach, so nothing could be promised for all of them.
var errCgo = errors.New("built with cgo: threads can't be confined")

func maskOf(set []Capability) uint64 {
	var mask uint64
	for _, c := range set {
		mask |= 1 << uint(c)
	}
	return mask
}

// allThreads runs one system call on every thread. The Go runtime ends the
// process when its result differs between threads, which is what we want.
func allThreads(what string, call, a1, a2, a3, a4 uintptr) error {
	if cgoBuild {
		return fmt.Errorf("%s: %w", what, errCgo)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(call, a1, a2, a3, a4, 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

// dropBounding empties the bounding set but for keep. It needs SETPCAP; a
// process without that can't gain anything by execve either once
// no_new_privs is set, and keeps the set that it was given.
func dropBounding(keep uint64) (dropped bool, err error) {
	own, err := ownEffective()
	if err != nil {
		return false, err
	}
	if own&(1<<unix.CAP_SETPCAP) == 0 {
		return false, nil
	}
	for c := uintptr(0); c < 64; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil {
			return true, nil // one past the kernel's last capability
		}
		if keep&(1<<c) != 0 {
			continue
		}
		what := fmt.Sprintf("dropping capability %d from the bounding set", c)
		if err := allThreads(what, unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0); err != nil {
			return false, err
		}
	}
	return true, nil
}

func ownEffective() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return 0, fmt.Errorf("reading own capabilities: %w", err)
	}
	return uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective), nil
}

// setCapabilities makes keep the permitted and effective set of every thread
// and empties the inheritable and ambient ones: a child that runs as uid 0 gets
// what the bounding set still holds, any other child gets nothing.
func setCapabilities(keep uint64) error {
	err := allThreads("clearing ambient capabilities",
		unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0)
	if err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	sets := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	// Called directly: only in the argument list of the call itself does the
	// compiler keep both in place for an address that is no pointer any more.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("setting capabilities: %w", errno)
	}
	return nil
}

// BuiltWithCgo reports whether this build can't confine its threads at all:
// Lockdown.Apply then fails. Only race-detector builds are made so.
func BuiltWithCgo() bool { return cgoBuild }
