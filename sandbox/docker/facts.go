package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// facts are what an engine is and can do, as far as it says so itself. They
// decide what is asked of it; what it did is read back.
type facts struct {
	api, version, runtime string
	runtimeVersion        string
	remapped              bool
	first                 uint32 // host id of uid 0 inside
	isolation             sandbox.Isolation
	controls              []sandbox.Control
}

// unknownVersion is that of a runtime that the engine says nothing about. It
// counts as affected by every advisory.
const unknownVersion = "unknown"

// The runtimes that are known, strongest first.
var runtimes = []struct {
	name  string
	guest bool
}{{"runsc", true}, {"runc", false}}

// Runtimes are the names that are known, strongest first.
func Runtimes() []string {
	names := make([]string, len(runtimes))
	for i, r := range runtimes {
		names[i] = r.name
	}
	return names
}

// guest says that the runtime brings a kernel of its own.
func (f facts) guest() bool { return f.isolation == sandbox.IsolationGVisor }

// unable are the controls that this engine has no means for.
func (f facts) unable() []policies.Control {
	if f.remapped {
		return nil
	}
	return []policies.Control{policies.ControlUserNamespace}
}

// facts asks the engine. An error says what to do about it.
func (e *engine) facts(ctx context.Context, runtime string) (facts, error) {
	api, err := e.ping(ctx)
	if err != nil {
		return facts{}, err
	}
	if !apiVersion.MatchString(api) || versions.LessThan(api, minimumAPI) {
		return facts{}, fmt.Errorf("the engine speaks API %.20q: %s or later is needed (Docker 20.10); update it", api, minimumAPI)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	info, err := e.client().Info(ctx)
	if err != nil {
		return facts{}, failed("asking the engine about itself", err)
	}
	parts, err := e.client().ServerVersion(ctx)
	if err != nil {
		return facts{}, failed("asking the engine for its version", err)
	}
	f := facts{api: api, version: oneLine(info.ServerVersion, 64), runtimeVersion: unknownVersion}
	for _, c := range parts.Components {
		if strings.HasPrefix(c.Name, "Podman") {
			return facts{}, errors.New("this is Podman's imitation of a Docker Engine, whose limits were not measured; use Docker, or the oci backend")
		}
		if module := c.Details["ModuleVersion"]; module != "" && c.Name == "Engine" {
			f.version = oneLine(module, 64) // built from its module, it doesn't know its own number
		}
	}
	if err := errors.Join(f.readIDs(info), f.pickRuntime(info, runtime), f.judge(info)); err != nil {
		return facts{}, err
	}
	for _, c := range parts.Components {
		if c.Name == f.runtime && c.Version != "" {
			f.runtimeVersion = oneLine(c.Version, 64)
		}
	}
	return f, nil
}

// pickRuntime takes the asked one, or the strongest that the engine lists and that
// its ids allow.
func (f *facts) pickRuntime(info system.Info, asked string) error {
	for _, r := range runtimes {
		_, listed := info.Runtimes[r.name]
		if !listed || (asked != "" && asked != r.name) {
			continue
		}
		if r.guest && !f.remapped {
			if asked == "" {
				continue
			}
			return fmt.Errorf("%s without remapped ids would be the host's root: set userns-remap for the engine, or take another runtime", r.name)
		}
		f.runtime, f.isolation = r.name, f.isolationOf(r.guest)
		return nil
	}
	listed := make([]string, 0, len(info.Runtimes))
	for name := range info.Runtimes {
		listed = append(listed, name)
	}
	slices.Sort(listed)
	return fmt.Errorf("the engine has no runtime %q that is known here (it lists %.200q)", asked, listed)
}

// readIDs learns where the engine's user namespace begins: it names its
// directory after it. What it says is compared with the kernel's map of each
// sandbox.
func (f *facts) readIDs(info system.Info) error {
	if slices.Contains(names(info.SecurityOptions), "rootless") {
		return errors.New("the engine is rootless: nothing that it promises can be read back; use one that root runs, or the oci backend")
	}
	if !slices.Contains(names(info.SecurityOptions), "userns") {
		return nil
	}
	var gid uint32
	if n, err := fmt.Sscanf(path.Base(info.DockerRootDir), "%d.%d", &f.first, &gid); n != 2 || err != nil || f.first == 0 || gid != f.first {
		return fmt.Errorf("the engine remaps ids, but not as one block for users and groups (its directory is %.100q)", path.Base(info.DockerRootDir))
	}
	f.remapped = true
	return nil
}

func (f *facts) isolationOf(guest bool) sandbox.Isolation {
	switch {
	case guest:
		return sandbox.IsolationGVisor
	case f.remapped:
		return sandbox.IsolationUserns
	}
	return sandbox.IsolationSeccomp
}

// names are the "name=" of security options, such as "name=seccomp,profile=builtin".
func names(options []string) []string {
	var found []string
	for _, option := range options {
		name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		found = append(found, name)
	}
	return found
}

// judge lists what the engine must be able to limit, and fails when it can't.
func (f *facts) judge(info system.Info) error {
	var failed error
	for _, c := range []struct {
		name string
		ok   bool
		fix  string
	}{
		{"engine_seccomp", slices.Contains(names(info.SecurityOptions), "seccomp"), "use a kernel and an engine with seccomp"},
		{"engine_memory", info.MemoryLimit, "mount the memory controller for the engine"},
		{"engine_swap", info.SwapLimit || !linux.HostHasSwap(), "boot with swapaccount=1, or switch swap off"},
		{"engine_pids", info.PidsLimit, "mount the pids controller for the engine"},
		{"engine_cpu", info.CPUCfsQuota && info.CPUCfsPeriod, "use a kernel with CFS bandwidth control"},
		{"engine_cgroups", info.CgroupDriver != "none" && info.CgroupDriver != "", "run the engine as root with a cgroup driver"},
	} {
		control := sandbox.Control{Name: c.name, Enforced: c.ok, Seen: fmt.Sprintf("by the engine: %t", c.ok)}
		if !c.ok {
			control.Fix = c.fix
			failed = errors.Join(failed, fmt.Errorf("the engine lacks %s: %s", c.name, c.fix))
		}
		f.controls = append(f.controls, control)
	}
	return failed
}
