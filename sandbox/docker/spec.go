package docker

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// The labels of everything in an engine that is ours.
const (
	labelInstance = "surf.veyra.instance"
	labelPlace    = "surf.veyra.place" // see origin
	labelBoot     = "surf.veyra.boot"
	labelJob      = "surf.veyra.job"
	labelPhase    = "surf.veyra.phase"
	labelImage    = "surf.veyra.image"
	labelStore    = "surf.veyra.store" // of which an image is a copy
)

// plan is all that a container depends on.
type plan struct {
	name, image, runtime string
	guest                bool   // the runtime brings its own kernel
	source               string // the graft's directory
	bare                 bool   // no image of the store
	instance, job, phase string
	origin               origin
	limits               policies.Limits
	cpus                 int // whole CPUs; never 0
	ulimits              []*container.Ulimit
	seccomp              string // OCI JSON
}

// container writes down one container. Whatever is left out here an engine fills
// in by its age and its owner's settings, so nothing is: a test names the fields.
func (p plan) container() (*container.Config, *container.HostConfig) {
	never := false
	config := &container.Config{
		Hostname: "sandbox", User: "0:0", Image: p.image, Entrypoint: []string{sandbox.InitPath}, Cmd: []string{},
		WorkingDir: "/", Env: []string{}, AttachStdin: true, AttachStdout: true, AttachStderr: true, OpenStdin: true, StdinOnce: true,
		// With it an engine makes no network of its own for the container; runsc
		// would then have no loopback.
		NetworkDisabled: !p.guest,
		Healthcheck:     &container.HealthConfig{Test: []string{"NONE"}},
		Labels: map[string]string{
			labelInstance: p.instance, labelJob: p.job, labelPhase: p.phase, labelPlace: p.origin.place, labelBoot: p.origin.boot,
		},
	}
	host := &container.HostConfig{
		NetworkMode: "none", IpcMode: "none", CgroupnsMode: "private", PidMode: "", UTSMode: "", UsernsMode: "",
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     container.LogConfig{Type: "none"}, Runtime: p.runtime, ReadonlyRootfs: true, Init: &never,
		CapDrop: []string{"ALL"}, CapAdd: []string{"SETUID", "SETGID", "SETPCAP", "KILL"},
		SecurityOpt: []string{"no-new-privileges=true", "seccomp=" + p.seccomp},
		Resources:   p.resources(), Mounts: p.mounts(), Tmpfs: p.tmpfs(),
		Sysctls:     map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		MaskedPaths: linux.Masked, ReadonlyPaths: linux.ReadOnly,
	}
	return config, host
}

func (p plan) resources() container.Resources {
	tasks := p.limits.PIDs
	ulimits := slices.Clone(p.ulimits)
	if p.guest {
		// The guest's kernel has a limit of its own, and the host's counts its
		// own tasks as well.
		ulimits = append(ulimits, &container.Ulimit{Name: "nproc", Soft: tasks, Hard: tasks})
		tasks = sandbox.GuestTasks(tasks)
	}
	never := false
	return container.Resources{
		Memory: p.limits.MemoryBytes, MemorySwap: p.limits.MemoryBytes, PidsLimit: &tasks, OomKillDisable: &never,
		CPUPeriod: 100_000, CPUQuota: int64(p.cpus) * 100_000,
		Ulimits: ulimits,
	}
}

// rlimits are what binds each process of a sandbox, by the engine's names: of what
// the engine may have, a sandbox gets so much.
var rlimits = map[string]struct {
	which int
	of    func(l policies.Limits, engines uint64) uint64
}{
	"nofile":     {unix.RLIMIT_NOFILE, func(l policies.Limits, n uint64) uint64 { return min(uint64(l.OpenFiles), n) }},
	"core":       {unix.RLIMIT_CORE, func(l policies.Limits, n uint64) uint64 { return min(uint64(l.CoreBytes), n) }},
	"msgqueue":   {unix.RLIMIT_MSGQUEUE, func(_ policies.Limits, n uint64) uint64 { return linux.QueueShare(n) }},
	"sigpending": {unix.RLIMIT_SIGPENDING, func(_ policies.Limits, n uint64) uint64 { return linux.SignalShare(n) }},
}

// ulimits are a sandbox's, within what the engine itself may have: above that a
// start fails.
func (e *engine) ulimits(l policies.Limits) ([]*container.Ulimit, error) {
	pid, err := e.listener(context.Background())
	if err != nil {
		return nil, err
	}
	var all []*container.Ulimit
	for _, name := range slices.Sorted(maps.Keys(rlimits)) {
		var have unix.Rlimit
		if err := unix.Prlimit(pid, rlimits[name].which, nil, &have); err != nil {
			return nil, fmt.Errorf("reading the engine's limits: %w", err)
		}
		n := int64(min(rlimits[name].of(l, have.Max), math.MaxInt64))
		all = append(all, &container.Ulimit{Name: name, Soft: n, Hard: n})
	}
	return all, nil
}

// mounts are what a container gets of us: the writable places of the overlay, and
// read-only what every sandbox finds at its root. A source that is missing is an
// error here; in the older form an engine would make it.
func (p plan) mounts() []mount.Mount {
	var all []mount.Mount
	for _, dir := range linux.Writable {
		all = append(all, p.bind(dir, false))
	}
	names := fixed
	if p.bare {
		names = append(slices.Clip(names), "/etc/passwd", "/etc/group")
	}
	for _, name := range names {
		all = append(all, p.bind(name, true))
	}
	if !p.guest {
		pts := mount.Mount{Type: mount.TypeBind, Source: path.Join(p.source, ptsName), Target: "/dev/pts"}
		pts.BindOptions = &mount.BindOptions{Propagation: mount.PropagationPrivate}
		all = append(all, pts)
	}
	return all
}

// fixed is what every sandbox finds at its root.
var fixed = []string{path.Dir(sandbox.InitPath), "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}

// The names of what is lent.
const (
	rootName = "root"
	ptsName  = "pts"
)

func (p plan) bind(at string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: path.Join(p.source, rootName, at), Target: at, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationPrivate},
	}
}

// What the file systems in memory may hold besides the limits.
const (
	runKiB    = "16384"
	runInodes = "4096"
	shmInodes = "65536"
)

// tmpfs are the file systems in memory. /dev is among them because an engine's own
// stays writable beside a read-only root. They are given as strings: in the newer
// form engines drop options that they don't know.
func (p plan) tmpfs() map[string]string {
	all := map[string]string{
		"/run":     "rw,nosuid,nodev,noexec,mode=755,size=" + runKiB + "k,nr_inodes=" + runInodes,
		"/dev/shm": fmt.Sprintf("rw,nosuid,nodev,noexec,mode=1777,size=%d,nr_inodes="+shmInodes, p.limits.ShmBytes),
	}
	if p.guest {
		// Instead of the engine's mounts of control groups, which a guest's kernel
		// imitates, writable.
		all["/sys/fs/cgroup"] = "ro,nosuid,nodev,noexec,mode=755,size=4k"
	} else {
		all["/dev"] = "ro,nosuid,dev,noexec,mode=755,size=64k"
	}
	return all
}

// containerName is the same for the same sandbox of an instance, so that a
// container whose answer was lost is found again.
func containerName(label, id string) string { return label + "-" + strings.ToLower(id) }
