package oci

import (
	"context"
	"errors"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Sweep removes what crashes left: of earlier runners of this instance, whose
// lock the caller holds; of jobs here whose end could not be finished; and of
// other instances whose runner is dead. What it can't remove of others is logged:
// they must not keep this instance from working.
func (d *Driver) Sweep(ctx context.Context) (sandbox.Swept, error) {
	swept := sandbox.Swept{}
	err := errors.Join(
		d.sweepClosing(ctx, swept), d.cgroups.Sweep(ctx, d.label(), d.live, swept), d.dropLabel(), d.sweepDisks(swept),
	)
	d.traces.SweepOthers(ctx, swept)
	return swept, err
}

// sweepClosing goes on with jobs whose Close failed: until it is done they keep
// their ids and what they booked, since something of theirs may still run.
func (d *Driver) sweepClosing(ctx context.Context, swept sandbox.Swept) error {
	var failed error
	for _, j := range d.jobs.All() {
		if !j.closing.Unfinished() {
			continue
		}
		boxes := len(j.boxes.All())
		if err := j.Close(ctx); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		linux.Count(swept, "container", boxes)
	}
	return failed
}

// dropLabel removes the instance's own cgroups between jobs. No job can begin
// meanwhile: the runtime would miss the directory that it has just looked for.
func (d *Driver) dropLabel() error {
	return d.jobs.WhileEmpty(linux.Group{All: d.cgroups, Path: d.label()}.Remove)
}

// live says whether a sandbox of that name belongs to this runner.
func (d *Driver) live(name string) bool {
	return slices.ContainsFunc(d.jobs.All(), func(j *job) bool { return j.boxes.Has(name) })
}

// sweepDisks removes what earlier disks left, unless this runner has begun to
// make its own.
func (d *Driver) sweepDisks(swept sandbox.Swept) error {
	if d.jobs.Ever() {
		return nil // a disk of ours may be on its way from file to mount
	}
	return linux.SweepDisks(d.config.Disks, swept)
}
