package docker

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

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

	building sync.Mutex      // held while a base is made, guards bases
	bases    map[bool]string // by "without an image"

	closing sync.Mutex // held by Close

	ended context.Context // ends with the first Close, and with it what is being made
	stop  context.CancelFunc

	mu     sync.Mutex // guards what follows
	boxes  map[*box]bool
	closed bool // no sandbox begins any more
	over   bool // what was booked is given back
}

var _ sandbox.DriverJob = (*job)(nil)

func newJob(d *Driver, spec sandbox.JobSpec, about facts) *job {
	j := &job{driver: d, spec: spec, about: about, boxes: map[*box]bool{}, bases: map[bool]string{}}
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
	base, err := j.base(spec.Image == "")
	if err != nil {
		return nil, startError("building our layer", err)
	}
	digest := spec.Image
	if digest == "" {
		digest = bareImage
	}
	b := newBox(j, spec.Limits)
	if err := j.admit(b); err != nil {
		return nil, err
	}
	if err := b.start(ctx, append([]string{base}, layers...), digest, spec); err != nil {
		cleaning := context.WithoutCancel(ctx)
		return nil, errors.Join(startError("starting sandbox", err), b.Close(cleaning))
	}
	j.driver.pool.Fill()
	return b, nil
}

func (j *job) admit(b *box) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return &sandbox.Error{Kind: sandbox.KindRefused, Op: "creating sandbox: the job is closed"}
	}
	j.boxes[b] = true
	return nil
}

func (j *job) forget(b *box) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.boxes, b)
}

func (j *job) base(bare bool) (string, error) {
	j.building.Lock()
	defer j.building.Unlock()
	if path, found := j.bases[bare]; found {
		return path, nil
	}
	path := filepath.Join(j.driver.config.Stage, "o", j.driver.name(""))
	if err := linux.BuildBase(path, j.about.first, bare, j.driver.config.Binaries); err != nil {
		return "", errors.Join(err, os.RemoveAll(path))
	}
	j.bases[bare] = path
	return path, nil
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
		source: b.graft.path, bare: digest == bareImage, instance: d.config.Instance, job: string(j.spec.ID),
		phase: string(spec.Network), limits: spec.Limits, cpus: linux.CPUs(spec.Limits), ulimits: ulimits, seccomp: string(filter),
	}, err
}

// Close takes the job down: sandboxes first, then what lies below them. Until all
// of it is gone the job keeps what it booked, and a further call, or a sweep, goes
// on. Once done, a further call does nothing.
func (j *job) Close(ctx context.Context) error {
	j.closing.Lock()
	defer j.closing.Unlock()
	var failed error
	for _, b := range j.shut() {
		failed = errors.Join(failed, b.Close(ctx))
	}
	if failed == nil {
		failed = errors.Join(j.layers.Release(), j.dropBases())
	}
	if failed != nil {
		return failed
	}
	j.end()
	return nil
}

// shut lets no sandbox begin any more and returns those that are left.
func (j *job) shut() []*box {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.stop() // nobody waits for an image that an engine takes minutes for
	return slices.Collect(maps.Keys(j.boxes))
}

func (j *job) dropBases() (failed error) {
	j.building.Lock()
	defer j.building.Unlock()
	for bare, path := range j.bases {
		failed = errors.Join(failed, os.RemoveAll(path))
		delete(j.bases, bare)
	}
	return failed
}

// end gives back what is the host's. A new job may take the id from then on.
func (j *job) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return
	}
	j.over = true
	j.booked.Release()
	j.driver.forget(j)
}

// unfinished tells whether a Close has failed. One that is going on is none.
func (j *job) unfinished() bool {
	if !j.closing.TryLock() {
		return false
	}
	defer j.closing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed && !j.over
}
