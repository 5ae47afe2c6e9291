package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Sweep removes what crashes left: of earlier runners of this instance, whose
// lock the caller holds; of jobs here whose end could not be finished; and of
// other instances whose runner is dead.
func (d *Driver) Sweep(ctx context.Context) (sandbox.Swept, error) {
	swept := sandbox.Swept{}
	err := errors.Join(d.sweepClosing(ctx), d.sweepContainers(ctx, swept), d.sweepGrafts(ctx, swept), d.sweepDisks(swept))
	d.traces.SweepOthers(ctx, swept)
	return swept, err
}

// sweepClosing goes on with jobs whose Close failed.
func (d *Driver) sweepClosing(ctx context.Context) (failed error) {
	for _, j := range d.jobs.All() {
		if j.closing.Unfinished() {
			failed = errors.Join(failed, j.Close(ctx))
		}
	}
	return failed
}

// instanceName is what the runner lets an instance be called.
var instanceName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// sweepContainers goes by label. Listing works while one container is wedged.
func (d *Driver) sweepContainers(ctx context.Context, swept sandbox.Swept) error {
	if _, err := d.engine.ping(ctx); err != nil { // it may have been replaced
		return err
	}
	all, err := d.engine.list(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, c := range all {
		if !d.mayRemove(c) {
			continue
		}
		if err := d.engine.remove(ctx, c.id); err != nil {
			failed = errors.Join(failed, err)
		} else {
			swept["container"]++
		}
	}
	return failed
}

// mayRemove says whether a container is nobody's: this instance's without a
// sandbox, one of an earlier life of the kernel, or that of an instance whose
// runner is dead. One whose lock lies elsewhere is somebody's who can't be asked.
func (d *Driver) mayRemove(c held) bool {
	switch {
	case d.past(c):
		return true
	case c.origin != d.origin || !instanceName.MatchString(c.instance):
		return false
	case c.instance == d.config.Instance:
		return !d.live(c.id)
	}
	return d.lost(c.instance)
}

// lost says that the runner of an instance is dead. Its lock is only tried: a
// container that was listed before isn't one of a runner that begins afterwards,
// and that one must not wait for a removal.
func (d *Driver) lost(instance string) bool {
	if err := d.config.Run.MkdirAll(instance, 0o755); err != nil {
		return false
	}
	lock, err := hostlock.Take(d.config.Run, instance+"/runner.lock")
	if err != nil {
		return false // alive
	}
	lock.Release()
	_ = d.config.Run.Remove(instance) // not empty: somebody else's to remove
	return true
}

// live says whether a container belongs to a sandbox of this runner. One that is
// being made has no id yet, so meanwhile all of this instance count as alive.
func (d *Driver) live(id string) bool {
	for _, j := range d.jobs.All() {
		if j.has(id) {
			return true
		}
	}
	return false
}

func (j *job) has(id string) bool {
	for _, b := range j.boxes.All() {
		if !b.mu.TryLock() {
			return true // in the middle of something: leave it alone
		}
		mine := b.container == id
		b.mu.Unlock()
		if mine {
			return true
		}
	}
	return false
}

// sweepGrafts takes back what a runner lent that was killed in a start.
func (d *Driver) sweepGrafts(ctx context.Context, swept sandbox.Swept) error {
	if d.jobs.Ever() {
		return nil
	}
	return d.sweepLent(ctx, d.config.Instance, swept)
}

// sweepLent does so for any instance whose runner is dead.
func (d *Driver) sweepLent(ctx context.Context, instance string, swept sandbox.Swept) error {
	space, err := d.engine.mountSpace(ctx)
	if err != nil {
		return err
	}
	defer space.Close()
	dir := filepath.Join(d.config.RunDir, instance, graftDir)
	var names []os.DirEntry
	err = inSpace(space, func() (err error) {
		if names, err = os.ReadDir(dir); os.IsNotExist(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for lent mounts: %w", err)
	}
	for _, name := range names {
		if err := (graft{space, filepath.Join(dir, name.Name())}).uproot(); err != nil {
			return err
		}
		swept["mount"]++
	}
	if instance != d.config.Instance { // our own may be about to be used
		_ = d.config.Run.Remove(instance + "/" + graftDir) // missing: nothing was lent
	}
	return nil
}

// sweepDisks removes what earlier disks left, unless this runner has begun to
// make its own.
func (d *Driver) sweepDisks(swept sandbox.Swept) error {
	if d.jobs.Ever() {
		return nil // a disk of ours may be on its way from file to mount
	}
	return linux.SweepDisks(d.config.Disks, swept)
}
