package oci

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// ground is what a job's sandboxes stand on and what depends on nothing but an id
// range: the range itself, the lower layers of ours and user namespaces. One is made
// ready while no job is open, since a job's first start would wait for each part.
type ground struct {
	driver     *Driver
	ids        *idRange
	bases      linux.Bases
	namespaces *boundedNamespaces
}

// namespacesReady is how many sandboxes a job starts within a second.
const namespacesReady = 6

// newGround takes a range of ids; all else is made when it is asked for.
func (d *Driver) newGround() (*ground, error) {
	ids, err := d.ids.take(d.config.Run)
	if errors.Is(err, errNoRange) {
		return nil, &sandbox.Error{Kind: sandbox.KindNoRoom, Op: "taking an id range", Err: err}
	}
	if err != nil {
		return nil, startError("taking an id range", err)
	}
	return &ground{
		driver: d, ids: ids, namespaces: newNamespaces(ids.first, d.pathIn("u")),
		bases: linux.Bases{First: ids.first, Programs: d.config.Binaries, Path: d.pathIn("o")},
	}, nil
}

// pathIn makes paths in a directory of the stage, each of them once.
func (d *Driver) pathIn(dir string) func() string {
	return func() string { return filepath.Join(d.config.Stage, dir, d.name("")) }
}

// prepare makes all that a job will ask for.
func (g *ground) prepare() error {
	_, err := g.bases.Get(true)
	with, err2 := g.bases.Get(false)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if g.driver.bounds() {
		g.namespaces.fill(with, namespacesReady)
	}
	return nil
}

// drop removes everything but the hold on the ids, which release gives back once
// all that had them is gone.
func (g *ground) drop() error {
	return errors.Join(g.namespaces.Close(), g.bases.Drop())
}

func (g *ground) release() { g.ids.lock.Release() }

// bounds tells whether a sandbox's user namespace is made beforehand: the objects
// of a guest are its own.
func (d *Driver) bounds() bool { return !d.runtime.guest }

// takeGround returns the one that is ready, or a new one.
func (d *Driver) takeGround() (*ground, error) {
	d.mu.Lock()
	g := d.ready
	d.ready = nil
	d.mu.Unlock()
	if g != nil {
		return g, nil
	}
	return d.newGround()
}

// prepareGround makes one ready in the background, unless there is one or a job
// is open by then. Where that fails the next job says why.
func (d *Driver) prepareGround() {
	d.preparing.Go(func() {
		select {
		case <-time.After(linux.RestAfter):
		case <-d.closing:
			return
		}
		if !d.wantsGround() {
			return
		}
		g, err := d.newGround()
		if err == nil && g.prepare() != nil {
			d.discard(g)
			g = nil
		}
		d.keepGround(g)
	})
}

// wantsGround lets one at a time be made.
func (d *Driver) wantsGround() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.making || d.ready != nil || len(d.jobs.All()) > 0 {
		return false
	}
	d.making = true
	return true
}

// keepGround ends what wantsGround began; g is nil where none could be made. At the
// driver's end dropGround waits for it.
func (d *Driver) keepGround(g *ground) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready, d.making = g, false
}

// discard takes down a ground that no job has stood on.
func (d *Driver) discard(g *ground) {
	if err := g.drop(); err != nil {
		d.config.Log.Error("taking down what was ready for a job", "error", err)
	}
	g.release()
}

// dropGround ends the preparing, for good.
func (d *Driver) dropGround() {
	d.mu.Lock()
	if !d.closed {
		close(d.closing)
	}
	d.closed = true
	d.mu.Unlock()
	d.preparing.Wait()
	d.mu.Lock()
	g := d.ready
	d.ready = nil
	d.mu.Unlock()
	if g != nil {
		d.discard(g)
	}
}
