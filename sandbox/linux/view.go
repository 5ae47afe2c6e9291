package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// View is what one sandbox sees as its root: an overlay whose upper directory lies
// on a disk of its own. It exists as far as Build came; Release takes down whatever
// there is of it and may be called again after a failure. The sandbox's lock guards
// it. Freeze and Collect want every process of the sandbox dead.
type View struct {
	Dir  string // of the sandbox on the stage; Root is in it
	Disk *Disk  // nil before Build, and once it is frozen or released

	mounted bool // the overlay
}

// Root is the overlay's mount point.
func (v *View) Root() string { return filepath.Join(v.Dir, "rootfs") }

// Build makes the directory, takes a disk and mounts the overlay: lowers, topmost
// first, below the upper directory. first is the host's id of root inside.
func (v *View) Build(ctx context.Context, stage string, pool *Pool, size Size, first uint32, lowers []string) error {
	for _, path := range []string{v.Dir, v.Root()} {
		if err := os.Mkdir(path, 0o755); err != nil {
			return fmt.Errorf("making sandbox directory: %w", err)
		}
	}
	disk, err := pool.Take(ctx, size)
	if err != nil {
		return err
	}
	v.Disk = disk
	if err := ownUpper(disk.Path, first); err != nil {
		return err
	}
	upper, work := filepath.Join(disk.Path, "up"), filepath.Join(disk.Path, "wk")
	if err := MountOverlay(stage, v.Root(), lowers, upper, work); err != nil {
		return err
	}
	v.mounted = true
	return nil
}

// Leave takes the overlay away; afterwards nothing but us can reach the upper
// directory. It fails when the disk did not hold what was written (op says for
// what it is read).
func (v *View) Leave(op string) error {
	if err := v.unmount(); err != nil {
		return err
	}
	return v.Disk.Check(op)
}

func (v *View) unmount() error {
	if !v.mounted {
		return nil
	}
	if err := Unmount(v.Root()); err != nil {
		return err
	}
	v.mounted = false
	return nil
}

// Freeze turns parts of the upper directory into layers, which keep the disk.
func (v *View) Freeze(ctx context.Context, layers *Layers, first uint32, parts []sandbox.Part) ([]sandbox.LayerID, error) {
	paths, err := v.Disk.Freeze(ctx, first, parts)
	if err != nil {
		return nil, err
	}
	ids := layers.Keep(v.Disk, paths)
	v.Disk = nil
	return ids, nil
}

// Collect streams what the workspace changed.
func (v *View) Collect(ctx context.Context, limits policies.Limits, w io.Writer) error {
	return Collect(ctx, filepath.Join(v.Disk.Path, "up", "workspace"), CollectLimits(limits), w)
}

// Release takes overlay and disk away. The directory stays: what may still be
// mounted in it must not be emptied.
func (v *View) Release() error {
	return errors.Join(v.unmount(), v.releaseDisk())
}

func (v *View) releaseDisk() error {
	if v.Disk == nil {
		return nil
	}
	if err := v.Disk.Release(); err != nil {
		return err
	}
	v.Disk = nil
	return nil
}
