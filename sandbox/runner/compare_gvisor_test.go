package runner

import (
	"math"
	"slices"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// seenGuest is what a sandbox of gVisor shows that is as it was asked for.
func seenGuest(t testing.TB) (sandbox.Spec, Ready, sandbox.Applied) {
	spec, ready, applied := seen(t)
	ids := []IDMap{{Inside: 0, Outside: 0, Count: math.MaxUint32}}
	ready.UIDMap, ready.GIDMap = ids, ids
	ready.Init.Seccomp, ready.Forker.Seccomp = 0, 0
	ready.Files, ready.Core, ready.Procs = spec.Limits.OpenFiles, 0, spec.Limits.PIDs
	ready.Mounts = []Mount{
		{Path: "/", Root: "/", Type: "9p", Options: []string{"ro"}},
		{Path: "/workspace", Root: "/", Type: "9p", Options: []string{"rw", "nosuid"}},
		{Path: "/dev/shm", Root: "/", Type: "tmpfs", Options: []string{"rw", "nosuid"}, Super: []string{"rw", "size=65536k"}},
	}
	applied.Isolation = sandbox.IsolationGVisor
	applied.PIDs = sandbox.GuestTasks(spec.Limits.PIDs)
	applied.Files = 1 << 20 // the sentry's own
	applied.Own, applied.Shared = 6, "cgroup"
	applied.Caps, applied.NoDevices = sentryMask, true
	return spec, ready, applied
}

// TestEveryControlOfAGuestCanFail is TestEveryControlCanFail for gVisor's list.
func TestEveryControlOfAGuestCanFail(t *testing.T) {
	eachCanFail(t, seenGuest, map[string][]func(*Ready, *sandbox.Applied){
		"isolation": {func(_ *Ready, a *sandbox.Applied) { a.Isolation = "runsc" }},
		"memory":    {func(_ *Ready, a *sandbox.Applied) { a.Memory++ }},
		"swap":      {func(_ *Ready, a *sandbox.Applied) { a.NoSwap = false }},
		"pids": {
			func(_ *Ready, a *sandbox.Applied) { a.PIDs = -1 },
			func(_ *Ready, a *sandbox.Applied) { a.PIDs++ },
			func(r *Ready, _ *sandbox.Applied) { r.Procs = math.MaxInt64 },
			func(r *Ready, _ *sandbox.Applied) { r.Procs = 0 },
		},
		"cpu":        {func(_ *Ready, a *sandbox.Applied) { a.CPUMilli = 1001 }},
		"disk":       {func(_ *Ready, a *sandbox.Applied) { a.Disk = 0 }},
		"inodes":     {func(_ *Ready, a *sandbox.Applied) { a.Inodes = 0 }},
		"open_files": {func(r *Ready, _ *sandbox.Applied) { r.Files++ }, func(r *Ready, _ *sandbox.Applied) { r.Files = 0 }},
		"core_files": {func(r *Ready, _ *sandbox.Applied) { r.Core = 1 }, func(_ *Ready, a *sandbox.Applied) { a.Core = math.MaxInt64 }},
		"network":    {func(_ *Ready, a *sandbox.Applied) { a.Net = "eth0 lo" }},
		"user_namespace": {
			func(_ *Ready, a *sandbox.Applied) { a.FirstID = 0 },
			func(_ *Ready, a *sandbox.Applied) { a.IDs = 1 << 31 },
			func(r *Ready, _ *sandbox.Applied) { r.UIDMap = []IDMap{{0, 1 << 30, 65_536}} },
			func(r *Ready, _ *sandbox.Applied) { r.GIDMap = nil },
		},
		"namespaces": {
			func(_ *Ready, a *sandbox.Applied) { a.Shared = "net" },
			func(_ *Ready, a *sandbox.Applied) { a.Shared = "cgroup user" },
		},
		"init_capabilities":    {func(r *Ready, _ *sandbox.Applied) { r.Init.Permitted |= 1 << 21 }},
		"command_capabilities": {func(r *Ready, _ *sandbox.Applied) { r.Forker.Inheritable = 1 }},
		"sentry_capabilities":  {func(_ *Ready, a *sandbox.Applied) { a.Caps |= 1 << 21 }},
		"no_new_privs":         {func(r *Ready, _ *sandbox.Applied) { r.Init.NoNewPrivs = 0 }, func(_ *Ready, a *sandbox.Applied) { a.NoNew = false }},
		"seccomp":              {func(_ *Ready, a *sandbox.Applied) { a.Seccomp = 0 }},
		"init_hidden":          {func(r *Ready, _ *sandbox.Applied) { r.Dumpable = 1 }},
		"root_read_only":       {func(r *Ready, _ *sandbox.Applied) { r.Mounts[0].Options = []string{"rw", "nosuid"} }},
		"mounts": {
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[1].Options = []string{"rw", "nodev"} },
			func(_ *Ready, a *sandbox.Applied) { a.NoDevices = false },
		},
		"overlay": {func(_ *Ready, a *sandbox.Applied) { a.Overlay = false }},
		"shm":     {func(r *Ready, _ *sandbox.Applied) { r.Mounts = slices.Clone(r.Mounts[:2]) }},
	})
}
