package runner

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// gVisor's list. Its kernel is a process of the host, the sentry, and PID 1 and
// the job are processes of that kernel. So each control is read where it is
// enforced: what binds the job, in the guest; what binds the sentry, should a
// job take it over, on the host.

// sentryMask are the capabilities that runsc gives the sentry, in the user
// namespace of the sandbox: what a file server needs for the files of its range,
// and to trace its own processes.
const sentryMask = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SYS_PTRACE

// guestLimits replaces those of limitControls that bind the guest's processes:
// the host's own numbers are the sentry's.
func guestLimits(spec sandbox.Spec, r Ready, a sandbox.Applied) []control {
	l := spec.Limits
	tasks := sandbox.GuestTasks(l.PIDs)
	own := map[string]control{
		"pids": {
			"pids", r.Procs > 0 && r.Procs <= l.PIDs && a.PIDs > 0 && a.PIDs <= tasks,
			fmt.Sprintf("%d guest processes, %d tasks of the host", r.Procs, a.PIDs),
		},
		"open_files": {"open_files", r.Files > 0 && r.Files <= l.OpenFiles, fmt.Sprintf("%d files", r.Files)},
		"core_files": {
			"core_files", r.Core <= l.CoreBytes && a.Core <= l.CoreBytes,
			fmt.Sprintf("%d bytes, the sentry's own %d", r.Core, a.Core),
		},
	}
	all := limitControls(spec, a)
	for i, c := range all {
		if guest, found := own[c.name]; found {
			all[i] = guest
		}
	}
	return all
}

func guestIdentity(r Ready, a sandbox.Applied) []control {
	return []control{
		{
			// The guest shows no map: its ids are the sentry's to translate.
			"user_namespace", a.FirstID > 0 && a.IDs == 65_536 && unmapped(r.UIDMap) && unmapped(r.GIDMap),
			fmt.Sprintf("ids %d+%d, inside %v %v", a.FirstID, a.IDs, r.UIDMap, r.GIDMap),
		},
		{
			// runsc makes no cgroup namespace: nothing in the guest shows one.
			"namespaces", a.Shared == "" || a.Shared == "cgroup", fmt.Sprintf("shared with the runner: %q", a.Shared),
		},
		initCapabilities(r, r.Init.Bounding),
		commandCapabilities(r),
		{"sentry_capabilities", a.Caps&^sentryMask == 0, fmt.Sprintf("bounding set %#x by the host", a.Caps)},
		noNewPrivs(r, a),
		{"seccomp", a.Seccomp == 2, fmt.Sprintf("the sentry's mode is %d by the host", a.Seccomp)},
		initHidden(r),
	}
}

// unmapped is the map of a guest that knows no user namespace but its first.
func unmapped(m []IDMap) bool {
	return len(m) == 1 && m[0].Inside == 0 && m[0].Outside == 0 && m[0].Count >= 1<<32-1
}

// guestMounts: the guest shows nosuid, but not nodev, which is the host's to
// show for everything the sandbox may write to.
func guestMounts(r Ready, a sandbox.Applied) []control {
	var loose []string
	for _, m := range r.Mounts {
		if m.Writable() && !m.Has("nosuid") {
			loose = append(loose, m.Path)
		}
	}
	return []control{
		rootReadOnly(r),
		{
			"mounts", len(loose) == 0 && a.NoDevices,
			fmt.Sprintf("writable with set-id: %v, without devices by the host: %t", loose, a.NoDevices),
		},
		overlayPlain(a),
	}
}
