package proof

import "github.com/veyra-labs/veyra-sandboxd/internal/attack"

// namespaces: on gVisor a job may become root of a user namespace of the guest,
// and mount there; its root is the job's uid on the host, and what is not the
// job's stays out of reach.
var namespaces = refusal{
	must: []string{
		"clone_user", "unshare_user", "setns_user", "clone_mnt", "unshare_mnt", "clone_net", "unshare_net", "clone_pid",
		"unshare_pid", "clone_ipc", "unshare_ipc", "clone_uts", "unshare_uts", "unshare_user_mount", "clone3",
		"guest_root_write", "guest_root_device",
	},
	kernel: byFilter,
	butGVisor: map[string]results{
		"clone_user": {attack.Done}, "unshare_user": {attack.Done}, "setns_user": {attack.Done}, "clone_mnt": {attack.Done},
		"unshare_user_mount": {attack.Done}, "clone3": {attack.Done},
	},
}

var mounts = refusal{
	must: []string{
		"mount", "bind", "remount", "shared", "umount", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
		"fsmount", "fspick", "mount_setattr",
	},
	kernel: byFilter,
}

// calls: gVisor has a keyring and a log of its own, which hold nothing of the
// host.
var calls = refusal{
	must: []string{
		"open_by_handle_at", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
		"keyctl", "add_key", "request_key", "kcmp", "swapon", "swapoff", "init_module", "finit_module", "delete_module",
		"kexec_load", "clock_settime", "settimeofday", "reboot", "acct", "quotactl", "syslog", "vhangup", "fanotify_init",
		"sethostname", "setdomainname", "personality", "ptrace_1", "process_vm_readv_1", "pidfd_getfd",
	},
	kernel:    byFilter,
	butGVisor: map[string]results{"keyctl": {attack.Done}, "syslog": {attack.Done}},
}

// families: a filter refuses with EPERM before the kernel looks for a module.
var families = refusal{
	must: []string{
		"af_1", "af_2", "af_10", "af_15", "af_16", "af_17", "af_38", "af_40", "af_44", "netlink_0", "netlink_9", "netlink_15",
		"af_38_high", "af_40_high", "af_17_high", "af_16_high", "pair_38",
	},
	kernel: results{"EPERM"},
	but: map[string]results{
		"af_1": {attack.Done}, "af_2": {attack.Done}, "af_10": {attack.Done, "EAFNOSUPPORT"},
		"af_16": {attack.Done}, "netlink_0": {attack.Done},
	},
	butGVisor: map[string]results{"netlink_15": {attack.Done}, "af_16_high": {attack.Done}},
}

// doors: a filter for one architecture ends whoever comes by another. A kernel
// without the door has no such program and no such entry.
var doors = refusal{
	must:   []string{"elf32"},
	kernel: results{"SIGSYS", "SIGSEGV", "ENOSYS", "ENOEXEC", "EPERM"},
}

// initReach: gVisor lists numbers of descriptors and names of namespaces of the
// guest's PID 1, and lets none be opened.
var initReach = refusal{
	must: []string{
		"read_exe", "read_mem", "read_environ", "read_fd", "read_maps", "read_root", "read_cwd", "read_ns/mnt", "write_exe", "write_mem",
		"write_oom_score_adj", "program_write", "program_remove", "program_rename", "program_chmod", "program_truncate",
		"program_own_exe", "kill_9", "kill_19", "tgkill", "pidfd_kill", "prlimit", "renice", "ptrace_attach", "process_vm_writev",
	},
	kernel: append(results{"EXDEV", "EINVAL", "ETXTBSY"}, byRights...),
	butGVisor: map[string]results{
		"read_fdinfo": {attack.Done}, "read_ns/mnt": {attack.Done}, "read_ns/net": {attack.Done}, "read_ns/pid": {attack.Done},
		"read_ns/user": {attack.Done},
	},
}

// devices: gVisor's /dev has a device of its own for user-mode file systems.
var devices = refusal{
	must: []string{
		"mem@/workspace", "kmsg@/workspace", "loop-control@/workspace", "loop0@/workspace", "sda@/workspace", "mem@/home/veyra",
		"mem@/tmp", "mem@/var/tmp", "mem@/dev/shm",
	},
	kernel:    byRights,
	butGVisor: map[string]results{"present@/dev/fuse": {attack.Done}, "present@/dev/net": {attack.Done}},
}

var setID = refusal{
	must:   []string{"run@/workspace", "run@/home/veyra", "run@/tmp", "run@/var/tmp", "capability@/workspace", "chown@/workspace"},
	kernel: append(results{attack.Nothing, "ENOTSUP", "EOPNOTSUPP"}, byRights...),
}

var settings = refusal{
	must: []string{
		"write@/proc/sys/kernel/core_pattern", "write@/proc/sysrq-trigger", "write@/proc/sys/fs/binfmt_misc/register",
		"write@/sys/kernel/uevent_helper", "write@/sys/fs/cgroup/release_agent", "write@/sys/fs/cgroup/devices/devices.allow",
		"write@/sys/fs/cgroup/memory/memory.limit_in_bytes", "write@/sys/fs/cgroup/pids.max", "walk@/proc/sys", "walk@/sys", "new_cgroup",
	},
	kernel: append(results{attack.Nothing, "EINVAL"}, byRights...),
}

var masked = refusal{
	must: []string{
		"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms", "/proc/kmsg", "/sys/firmware", "/sys/kernel/debug",
		"/sys/fs/cgroup", "/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap", "/dev/mem", "/dev/kmsg",
	},
	kernel: append(results{attack.Nothing, "EIO"}, byRights...),
}

var root = refusal{
	must:   []string{"create@/", "create@/.veyra", "create@/dev", "create@/proc", "create@/sys", "create@/etc", "create@/run", "hosts", "resolv"},
	kernel: byRights,
}

// network: without a route an attempt fails at once; one that is on its way, or
// that somebody refused, has left.
var network = refusal{
	must: []string{
		"tcp@192.0.2.1", "udp@192.0.2.1", "icmp@192.0.2.1", "raw@192.0.2.1", "sctp@192.0.2.1", "tcp@169.254.169.254",
		"tcp@172.17.0.1", "udp@224.0.0.1", "udp@255.255.255.255", "tcp@2001:db8::1", "tcp@fd00:ec2::254", "udp@ff02::1", "loopback",
	},
	kernel: unreachable, gvisor: unreachable,
	but: map[string]results{"loopback": {attack.Done}},
}

var unreachable = results{
	"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EPERM", "EACCES", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EAFNOSUPPORT",
	"ENODEV", "ENXIO", "EINVAL", "ENOSYS",
}

var sockets = refusal{
	must: []string{
		"connect@/var/run/docker.sock", "planted@/var/run/docker.sock", "connect@/run/containerd/containerd.sock",
		"connect@/run/podman/podman.sock", "connect@/run/dbus/system_bus_socket", "connect@/tmp/.X11-unix/X0",
		"connect@/run/veyra-sandboxd/control.sock", "abstract@/tmp/.X11-unix/X0", "walk",
	},
	kernel: append(results{attack.Nothing}, byRights...),
	but: map[string]results{
		// Nobody listens in this network namespace.
		"abstract@/tmp/.X11-unix/X0": {"ECONNREFUSED"}, "abstract@/tmp/dbus-": {"ECONNREFUSED"},
		"abstract@/org/kernel/linux/storage/multipathd": {"ECONNREFUSED"}, "abstract@/containerd-shim": {"ECONNREFUSED"},
		"abstract@ISCSIADM_ABSTRACT_NAMESPACE": {"ECONNREFUSED"},
	},
}

var terminal = refusal{
	must: []string{
		"isatty_0", "isatty_1", "isatty_2", "open@/dev/tty", "tiocsti_0", "tiocsti_100000000", "tiocsti_10000000000", "tioclinux_0",
		"tioclinux_100000000",
	},
	kernel: append(results{"ENOTTY"}, byRights...),
	// Typing must not even reach a terminal's driver, except gVisor's, which has
	// no such request.
	but:       each(results{"EPERM"}, typing...),
	butGVisor: each(results{"ENOTTY"}, typing...),
}

var typing = []string{
	"tiocsti_0", "tiocsti_100000000", "tiocsti_10000000000", "tioclinux_0", "tioclinux_100000000", "tioclinux_10000000000",
}

// each gives every name the same results.
func each(r results, names ...string) map[string]results {
	all := map[string]results{}
	for _, name := range names {
		all[name] = r
	}
	return all
}

// priority: gVisor takes a nice value and gives nothing for it.
var priority = refusal{
	must:      []string{"fifo", "round_robin", "nice", "ioprio_real_time"},
	kernel:    results{"EPERM", "EACCES", "ENOSYS"},
	butGVisor: map[string]results{"nice": {attack.Done}},
}
