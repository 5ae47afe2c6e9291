package docker

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// job holds what its sandboxes share: layers, and what lies below all of them.
type job struct {
	driver *Driver
	spec   sandbox.JobSpec
	about  facts          // of the engine when the job was opened
	booked *hostlock.Lock // of memory and disk
	layers linux.Layers
	bases  linux.Bases

	closing linux.Closing
	boxes   linux.Members[string, *box]

	ended context.Context // ends with the first Close, and with it what is being made
	stop  context.CancelFunc
}

var _ sandbox.DriverJob = (*job)(nil)

func newJob(d *Driver, spec sandbox.JobSpec, about facts) *job {
	path := func() string { return filepath.Join(d.config.Stage, "o", d.name("")) }
	j := &job{driver: d, spec: spec, about: about, bases: linux.Bases{First: about.first, Programs: d.config.Binaries, Path: path}}
	j.ended, j.stop = context.WithCancel(context.Background())
	return j
}

// Create makes a sandbox out of parts; each step knows how it is undone.
func (j *job) Create(ctx context.Context, spec sandbox.Spec) (sandbox.DriverSandbox, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.ended, cancel)()
	layers, err := j.layers.Paths(spec.Layers)
	if err != nil {
		return nil, err
	}
	base, err := j.bases.Get(spec.Image == "")
	if err != nil {
		return nil, startError("building our layer", err)
	}
	digest := spec.Image
	if digest == "" {
		digest = bareImage
	}
	b := newBox(j, spec.Limits)
	if !j.boxes.Add(b.id, b) {
		return nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "creating sandbox: the job is closed"}
	}
	if err := b.start(ctx, append([]string{base}, layers...), digest, spec); err != nil {
		cleaning := context.WithoutCancel(ctx)
		return nil, errors.Join(startError("starting sandbox", err), b.Close(cleaning))
	}
	j.driver.pool.Fill()
	return b, nil
}

// plan fills in what a sandbox's container depends on.
func (j *job) plan(b *box, spec sandbox.Spec, image string, digest images.Digest) (plan, error) {
	d := j.driver
	filter, err := d.config.Seccomp(spec.Profile)
	if err != nil {
		return plan{}, err
	}
	ulimits, err := d.engine.ulimits(spec.Limits)
	return plan{
		name: containerName(d.label(), b.id), image: image, runtime: j.about.runtime, guest: j.about.guest(),
		source: b.graft.path, bare: digest == bareImage, instance: d.config.Instance, origin: d.origin,
		job: string(j.spec.ID), phase: string(spec.Network), limits: spec.Limits, cpus: linux.CPUs(spec.Limits), ulimits: ulimits, seccomp: string(filter),
	}, err
}

// Close takes the job down: sandboxes first, then what lies below them. Until all
// of it is gone the job keeps what it booked, and a further call, or a sweep, goes
// on. Once done, a further call does nothing.
func (j *job) Close(ctx context.Context) error {
	left := j.boxes.Shut()
	j.stop() // nobody waits for an image that an engine takes minutes for
	return j.closing.Do(func() error {
		var failed error
		for _, b := range left {
			failed = errors.Join(failed, b.Close(ctx))
		}
		if failed == nil {
			failed = errors.Join(j.layers.Release(), j.bases.Drop())
		}
		if failed == nil { // a new job may take the id from then on
			j.booked.Release()
			j.driver.jobs.Remove(j.spec.ID)
		}
		return failed
	})
}
