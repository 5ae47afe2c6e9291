package oci

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// flavor is what one OCI runtime does in its own way. The rest of the package
// asks it and knows no names.
type flavor struct {
	name      string
	isolation sandbox.Isolation
	flags     []string // before the command, besides --root and --log
	// guest says that the runtime brings its own kernel: sandboxes are
	// processes of that kernel, and the host sees only the kernel's.
	guest bool
	// oneTree says that the runtime refuses hosts which mount both versions of
	// cgroups, and takes each path from the roots of the trees.
	oneTree bool
}

// flavors are the runtimes that this package can drive, strongest first. crun
// comes last: it shares the kernel as runc does, and fewer have tried it here.
var flavors = []flavor{
	{name: "runsc", isolation: sandbox.IsolationGVisor, guest: true, flags: []string{
		"--platform=systrap",
		// No packet leaves a guest that has no network, and none is read by it.
		"--network=none",
		// The overlay and its quota are ours; another one in the guest's
		// memory would hide from us what was written.
		"--overlay2=none",
	}},
	{name: "runc", isolation: sandbox.IsolationUserns},
	{name: "crun", isolation: sandbox.IsolationUserns, oneTree: true},
}

// Runtimes are the names that FindRuntime knows, strongest first.
func Runtimes() []string {
	names := make([]string, len(flavors))
	for i, f := range flavors {
		names[i] = f.name
	}
	return names
}

// flavorOf goes by the name of the file, as FindRuntime does; the probe compares
// it with what the program says of itself.
func flavorOf(path string) (flavor, error) {
	name := filepath.Base(path)
	for _, f := range flavors {
		if f.name == name {
			return f, nil
		}
	}
	return flavor{}, fmt.Errorf("%s is called none of %s: %w", path, strings.Join(Runtimes(), ", "), ErrRuntime)
}

// settle prepares this process, and its mount namespace, for the runtime.
func (f flavor) settle() error {
	if f.oneTree {
		return narrowCgroups()
	}
	if !f.guest {
		return nil
	}
	// The runtime's own processes in each sandbox inherit that none of them
	// leaves a core file.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("giving up core files: %w", err)
	}
	return nil
}

// narrowCgroups shows the runtime, in the runner's own mount namespace, nothing of
// the cgroup trees but our own places in them: a path that it takes from the root
// of each tree then lies where everything of the instance has to lie. The tree of
// version 2 goes where version 1 has the controllers; the host keeps it, and
// sandboxes stay in the runner's place of it, where nothing that we limit is.
func narrowCgroups() error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("reading cgroup mounts: %w", err)
	}
	both := slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.FSType == "cgroup" })
	groups, err := linux.FindCgroups()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.FSType == "cgroup2" && both {
			err = unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		} else if own := groups.Below(m.Mountpoint); own != "" {
			err = unix.Mount(own, m.Mountpoint, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("narrowing the cgroup tree at %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// parseVersion reads the first line of --version, "NAME version VERSION".
func (f flavor) parseVersion(out string) (string, error) {
	line, _, _ := strings.Cut(out, "\n")
	words := strings.Fields(line)
	if len(words) < 3 || words[0] != f.name || words[1] != "version" {
		return "", fmt.Errorf("it says %.80q, not the version of %s: %w", line, f.name, ErrRuntime)
	}
	return words[2], nil
}
