package runner

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// initMask is what PID 1 keeps, and all that it may keep.
const initMask = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_KILL

// control is one thing that was asked for and what was read back.
type control struct {
	name string
	ok   bool
	seen string
}

// waived says whether the sandbox may be used though c is not as it was asked
// for: the driver knew from its start that this host can't enforce it, and the
// policy goes without. A host that can and did not is no reason.
func (c control) waived(policy policies.Policy, a sandbox.Applied) bool {
	name := policies.Control(c.name)
	return !c.ok && slices.Contains(a.Unable, name) && policy.Tolerates(name)
}

// compare returns an error that names every control that is not as the Spec
// asks and that the policy does not go without: there is no silent fallback.
func compare(policy policies.Policy, spec sandbox.Spec, ready Ready, a sandbox.Applied) error {
	var failed error
	for _, c := range controls(spec, ready, a) {
		if !c.ok && !c.waived(policy, a) {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", c.name, c.seen))
		}
	}
	if failed == nil {
		return nil
	}
	return &sandbox.Error{Kind: sandbox.KindStart, Op: "reading controls back", Err: failed}
}

// controls lists what both sides saw of a sandbox that has just started. Each
// isolation has a list of its own, since each shows other things; one that has
// no list is no isolation.
func controls(spec sandbox.Spec, r Ready, a sandbox.Applied) []control {
	known := control{"isolation", true, string(a.Isolation)}
	switch a.Isolation {
	case sandbox.IsolationUserns:
		return slices.Concat([]control{known}, limitControls(spec, a), identityControls(r, a), mountControls(r, a),
			[]control{shmControl(spec, r.Mounts)})
	case sandbox.IsolationSeccomp:
		return slices.Concat([]control{known}, limitControls(spec, a), hostIdentity(r, a), mountControls(r, a),
			[]control{shmControl(spec, r.Mounts)})
	case sandbox.IsolationGVisor:
		return slices.Concat([]control{known}, guestLimits(spec, r, a), guestIdentity(r, a), guestMounts(r, a),
			[]control{shmControl(spec, r.Mounts)})
	}
	return []control{{"isolation", false, fmt.Sprintf("%q is not known", a.Isolation)}}
}

func limitControls(spec sandbox.Spec, a sandbox.Applied) []control {
	l := spec.Limits
	cpus := l.CPUs
	if cpus == 0 {
		cpus = runtime.NumCPU()
	}
	cpus = min(cpus, runtime.NumCPU())
	return []control{
		{"memory", a.Memory == l.MemoryBytes, fmt.Sprintf("%d bytes", a.Memory)},
		{"swap", a.NoSwap, fmt.Sprintf("without swap: %t", a.NoSwap)},
		{"pids", a.PIDs == l.PIDs, fmt.Sprintf("%d tasks", a.PIDs)},
		{"cpu", a.CPUMilli > 0 && a.CPUMilli <= int64(cpus)*1000, fmt.Sprintf("%d/1000 cores", a.CPUMilli)},
		{"disk", a.Disk > 0 && a.Disk <= l.DiskBytes, fmt.Sprintf("%d bytes", a.Disk)},
		// mkfs fills whole groups with inodes.
		{"inodes", a.Inodes > 0 && a.Inodes <= l.Inodes+l.Inodes/4+8192, fmt.Sprintf("%d inodes", a.Inodes)},
		{"open_files", a.Files > 0 && a.Files <= l.OpenFiles, fmt.Sprintf("%d files", a.Files)},
		{"core_files", a.Core <= l.CoreBytes, fmt.Sprintf("%d bytes", a.Core)},
		{"network", a.Net == "lo", fmt.Sprintf("interfaces: %q", a.Net)},
	}
}

// shmControl reads the size of the shared memory's file system.
func shmControl(spec sandbox.Spec, mounts []Mount) control {
	for _, m := range mounts {
		if m.Path != "/dev/shm" {
			continue
		}
		for _, option := range m.Super {
			var kib int64
			if n, _ := fmt.Sscanf(option, "size=%dk", &kib); n == 1 {
				// The kernel rounds up to whole pages.
				return control{"shm", kib<<10 <= spec.Limits.ShmBytes+4095, option}
			}
		}
	}
	return control{"shm", false, "no size is shown"}
}

func identityControls(r Ready, a sandbox.Applied) []control {
	mapped := func(m []IDMap) bool {
		return len(m) == 1 && m[0] == IDMap{Inside: 0, Outside: int64(a.FirstID), Count: int64(a.IDs)}
	}
	return []control{
		{
			"user_namespace", a.FirstID > 0 && a.IDs == 65_536 && mapped(r.UIDMap) && mapped(r.GIDMap),
			fmt.Sprintf("ids %d+%d, inside %v %v", a.FirstID, a.IDs, r.UIDMap, r.GIDMap),
		},
		{"namespaces", a.Own == 7, fmt.Sprintf("%d of 7 are its own", a.Own)},
		initCapabilities(r, a.Caps),
		commandCapabilities(r),
		noNewPrivs(r, a),
		{
			"seccomp", r.Forker.Seccomp == 2 && r.Init.Seccomp == 2 && a.Seccomp == 2,
			fmt.Sprintf("mode %d, by the host %d", r.Forker.Seccomp, a.Seccomp),
		},
		initHidden(r),
	}
}

// hostIdentity is for sandboxes without a user namespace. The control is on the
// list all the same, and missing: a policy has to go without it.
func hostIdentity(r Ready, a sandbox.Applied) []control {
	all := identityControls(r, a)
	for i, c := range all {
		if c.name == "namespaces" {
			all[i] = control{c.name, a.Own == 6 && a.Shared == "user", fmt.Sprintf("%d of 7 are its own, shared: %q", a.Own, a.Shared)}
		}
	}
	return all
}

// initCapabilities compares PID 1's sets with the four that it keeps; host is
// its bounding set by the host, where the host can tell.
func initCapabilities(r Ready, host uint64) control {
	i := r.Init
	return control{
		"init_capabilities", i.Effective == initMask && i.Permitted == initMask && i.Bounding == initMask &&
			host == initMask && i.Inheritable|i.Ambient == 0,
		fmt.Sprintf("effective %#x, bounding %#x, by the host %#x", i.Effective, i.Bounding, host),
	}
}

func commandCapabilities(r Ready) control {
	f := r.Forker
	return control{"command_capabilities", f.Bounding|f.Inheritable|f.Ambient == 0, fmt.Sprintf("bounding set %#x", f.Bounding)}
}

func noNewPrivs(r Ready, a sandbox.Applied) control {
	return control{
		"no_new_privs", r.Forker.NoNewPrivs == 1 && r.Init.NoNewPrivs == 1 && a.NoNew,
		fmt.Sprintf("init %d, commands %d, by the host %t", r.Init.NoNewPrivs, r.Forker.NoNewPrivs, a.NoNew),
	}
}

func initHidden(r Ready) control {
	return control{"init_hidden", r.Dumpable == 0, fmt.Sprintf("dumpable %d", r.Dumpable)}
}

// exempt are writable mounts that need device nodes: the root's terminals.
var exempt = map[string]bool{"/dev/pts": true}

// nodes are the device files that the runtime binds into /dev.
var nodes = map[string]bool{
	"/dev/null": true, "/dev/zero": true, "/dev/full": true,
	"/dev/random": true, "/dev/urandom": true, "/dev/tty": true,
}

func mountControls(r Ready, a sandbox.Applied) []control {
	loose := looseMounts(r.Mounts)
	return []control{
		rootReadOnly(r),
		{"mounts", len(loose) == 0, fmt.Sprintf("writable with set-id or devices: %v", loose)},
		overlayPlain(a),
	}
}

func rootReadOnly(r Ready) control {
	root := false
	for _, m := range r.Mounts {
		if m.Path == "/" {
			root = !m.Writable()
		}
	}
	return control{"root_read_only", root, fmt.Sprintf("read-only: %t", root)}
}

func overlayPlain(a sandbox.Applied) control {
	return control{"overlay", a.Overlay, fmt.Sprintf("metacopy, index, redirect_dir off: %t", a.Overlay)}
}

// looseMounts lists writable mounts that honour set-id bits or device nodes.
func looseMounts(mounts []Mount) []string {
	loose := []string{}
	for _, m := range mounts {
		if !m.Writable() || exempt[m.Path] || nodes[m.Path] || maskedNode(m) {
			continue
		}
		if !m.Has("nosuid") || !m.Has("nodev") {
			loose = append(loose, m.Path)
		}
	}
	return loose
}

// maskedNode recognises a masked file: /dev/null bound over it. The host's /dev
// is a tmpfs where the host itself is a container.
func maskedNode(m Mount) bool {
	return m.Root == "/null" && (m.Type == "devtmpfs" || m.Type == "tmpfs") && strings.HasPrefix(m.Path, "/proc/")
}
