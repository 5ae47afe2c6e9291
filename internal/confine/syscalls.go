package confine

// signerCalls is what the signer may do once it is locked down: use open
// descriptors, and run Go. No descriptor can be made but the runtime's own for
// polling. See narrowed for those whose arguments are looked at, too.
var signerCalls = []string{
	"read", "write", "pread64", "fsync", "fdatasync", "ftruncate", "close",
	"fcntl", // non-blocking mode, asked for by the standard library
	"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2",
	"exit", "exit_group", "futex", "madvise", "munmap", "mmap", "mprotect", "clone", "tgkill",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
	"getpid", "gettid", "getrandom", "sched_yield", "sched_getaffinity",
	"nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "restart_syscall",
}

// supervisorRefuses is what the supervisor may never do, whatever the
// arguments; narrowed and supervisorNarrowed refuse more by argument.
var supervisorRefuses = []string{
	// No new program, no new process. clone3 hides its flags in memory.
	"execve", "execveat", "fork", "vfork", "clone3", "memfd_secret",
	// Other processes: their memory, descriptors, signals.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease",
	"kcmp", "pidfd_getfd", "pidfd_send_signal", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
	// Sockets of root's services are out of reach, and so is making a pair.
	"socketpair",
	// Mounts, roots, namespaces.
	"mount", "umount", "umount2", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig",
	"fsmount", "fspick", "mount_setattr", "pivot_root", "chroot", "unshare", "setns",
	"name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "swapon", "swapoff",
	// Machinery with a record of escapes, which nothing of ours uses.
	"bpf", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "perf_event_open",
	"keyctl", "add_key", "request_key", "fanotify_init", "modify_ldt", "personality", "vmsplice",
	"pkey_mprotect", "remap_file_pages", "lookup_dcookie", "nfsservctl", "uselib", "vhangup",
	// The machine: modules, clocks, names, ports, power.
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "sethostname",
	"setdomainname", "iopl", "ioperm", "syslog", "acct", "mknod", "mknodat", "_sysctl",
	// Ids are final, and with them the capability sets.
	"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
	"setgroups", "capset",
}
