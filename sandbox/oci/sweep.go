package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Sweep removes what an earlier runner of this instance left: the caller holds
// the instance's lock, so whatever carries its label and is not ours is dead or
// has nobody who wants it.
func (d *Driver) Sweep(ctx context.Context) (sandbox.Swept, error) {
	swept := sandbox.Swept{}
	err := d.sweepGroups(ctx, d.label(), swept)
	return swept, errors.Join(err, d.sweepDisks(swept), d.sweepOnce(ctx, swept))
}

// onceInstances is how instances of single commands begin. They have no later
// start of their own, so whoever finds such a lock free removes what is left.
const onceInstances = "run-"

func (d *Driver) sweepOnce(ctx context.Context, swept sandbox.Swept) error {
	dir, err := d.config.Run.Open(".")
	if err != nil {
		return fmt.Errorf("listing instances: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("listing instances: %w", err)
	}
	var failed error
	for _, name := range names {
		if !strings.HasPrefix(name, onceInstances) || name == d.config.Instance {
			continue
		}
		lock, err := hostlock.Take(d.config.Run, name+"/runner.lock")
		if err != nil {
			continue // alive, or gone meanwhile
		}
		failed = errors.Join(failed, d.sweepGroups(ctx, "veyra-"+name, swept))
		swept["lock"]++
		lock.Release()
		_ = d.config.Run.Remove(name) // not empty: somebody else's to remove
	}
	return failed
}

// sweepGroups ends the processes in the instance's cgroups, then removes those.
// Sandboxes that this runner holds are skipped.
func (d *Driver) sweepGroups(ctx context.Context, label string, swept sandbox.Swept) error {
	names := map[string]bool{}
	for _, h := range d.cgroups.Trees {
		entries, err := os.ReadDir(filepath.Join(h.Own, label))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("listing cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !(label == d.label() && d.live(e.Name())) {
				names[e.Name()] = true
			}
		}
	}
	for name := range names {
		g := linux.Group{All: d.cgroups, Path: filepath.Join(label, name)}
		killed, err := g.Clear(ctx)
		if err != nil {
			return err
		}
		swept["cgroup"]++
		if killed > 0 {
			swept["container"]++
		}
	}
	if label != d.label() || !d.hasBoxes() {
		return linux.Group{All: d.cgroups, Path: label}.Remove()
	}
	return nil
}

// live says whether a sandbox of that name belongs to this runner.
func (d *Driver) live(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, j := range d.jobs {
		if j.has(name) {
			return true
		}
	}
	return false
}

func (d *Driver) hasBoxes() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.jobs) > 0
}

func (j *job) has(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for b := range j.boxes {
		if b.id == name {
			return true
		}
	}
	return false
}

// sweepDisks removes what earlier disks left, unless this runner has begun to
// make its own.
func (d *Driver) sweepDisks(swept sandbox.Swept) error {
	d.mu.Lock()
	begun := d.begun
	d.mu.Unlock()
	if begun {
		return nil // a disk of ours may be on its way from file to mount
	}
	return linux.SweepDisks(d.config.Disks, swept)
}
