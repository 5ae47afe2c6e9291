package oci

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// job holds what its sandboxes share: a ground with an id range, so that layers need
// no remapping, mapped images and frozen disks.
type job struct {
	driver *Driver
	spec   sandbox.JobSpec
	ground *ground
	booked *hostlock.Lock // of memory and disk

	closing linux.Closing
	boxes   linux.Members[string, *box]

	building sync.Mutex // held while an image is made, guards the two below
	images   map[images.Digest]*mappedImage
	userns   *os.File

	layers linux.Layers
}

// mappedImage is an image root, mounted with the job's ids.
type mappedImage struct {
	path   string
	copied string    // directory of a copy, where ids can't be mapped
	hold   io.Closer // keeps the store from collecting the image
}

var _ sandbox.DriverJob = (*job)(nil)

// Create makes a sandbox out of parts; each step knows how it is undone.
func (j *job) Create(ctx context.Context, spec sandbox.Spec) (sandbox.DriverSandbox, error) {
	defer j.driver.quick.Hold()()
	lowers, err := j.lowers(spec)
	if err != nil {
		return nil, err
	}
	b := &box{job: j, id: j.driver.name("s"), limits: spec.Limits}
	if !j.boxes.Add(b.id, b) {
		return nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "creating sandbox: the job is closed"}
	}
	if err := b.start(ctx, lowers, spec); err != nil {
		cleaning := context.WithoutCancel(ctx)
		return nil, errors.Join(startError("starting sandbox", err), b.Close(cleaning))
	}
	j.driver.pool.Fill()
	if j.driver.bounds() {
		j.ground.namespaces.prepare(lowers[0])
	}
	return b, nil
}

// lowers returns the lower directories, topmost first: ours, the job's layers,
// the image.
func (j *job) lowers(spec sandbox.Spec) ([]string, error) {
	layers, err := j.layers.Paths(spec.Layers)
	if err != nil {
		return nil, err
	}
	base, err := j.ground.bases.Get(spec.Image == "")
	if err != nil {
		return nil, startError("building our layer", err)
	}
	lowers := append([]string{base}, layers...)
	if spec.Image == "" {
		return lowers, nil
	}
	image, err := j.image(spec.Image, base)
	if err != nil {
		return nil, err
	}
	return append(lowers, image), nil
}

// image returns the image's root with the job's ids; base holds our init.
func (j *job) image(digest images.Digest, base string) (string, error) {
	j.building.Lock()
	defer j.building.Unlock()
	if m := j.images[digest]; m != nil {
		return m.path, nil
	}
	if j.driver.config.Images == nil {
		return "", &sandbox.Error{Kind: sandbox.KindRefused, Op: "using an image: there is no store"}
	}
	hold, err := j.driver.config.Images.Hold(digest)
	if err != nil {
		return "", &sandbox.Error{Kind: sandbox.KindRefused, Op: "holding image", Err: err}
	}
	m := &mappedImage{hold: hold}
	if err := j.mapImage(digest, m, base); err != nil {
		return "", errors.Join(err, m.drop())
	}
	j.images[digest] = m
	return m.path, nil
}

func (j *job) mapImage(digest images.Digest, m *mappedImage, base string) error {
	root, err := j.driver.config.Images.Root(digest)
	if err != nil {
		return &sandbox.Error{Kind: sandbox.KindRefused, Op: "finding image", Err: err}
	}
	if j.userns == nil && !j.driver.config.Rootless {
		if j.userns, err = j.ground.namespaces.file(base); err != nil {
			return startError("mapping image", err)
		}
	}
	name := j.driver.name("")
	m.path = filepath.Join(j.driver.config.Stage, "i", name)
	if err := os.Mkdir(m.path, 0o755); err != nil {
		return startError("mapping image", err)
	}
	err = mountMapped(root, m.path, j.userns)
	if cantMap(err) && j.userns != nil {
		m.copied = filepath.Join(j.driver.config.Disks, "copy-"+name)
		err = mountCopy(root, m.copied, m.path, j.ground.ids.first)
	}
	if err != nil {
		return startError("mapping image", err)
	}
	return nil
}

// drop removes whatever of it exists.
func (m *mappedImage) drop() error {
	var failed error
	if m.path != "" {
		failed = errors.Join(linux.Unmount(m.path), os.Remove(m.path))
	}
	if m.copied != "" {
		failed = errors.Join(failed, os.RemoveAll(m.copied))
	}
	return errors.Join(failed, m.hold.Close())
}

// Close takes the job down: sandboxes first, then what lies below them. Until all
// of it is gone the job keeps its ids and what it booked, and a further call, or
// a sweep, goes on. Once done, a further call does nothing.
func (j *job) Close(ctx context.Context) error {
	return j.closing.Do(func() error {
		var failed error
		for _, b := range j.boxes.Shut() {
			failed = errors.Join(failed, b.Close(ctx))
		}
		if failed == nil {
			failed = j.dropShared()
		}
		if failed == nil {
			j.end()
		}
		return failed
	})
}

// end gives back what is the host's. A new job may take the id from then on.
func (j *job) end() {
	linux.ReapStrays() // what outlived a runtime that died in the middle of a start
	j.ground.release()
	j.booked.Release()
	j.driver.jobs.Remove(j.spec.ID)
	j.driver.prepareGround()
}

// dropShared removes what it can. A disk that can't be released is tried again.
func (j *job) dropShared() error {
	j.building.Lock()
	defer j.building.Unlock()
	failed := j.layers.Release()
	for digest, m := range j.images {
		failed = errors.Join(failed, m.drop())
		delete(j.images, digest)
	}
	if j.userns != nil {
		failed = errors.Join(failed, j.userns.Close())
		j.userns = nil
	}
	return errors.Join(failed, j.ground.drop())
}
