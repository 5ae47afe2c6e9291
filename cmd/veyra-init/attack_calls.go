package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Magic numbers of calls that have no names in the unix package.
const (
	readImpliesExec = 0x0400000
	ioprioRealTime  = 1 << 13
)

// mountCalls are the interfaces of mounting. Their arguments are such that a
// kernel which lets them in either does it or complains of something else than
// rights.
func mountCalls() []call {
	tmpfs, where := text("tmpfs"), text("/tmp")
	noFD := ^uintptr(0)
	return []call{
		sys("mount", unix.SYS_MOUNT, tmpfs, where, tmpfs, 0, 0),
		sys("bind", unix.SYS_MOUNT, text("/proc"), where, 0, unix.MS_BIND, 0),
		sys("remount", unix.SYS_MOUNT, 0, text("/"), 0, unix.MS_REMOUNT|unix.MS_BIND, 0),
		sys("shared", unix.SYS_MOUNT, 0, text("/"), 0, unix.MS_SHARED, 0),
		sys("umount", unix.SYS_UMOUNT2, text("/proc/kcore"), unix.MNT_DETACH),
		sys("pivot_root", unix.SYS_PIVOT_ROOT, where, where),
		sys("chroot", unix.SYS_CHROOT, where),
		sys("open_tree", unix.SYS_OPEN_TREE, noFD, where, unix.OPEN_TREE_CLONE),
		sys("move_mount", unix.SYS_MOVE_MOUNT, noFD, where, noFD, where, 0),
		sys("fsopen", unix.SYS_FSOPEN, tmpfs, 0),
		sys("fsconfig", unix.SYS_FSCONFIG, noFD, 0, 0, 0, 0),
		sys("fsmount", unix.SYS_FSMOUNT, noFD, 0, 0),
		sys("fspick", unix.SYS_FSPICK, noFD, where, 0),
		sys("mount_setattr", unix.SYS_MOUNT_SETATTR, noFD, where, 0, scratchAddr(), 32),
	}
}

// kernelCalls reach into the kernel, the host's clock or other processes.
func kernelCalls() []call {
	none, page := text("/nonexistent"), scratchAddr()
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
	clock := address(&now)
	noFD := ^uintptr(0)
	return []call{
		sys("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, noFD, page, 0),
		sys("bpf", unix.SYS_BPF, 0, page, 48),
		sys("perf_event_open", unix.SYS_PERF_EVENT_OPEN, page, 0, noFD, noFD, 0),
		sys("userfaultfd", unix.SYS_USERFAULTFD, 1), // of user mode only: open to all by default
		sys("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, page),
		sys("io_uring_enter", unix.SYS_IO_URING_ENTER, noFD, 0, 0, 0, 0, 0),
		sys("io_uring_register", unix.SYS_IO_URING_REGISTER, noFD, 0, 0, 0),
		sys("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 0), // the id of the session's keyring
		sys("add_key", unix.SYS_ADD_KEY, text("user"), text("x"), page, 1, ^uintptr(2)),
		sys("request_key", unix.SYS_REQUEST_KEY, text("user"), text("x"), 0, 0),
		sys("kcmp", unix.SYS_KCMP, uintptr(unix.Getpid()), uintptr(unix.Getpid()), 1, 0, 0),
		sys("swapon", unix.SYS_SWAPON, none, 0),
		sys("swapoff", unix.SYS_SWAPOFF, none),
		sys("init_module", unix.SYS_INIT_MODULE, page, 0, page),
		sys("finit_module", unix.SYS_FINIT_MODULE, noFD, page, 0),
		sys("delete_module", unix.SYS_DELETE_MODULE, none, 0),
		sys("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0xdead),
		sys("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, clock),
		sys("settimeofday", unix.SYS_SETTIMEOFDAY, clock, 0),
		sys("reboot", unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, 0x12345, 0),
		sys("acct", unix.SYS_ACCT, none),
		sys("quotactl", unix.SYS_QUOTACTL, 0x800001, none, 0, 0),
		sys("syslog", unix.SYS_SYSLOG, 3, page, 16),
		sys("vhangup", unix.SYS_VHANGUP),
		sys("fanotify_init", unix.SYS_FANOTIFY_INIT, 0x200, 0),
		sys("sethostname", unix.SYS_SETHOSTNAME, page, 1),
		sys("setdomainname", unix.SYS_SETDOMAINNAME, page, 1),
		sys("personality", unix.SYS_PERSONALITY, readImpliesExec),
		sys("ptrace_1", unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0),
		sys("process_vm_readv_1", unix.SYS_PROCESS_VM_READV, 1, vector(page), 1, vector(0x400000), 1, 0),
		sys("pidfd_getfd", unix.SYS_PIDFD_GETFD, noFD, 0, 0),
	}
}

// vector is one stretch of eight bytes for calls that take many.
func vector(at uintptr) uintptr { return address(&[2]uintptr{at, 8}) }

// namespaces first tries to be born in a new one, as a process of a single
// thread can, then to make or enter one from this process.
func (a *attacker) namespaces() {
	tmpfs, where := text("tmpfs"), text("/tmp")
	mount := sys("mount", unix.SYS_MOUNT, tmpfs, where, tmpfs, 0, 0)
	kinds := []struct {
		name string
		flag uintptr
	}{
		{"user", unix.CLONE_NEWUSER},
		{"mnt", unix.CLONE_NEWNS},
		{"net", unix.CLONE_NEWNET},
		{"pid", unix.CLONE_NEWPID},
		{"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS},
		{"cgroup", unix.CLONE_NEWCGROUP},
	}
	for _, kind := range kinds {
		a.inChild("clone_"+kind.name, kind.flag)
		a.inChild("unshare_"+kind.name, 0, sys("unshare", unix.SYS_UNSHARE, kind.flag))
		fd, err := unix.Open("/proc/self/ns/"+kind.name, unix.O_RDONLY, 0)
		if err == nil {
			a.inChild("setns_"+kind.name, 0, sys("setns", unix.SYS_SETNS, uintptr(fd), kind.flag))
			continue
		}
		a.tried("setns_"+kind.name, err)
	}
	become := sys("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	a.inChild("unshare_user_mount", 0, become, mount)
	// What is left to whoever became root of a namespace of the guest.
	const atCWD = ^uintptr(99)
	file, node := text("/.veyra/init"), text("/workspace/.guest-node")
	a.inChild("guest_root_write", 0, become, sys("openat", unix.SYS_OPENAT, atCWD, file, unix.O_WRONLY, 0))
	a.inChild("guest_root_device", 0, become, sys("mknodat", unix.SYS_MKNODAT, atCWD, node, unix.S_IFCHR|0o666, uintptr(unix.Mkdev(1, 1))),
		sys("openat", unix.SYS_OPENAT, atCWD, node, unix.O_RDWR, 0))
	// The arguments of clone3 lie in memory, where no filter can look.
	args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)}
	a.inChild("clone3", 0, sys("clone3", unix.SYS_CLONE3, address(&args), unsafe.Sizeof(args)))
}

// families opens every kind of socket, and some families with bits set that the
// kernel ignores and a filter may not.
func (a *attacker) families() {
	for family := range uintptr(46) {
		a.tried(fmt.Sprintf("af_%d", family), anyKind(family, 0))
	}
	for protocol := range uintptr(24) {
		a.tried(fmt.Sprintf("netlink_%d", protocol), anyKind(unix.AF_NETLINK, protocol))
	}
	for _, family := range []uintptr{unix.AF_ALG, unix.AF_VSOCK, unix.AF_PACKET, unix.AF_XDP, unix.AF_KEY, unix.AF_NETLINK} {
		a.tried(fmt.Sprintf("af_%d_high", family), anyKind(family|1<<40, 0))
		a.tried(fmt.Sprintf("pair_%d", family), pair(family))
	}
}

// anyKind is nil if a socket of any type could be opened, else the error of the
// first try.
func anyKind(family, protocol uintptr) error {
	var first error
	for _, kind := range []uintptr{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, family, kind|unix.SOCK_CLOEXEC, protocol)
		if errno == 0 {
			_ = unix.Close(int(fd))
			return nil
		}
		if first == nil {
			first = errno
		}
	}
	return first
}

func pair(family uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SOCKETPAIR, family, unix.SOCK_DGRAM, 0, scratchAddr(), 0, 0)
	if errno == 0 {
		return nil
	}
	return errno
}

// schedule wants to come before others.
func (a *attacker) schedule() {
	first := [1]int32{1}
	param := address(&first)
	nice := ^uintptr(18) // -19
	a.all([]call{
		sys("fifo", unix.SYS_SCHED_SETSCHEDULER, 0, 1, param),
		sys("round_robin", unix.SYS_SCHED_SETSCHEDULER, 0, 2, param),
		sys("nice", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, nice),
		sys("ioprio_real_time", unix.SYS_IOPRIO_SET, 1, 0, ioprioRealTime),
	})
}
