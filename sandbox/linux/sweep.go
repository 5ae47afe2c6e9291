package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// SweepDisks removes what an earlier runner left of its disks in dir. The caller
// makes none meanwhile: one on its way from file to mount looks the same.
func SweepDisks(dir string, swept sandbox.Swept) error {
	dir, err := filepath.EvalSymlinks(dir) // as the kernel names the files of loop devices
	if err != nil {
		return fmt.Errorf("resolving the disks' directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the disks: %w", err)
	}
	defer root.Close()
	return errors.Join(sweepLoops(dir, swept), sweepFiles(root, swept))
}

// sweepLoops detaches loop devices whose file lay in dir. They vanish by
// themselves once nothing mounts them; this is for a kernel that was asked too
// early.
func sweepLoops(dir string, swept sandbox.Swept) error {
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("listing loop devices: %w", err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw), dir+"/disk-") {
			continue
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if isMounted(device) {
			continue // in use
		}
		if detachLoop("/dev/" + device) {
			swept["loop"]++
		}
	}
	return nil
}

func detachLoop(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0) == nil
}

// isMounted looks for an ext4 file system of the device.
func isMounted(device string) bool {
	_, err := os.Stat("/sys/fs/ext4/" + device)
	return err == nil
}

// sweepFiles removes disk files that still have a name, because a runner died
// between making and unlinking one, and copies of images.
func sweepFiles(disks *os.Root, swept sandbox.Swept) error {
	for _, pattern := range []string{"disk-*.img", "copy-*"} {
		names, err := fs.Glob(disks.FS(), pattern)
		if err != nil {
			return fmt.Errorf("listing disk files: %w", err)
		}
		for _, name := range names {
			if err := disks.RemoveAll(name); err != nil {
				return fmt.Errorf("removing disk file: %w", err)
			}
			swept["disk"]++
		}
	}
	return nil
}

// Sweep ends the processes in the cgroups of a label, then removes those. What
// live says yes to is left alone.
func (c *Cgroups) Sweep(ctx context.Context, label string, live func(string) bool, swept sandbox.Swept) error {
	names, err := c.below(label)
	if err != nil {
		return err
	}
	for _, name := range names {
		g := Group{c, filepath.Join(label, name)}
		if live(name) || !g.exists() {
			continue // the living first: one that ends now is gone with its name
		}
		killed, err := g.Clear(ctx)
		if err != nil {
			return err
		}
		Count(swept, "cgroup", 1)
		Count(swept, "container", min(killed, 1))
	}
	return nil
}

// below lists the groups of a label in all trees.
func (c *Cgroups) below(label string) ([]string, error) {
	names := map[string]bool{}
	for _, h := range c.Trees {
		entries, err := os.ReadDir(filepath.Join(h.Own, label))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listing cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names[e.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// exists says whether any tree has the group.
func (g Group) exists() bool {
	for _, h := range g.All.Trees {
		if _, err := os.Stat(filepath.Join(h.Own, g.Path)); err == nil {
			return true
		}
	}
	return false
}

// Count adds to what was swept and leaves out kinds of which there was nothing.
func Count(swept sandbox.Swept, kind string, n int) {
	if n > 0 {
		swept[kind] += n
	}
}
