package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// box is one sandbox. On the host it is a directory b/<id> of the stage with the
// overlay's mount point, a disk, and a container with its processes. The kernel
// decides whether it lives: what the engine says is a hint. Close takes down
// whatever of it exists, so it also undoes a start that failed halfway.
type box struct {
	job    *job
	id     string
	limits policies.Limits
	graft  graft

	ulimits []*container.Ulimit // as asked for

	mu        sync.Mutex // guards the life below; held for whole operations
	view      linux.View
	container string // the engine's id; empty: none is known
	unsure    string // name of a container that may exist all the same
	pump      *pump
	pipes     sandbox.Pipes
	first     *process // PID 1; nil until it was found
	done      bool     // frozen or collected
	closed    bool
}

var _ sandbox.DriverSandbox = (*box)(nil)

func newBox(j *job, limits policies.Limits) *box {
	d := j.driver
	b := &box{job: j, id: d.name("s"), limits: limits}
	b.view.Dir = filepath.Join(d.config.Stage, "b", b.id)
	b.graft.path = filepath.Join(d.config.RunDir, d.config.Instance, graftDir, b.id)
	return b
}

// start builds the sandbox. What a failure leaves is Close's to remove.
func (b *box) start(ctx context.Context, lowers []string, digest images.Digest, spec sandbox.Spec) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, err := b.job.driver.take(digest)
	if err != nil {
		return err
	}
	defer c.release()
	image, err := b.job.driver.image(ctx, c)
	if err != nil {
		return err
	}
	if err := b.build(ctx, lowers); err != nil {
		return err
	}
	p, err := b.job.plan(b, spec, image, digest)
	if err != nil {
		return err
	}
	b.ulimits = p.ulimits
	if err := b.lend(ctx); err != nil {
		return err
	}
	err = b.launch(ctx, p)
	return errors.Join(err, b.takeBack())
}

// build makes directory, disk and overlay.
func (b *box) build(ctx context.Context, lowers []string) error {
	d := b.job.driver
	return b.view.Build(ctx, d.config.Stage, d.pool, linux.Size{Bytes: b.limits.DiskBytes, Inodes: b.limits.Inodes}, b.job.about.first, lowers)
}

// lend shows the overlay and the terminals to the engine.
func (b *box) lend(ctx context.Context) error {
	space, err := b.job.driver.engine.mountSpace(ctx)
	if err != nil {
		return err
	}
	b.graft.space = space
	mounts := map[string]int{}
	defer func() {
		for _, fd := range mounts {
			_ = unix.Close(fd)
		}
	}()
	if mounts[rootName], err = detached(b.view.Root()); err != nil {
		return err
	}
	if !b.job.about.guest() {
		if mounts[ptsName], err = terminals(b.job.about.first); err != nil {
			return err
		}
	}
	return b.graft.plant(b.job.about.first, mounts)
}

// takeBack ends the loan. The container has its own copies by now.
func (b *box) takeBack() error {
	if b.graft.space == nil {
		return nil
	}
	if err := b.graft.uproot(); err != nil {
		return err
	}
	err := b.graft.space.Close()
	b.graft.space = nil
	return err
}

// launch creates and starts the container. The streams come first: whoever
// attaches later has lost the first words.
func (b *box) launch(ctx context.Context, p plan) (err error) {
	e := b.job.driver.engine
	if err := b.make(ctx, p); err != nil {
		return err
	}
	s, err := e.attach(ctx, b.container)
	if err != nil {
		return err
	}
	if b.pump, b.pipes, err = newPump(s); err != nil {
		_ = s.conn.Close()
		return err
	}
	if err := e.start(ctx, b.container); err != nil {
		return err
	}
	return b.find(ctx)
}

// make creates the container. Afterwards b knows what there is of it, or may be.
func (b *box) make(ctx context.Context, p plan) error {
	e := b.job.driver.engine
	id, err := e.create(ctx, p)
	if isConflict(err) {
		if err := b.clear(ctx, p.name); err != nil {
			return err
		}
		id, err = e.create(ctx, p)
	}
	b.container = id
	if id == "" && !isRefused(err) {
		b.unsure = p.name // the answer was lost
	}
	return err
}

// clear removes what has taken a name: a container that the engine kept, or got
// back, of an earlier life of this runner. Somebody else's stays.
func (b *box) clear(ctx context.Context, name string) error {
	d := b.job.driver
	old, err := d.engine.inspect(ctx, name)
	if isMissing(err) {
		return nil // it has gone meanwhile
	}
	if err != nil {
		return err
	}
	if !d.ours(old.held) && !d.past(old.held) {
		return fmt.Errorf("the engine has a container named %s that isn't this instance's to remove; remove or rename it", name)
	}
	if err := d.engine.remove(ctx, old.id); err != nil {
		d.owe()
		return err
	}
	return nil
}

// find takes hold of PID 1: by descriptor, since numbers are given again, and by
// the control group that carries the container's id.
func (b *box) find(ctx context.Context) error {
	saw, err := b.job.driver.engine.inspect(ctx, b.container)
	if err != nil {
		return err
	}
	if !saw.running || saw.pid <= 0 {
		return fmt.Errorf("PID 1 ended at once; stderr %q", b.pump.noise.Text())
	}
	if b.first, err = hold(saw.pid, saw.id); err != nil {
		return err
	}
	if b.job.about.guest() {
		if err := b.first.limitCores(uint64(b.limits.CoreBytes)); err != nil {
			return err
		}
	}
	b.limitIO()
	go b.watch(b.first, b.pump)
	return nil
}

// limitIO is no part of any policy: where the host can't, the log says so once.
func (b *box) limitIO() {
	d := b.job.driver
	if _, err := b.first.group.LimitIO(b.view.Disk); err != nil {
		d.rateless.Do(func() { d.config.Log.Warn("sandboxes may use the disk as fast as they can", "error", err) })
	}
}

// Pipes hands over our ends once.
func (b *box) Pipes() sandbox.Pipes {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pipes
	b.pipes = sandbox.Pipes{}
	return p
}

// How an engine is watched while a sandbox runs: one that does not answer three
// times in a row can't carry frames either.
const (
	watchEvery  = 5 * time.Second
	watchMisses = 3
	lastOutput  = 2 * time.Second
)

// watch ends with PID 1. An engine that hangs is as good as gone, and the sandbox
// ends with it.
func (b *box) watch(first *process, p *pump) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for misses := 0; ; {
		select {
		case <-first.ended:
			p.dropAfter(lastOutput)
			return
		case <-tick.C:
		}
		if _, err := b.job.driver.engine.ping(context.Background()); err == nil {
			misses = 0
		} else if misses++; misses == watchMisses {
			b.job.driver.config.Log.Error("the Docker Engine hangs; its sandbox ends", "sandbox", b.id, "err", err)
			b.job.driver.owe()
			_ = first.kill()
		}
	}
}

// end kills PID 1, and with it its whole pid namespace, and returns when the
// kernel has let go of every process. The engine isn't asked: it may hang.
func (b *box) end(ctx context.Context) error {
	if b.pump != nil {
		b.pump.drop()
	}
	if b.first == nil {
		return nil
	}
	if err := b.first.kill(); err != nil {
		return fmt.Errorf("ending sandbox: %w", err)
	}
	select {
	case <-b.first.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return b.first.group.WaitEmpty(ctx)
}

// finish is what Freeze and Collect share: every process is dead, the overlay
// is gone, and the disk held what was written.
func (b *box) finish(ctx context.Context, op string) error {
	if b.done || b.closed {
		return &sandbox.Error{Kind: sandbox.KindRefused, Op: op + ": it has ended"}
	}
	if err := b.end(ctx); err != nil {
		return err
	}
	b.done = true
	return b.view.Leave(op)
}

// Freeze ends the sandbox and turns parts of its upper directory into layers.
func (b *box) Freeze(ctx context.Context, parts []sandbox.Part) ([]sandbox.LayerID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.finish(ctx, "freezing sandbox"); err != nil {
		return nil, err
	}
	return b.view.Freeze(ctx, &b.job.layers, b.job.about.first, parts)
}

// Collect ends the sandbox and streams what its workspace changed.
func (b *box) Collect(ctx context.Context, w io.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.finish(ctx, "collecting changes"); err != nil {
		return err
	}
	return b.view.Collect(ctx, b.limits, w)
}

// Close removes the sandbox, whatever of it exists; after a failure a further call
// goes on. A container that the engine doesn't remove is dead all the same; it is
// the next sweep's.
func (b *box) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if err := b.end(ctx); err != nil {
		return err
	}
	b.done = true
	b.removeContainer(ctx)
	for _, f := range []*os.File{b.pipes.Stdin, b.pipes.Stdout} {
		if f != nil {
			_ = f.Close()
		}
	}
	b.pipes = sandbox.Pipes{}
	if err := errors.Join(b.takeBack(), b.view.Release()); err != nil {
		return err
	}
	if err := os.RemoveAll(b.view.Dir); err != nil {
		return fmt.Errorf("removing sandbox directory: %w", err)
	}
	if b.first != nil {
		_ = b.first.release()
	}
	b.closed = true
	b.job.boxes.Remove(b.id)
	return nil
}

// removeContainer tells the engine once. The pump goes on until then.
func (b *box) removeContainer(ctx context.Context) {
	if err := b.forget(ctx); err != nil {
		b.job.driver.config.Log.Warn("the engine did not remove a container; the next sweep will", "sandbox", b.id, "err", err)
		b.job.driver.owe()
	}
	b.container, b.unsure = "", ""
	if b.pump != nil {
		b.pump.close()
	}
}

// forget has the engine remove the container, and what may be one.
func (b *box) forget(ctx context.Context) error {
	if b.container == "" && b.unsure == "" {
		return nil
	}
	e := b.job.driver.engine
	if _, err := e.ping(ctx); err != nil { // or one that hangs would hold us up for all of remove's time
		return err
	}
	if b.container == "" {
		return b.lookFor(ctx, b.unsure)
	}
	return e.remove(ctx, b.container)
}

// lookFor removes the container that was asked for under a name. One that isn't
// there may still be on its way.
func (b *box) lookFor(ctx context.Context, name string) error {
	d := b.job.driver
	found, err := d.engine.inspect(ctx, name)
	if isMissing(err) {
		d.owe()
		return nil
	}
	if err != nil {
		return err
	}
	if !d.ours(found.held) {
		return nil // never ours
	}
	return d.engine.remove(ctx, found.id)
}
