package linux

import "github.com/veyra-labs/veyra-sandboxd/sandbox"

// Writable are the directories of the overlay that a sandbox may write to; all
// else of the root is read-only.
var Writable = []string{sandbox.Workspace, sandbox.Home, "/tmp", "/var/tmp"}

// Masked are hidden: they tell about the host or reach into it.
var Masked = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore",
	"/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/latency_stats", "/proc/sched_debug",
	"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/proc/slabinfo",
	"/sys/firmware", "/sys/kernel", "/sys/fs/cgroup", "/sys/fs/ext4", "/sys/class/dmi",
	"/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap", "/sys/block",
}

// ReadOnly may be read, but not written.
var ReadOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
