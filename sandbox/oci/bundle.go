package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// bundleVersion is the oldest that has all we use: some releases of crun
// refuse later ones.
const bundleVersion = "1.0.2"

// initCaps are what PID 1 keeps: to take the job's identity, to empty its
// bounding set and to end its processes.
var initCaps = []string{"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL"}

// plan is all that a bundle depends on.
type plan struct {
	rootfs  string // absolute; the overlay's mount point
	cgroup  string // relative to our own
	first   uint32 // of the id range
	limits  policies.Limits
	cpus    int  // whole CPUs; never 0
	swap    bool // the kernel accounts for swap
	seccomp *specs.LinuxSeccomp
	guest   bool // the runtime brings its own kernel
	// unable are the controls that this host can't enforce: a runtime that is
	// asked for their limits doesn't start.
	unable []policies.Control
	// rootless: no cgroup can be asked for, and tasks are limited by user id.
	rootless bool
	userns   string // path of a user namespace that maps the range; empty: the runtime makes one
}

// bundle writes down one container. Every bundle has a fresh /dev, no terminal,
// and no writable mount at or above /proc, /sys and /dev (attack case A06).
func bundle(p plan) *specs.Spec {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: p.first, Size: rangeSize}}
	spec := &specs.Spec{
		Version:  bundleVersion,
		Process:  process(p),
		Root:     &specs.Root{Path: p.rootfs, Readonly: true},
		Hostname: "sandbox",
		Mounts:   mounts(p),
		Linux: &specs.Linux{
			UIDMappings: ids, GIDMappings: ids,
			Sysctl:        map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
			Resources:     resources(p),
			CgroupsPath:   p.cgroup,
			Namespaces:    namespaces(p.userns),
			Seccomp:       p.seccomp,
			MaskedPaths:   linux.Masked,
			ReadonlyPaths: linux.ReadOnly,
		},
	}
	if p.rootless {
		spec.Linux.Resources, spec.Linux.CgroupsPath = nil, ""
	}
	return spec
}

// namespaces are all that there are. The mappings stand beside a user namespace
// that is joined as well: old runtimes want them, new ones compare.
func namespaces(userns string) []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{{Type: specs.UserNamespace, Path: userns}}
	for _, t := range []specs.LinuxNamespaceType{
		specs.PIDNamespace,
		specs.MountNamespace, specs.NetworkNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.CgroupNamespace,
	} {
		all = append(all, specs.LinuxNamespace{Type: t})
	}
	return all
}

func process(p plan) *specs.Process {
	score := max(0, ownScore())
	process := &specs.Process{
		User: specs.User{}, Args: []string{sandbox.InitPath}, Env: []string{}, Cwd: "/",
		Capabilities:    &specs.LinuxCapabilities{Bounding: initCaps, Effective: initCaps, Permitted: initCaps},
		NoNewPrivileges: true, OOMScoreAdj: &score,
		Rlimits: []specs.POSIXRlimit{
			rlimit("RLIMIT_NOFILE", unix.RLIMIT_NOFILE, uint64(p.limits.OpenFiles)),
			rlimit("RLIMIT_CORE", unix.RLIMIT_CORE, uint64(p.limits.CoreBytes)),
			// As with inotify (boundedNamespace), what these count is the host
			// root's as well.
			rlimit("RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, linux.QueueShare(hard(unix.RLIMIT_MSGQUEUE))),
			rlimit("RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING, linux.SignalShare(hard(unix.RLIMIT_SIGPENDING))),
		},
	}
	if p.guest || p.rootless {
		// On the host's kernel this counts by user namespace and id (before Linux
		// 5.14 by id alone: for all sandboxes that share the range), so that it
		// stands in for a cgroup only where there is none; in a guest it refuses a
		// fork, where the host's limit would end everything.
		process.Rlimits = append(process.Rlimits, rlimit("RLIMIT_NPROC", unix.RLIMIT_NPROC, uint64(p.limits.PIDs)))
	}
	return process
}

// ownScore is the lowest oom_score_adj that may be given without a capability.
func ownScore() int {
	n, err := linux.ReadInt("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	return int(n)
}

// hard is a limit of our own.
func hard(which int) uint64 {
	var have unix.Rlimit
	if err := unix.Getrlimit(which, &have); err != nil {
		return 0
	}
	return have.Max
}

// rlimit clamps to the hard limit that we hold ourselves: without
// CAP_SYS_RESOURCE more is refused, and the start with it.
func rlimit(name string, which int, want uint64) specs.POSIXRlimit {
	want = min(want, hard(which))
	return specs.POSIXRlimit{Type: name, Soft: want, Hard: want}
}

func resources(p plan) *specs.LinuxResources {
	memory := &specs.LinuxMemory{Limit: &p.limits.MemoryBytes}
	if p.swap {
		memory.Swap = &p.limits.MemoryBytes
	}
	period := uint64(100_000)
	quota := int64(p.cpus) * int64(period)
	tasks := p.limits.PIDs
	if p.guest {
		tasks = sandbox.GuestTasks(tasks)
	}
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if !slices.Contains(p.unable, policies.ControlMemory) {
		r.Memory = memory
	}
	if !slices.Contains(p.unable, policies.ControlCPU) {
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if !slices.Contains(p.unable, policies.ControlPIDs) {
		r.Pids = &specs.LinuxPids{Limit: &tasks}
	}
	return r
}

func mounts(p plan) []specs.Mount {
	shm := "size=" + strconv.FormatInt(p.limits.ShmBytes, 10)
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{
			Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"ro", "nosuid", "strictatime", "mode=755", "size=65536k"},
		},
		{
			Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{
			Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "noexec", "nodev", "mode=1777", shm, "nr_inodes=65536"},
		},
		{
			Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
			Options: []string{"ro", "nosuid", "noexec", "nodev"},
		},
		{
			Destination: "/sys", Type: "sysfs", Source: "sysfs",
			Options: []string{"ro", "nosuid", "noexec", "nodev"},
		},
		{
			Destination: "/run", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "noexec", "mode=755", "size=16m", "nr_inodes=4096"},
		},
	}
	for _, dir := range linux.Writable {
		all = append(all, specs.Mount{
			Destination: dir, Type: "bind", Source: filepath.Join(p.rootfs, dir),
			Options: []string{"bind", "rw", "nosuid", "nodev"},
		})
	}
	return all
}

// writeBundle stores config.json where the runtime looks for it.
func writeBundle(dir string, spec *specs.Spec) error {
	raw, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encoding bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		return fmt.Errorf("writing bundle: %w", err)
	}
	return nil
}
