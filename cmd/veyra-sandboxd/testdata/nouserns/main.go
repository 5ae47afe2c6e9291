// Command nouserns runs its arguments as a host does that has no user
// namespaces: clone and unshare refuse to make one, and clone3, whose flags a
// filter can't see, is not known.
package main

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread() // the filter is this thread's, which executes the program
	if err := forbid(); err != nil {
		fmt.Fprintln(os.Stderr, "nouserns:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "nouserns:", syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
	os.Exit(1)
}

// Offsets in struct seccomp_data of the call's number and the low half of its
// first argument, on little-endian machines.
const (
	offNumber = 0
	offFirst  = 16
)

func forbid() error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load(offNumber),
		equal(unix.SYS_CLONE3, 5, 0),
		equal(unix.SYS_CLONE, 1, 0),
		equal(unix.SYS_UNSHARE, 0, 2),
		load(offFirst),
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.CLONE_NEWUSER, Jt: 2},
		end(unix.SECCOMP_RET_ALLOW),
		end(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
		end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
