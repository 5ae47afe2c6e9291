package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// seen is what a sandbox shows that is as it was asked for.
func seen(t testing.TB) (sandbox.Spec, Ready, sandbox.Applied) {
	limits := strictLimits(t)
	limits.CPUs = 1
	spec := sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits}
	ids := []IDMap{{Inside: 0, Outside: 1 << 30, Count: 65_536}}
	ready := Ready{
		Init:   Status{NoNewPrivs: 1, Seccomp: 2, Permitted: initMask, Effective: initMask, Bounding: initMask},
		Forker: Status{NoNewPrivs: 1, Seccomp: 2, Permitted: initMask, Effective: initMask},
		UIDMap: ids, GIDMap: ids,
		Mounts: []Mount{
			{Path: "/", Root: "/", Type: "overlay", Options: []string{"ro"}},
			{Path: "/workspace", Root: "/workspace", Type: "overlay", Options: []string{"rw", "nosuid", "nodev"}},
			{Path: "/dev/shm", Root: "/", Type: "tmpfs", Options: []string{"rw", "nosuid", "nodev"}, Super: []string{"rw", "size=65536k"}},
			{Path: "/dev/pts", Root: "/", Type: "devpts", Options: []string{"rw", "nosuid"}},
			{Path: "/dev/null", Root: "/null", Type: "devtmpfs", Options: []string{"rw"}},
			{Path: "/proc/kcore", Root: "/null", Type: "devtmpfs", Options: []string{"rw"}},
		},
	}
	applied := sandbox.Applied{
		Isolation: sandbox.IsolationUserns,
		Memory:    limits.MemoryBytes, NoSwap: true, PIDs: limits.PIDs, CPUMilli: 1000, Disk: limits.DiskBytes,
		Inodes: limits.Inodes, Files: limits.OpenFiles, Net: "lo", FirstID: 1 << 30, IDs: 65_536, Seccomp: 2, NoNew: true,
		Caps: initMask, Own: 7, Overlay: true,
	}
	return spec, ready, applied
}

// TestEveryControlCanFail changes one thing at a time: exactly its control must
// say so, and the sandbox must not be used.
func TestEveryControlCanFail(t *testing.T) {
	eachCanFail(t, seen, map[string][]func(*Ready, *sandbox.Applied){
		"isolation": {
			func(_ *Ready, a *sandbox.Applied) { a.Isolation = "" },
			func(_ *Ready, a *sandbox.Applied) { a.Isolation = "none" },
		},
		"memory":               {func(_ *Ready, a *sandbox.Applied) { a.Memory++ }, func(_ *Ready, a *sandbox.Applied) { a.Memory = -1 }},
		"swap":                 {func(_ *Ready, a *sandbox.Applied) { a.NoSwap = false }},
		"pids":                 {func(_ *Ready, a *sandbox.Applied) { a.PIDs = -1 }},
		"cpu":                  {func(_ *Ready, a *sandbox.Applied) { a.CPUMilli = -1 }, func(_ *Ready, a *sandbox.Applied) { a.CPUMilli = 1001 }},
		"disk":                 {func(_ *Ready, a *sandbox.Applied) { a.Disk++ }, func(_ *Ready, a *sandbox.Applied) { a.Disk = 0 }},
		"inodes":               {func(_ *Ready, a *sandbox.Applied) { a.Inodes *= 2 }, func(_ *Ready, a *sandbox.Applied) { a.Inodes = 0 }},
		"open_files":           {func(_ *Ready, a *sandbox.Applied) { a.Files++ }},
		"core_files":           {func(_ *Ready, a *sandbox.Applied) { a.Core = 1 }},
		"network":              {func(_ *Ready, a *sandbox.Applied) { a.Net = "eth0 lo" }, func(_ *Ready, a *sandbox.Applied) { a.Net = "" }},
		"namespaces":           {func(_ *Ready, a *sandbox.Applied) { a.Own = 6 }},
		"no_new_privs":         {func(r *Ready, _ *sandbox.Applied) { r.Forker.NoNewPrivs = 0 }, func(_ *Ready, a *sandbox.Applied) { a.NoNew = false }},
		"seccomp":              {func(r *Ready, _ *sandbox.Applied) { r.Init.Seccomp = 0 }, func(_ *Ready, a *sandbox.Applied) { a.Seccomp = 0 }},
		"init_hidden":          {func(r *Ready, _ *sandbox.Applied) { r.Dumpable = 1 }},
		"init_capabilities":    {func(r *Ready, _ *sandbox.Applied) { r.Init.Effective |= 1 << 21 }, func(_ *Ready, a *sandbox.Applied) { a.Caps = 0 }},
		"command_capabilities": {func(r *Ready, _ *sandbox.Applied) { r.Forker.Bounding = 1 }, func(r *Ready, _ *sandbox.Applied) { r.Forker.Ambient = 1 }},
		"user_namespace": {
			func(_ *Ready, a *sandbox.Applied) { a.FirstID = 0 },
			func(r *Ready, _ *sandbox.Applied) { r.UIDMap = []IDMap{{0, 0, 1 << 32}} },
			func(r *Ready, _ *sandbox.Applied) { r.GIDMap = append([]IDMap{{70_000, 0, 1}}, r.GIDMap...) },
		},
		"overlay":        {func(_ *Ready, a *sandbox.Applied) { a.Overlay = false }},
		"root_read_only": {func(r *Ready, _ *sandbox.Applied) { r.Mounts[0].Options = []string{"rw", "nosuid", "nodev"} }},
		"mounts": {
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[1].Options = []string{"rw", "nosuid"} },
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[1].Options = []string{"rw", "nodev"} },
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[5].Path = "/workspace/null" },
		},
		"shm": {
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[2].Super = []string{"rw"} },
			func(r *Ready, _ *sandbox.Applied) { r.Mounts[2].Super = []string{"rw", "size=65540k"} },
		},
	})
}

// eachCanFail begins with a good sandbox each time.
func eachCanFail(t *testing.T, seen func(testing.TB) (sandbox.Spec, Ready, sandbox.Applied), all map[string][]func(*Ready, *sandbox.Applied)) {
	t.Helper()
	spec, ready, applied := seen(t)
	if err := compare(strictPolicy(t), spec, ready, applied); err != nil {
		t.Fatalf("a good sandbox: %v", err)
	}
	for _, name := range failable(spec, ready, applied) {
		if all[name] == nil {
			t.Errorf("nothing shows that %s can fail", name)
		}
	}
	for name, changes := range all {
		for i, change := range changes {
			spec, ready, applied := seen(t)
			change(&ready, &applied)
			if diff := cmp.Diff([]string{name}, failing(spec, ready, applied)); diff != "" {
				t.Errorf("%s, change %d (-want +got):\n%s", name, i, diff)
			}
			if err := compare(strictPolicy(t), spec, ready, applied); sandbox.KindOf(err) != sandbox.KindStart {
				t.Errorf("%s, change %d: %v", name, i, err)
			}
		}
	}
}

// TestOnlyAKnownLackIsWaived: a policy that goes without a control lets a
// sandbox lack it where the driver knew that the host can't, and nowhere else.
func TestOnlyAKnownLackIsWaived(t *testing.T) {
	spec, ready, applied := seen(t)
	without, err := policies.Builtin("standard")
	if err != nil {
		t.Fatal(err)
	}
	without.Without = []policies.Control{policies.ControlMemory}
	applied.Memory = -1
	for _, c := range []struct {
		what    string
		policy  policies.Policy
		unable  []policies.Control
		refused bool
	}{
		{"a host that can", without, nil, true},
		{"a host that lacks another", without, []policies.Control{policies.ControlPIDs}, true},
		{"a host that can't, under strict", strictPolicy(t), []policies.Control{policies.ControlMemory}, true},
		{"a host that can't", without, []policies.Control{policies.ControlMemory}, false},
	} {
		applied.Unable = c.unable
		if err := compare(c.policy, spec, ready, applied); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	applied.Seccomp = 0
	applied.Unable = []policies.Control{"memory", "seccomp"}
	without.Without = applied.Unable
	if err := compare(without, spec, ready, applied); sandbox.KindOf(err) != sandbox.KindStart {
		t.Errorf("a policy that goes without seccomp: %v", err)
	}
}

func failable(spec sandbox.Spec, ready Ready, applied sandbox.Applied) []string {
	var names []string
	for _, c := range controls(spec, ready, applied) {
		names = append(names, c.name)
	}
	return names
}

func strictPolicy(t testing.TB) policies.Policy {
	t.Helper()
	p, err := policies.Builtin("strict")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func failing(spec sandbox.Spec, ready Ready, applied sandbox.Applied) []string {
	var names []string
	for _, c := range controls(spec, ready, applied) {
		if !c.ok {
			names = append(names, c.name)
		}
	}
	return names
}
