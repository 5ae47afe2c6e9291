package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// box is one sandbox. On the host it is a directory b/<id> of the stage with
// the bundle and the overlay's mount point, a disk, a cgroup in each tree, a
// record of the runtime and the processes. Close takes down whatever of it
// exists, so it also undoes a start that failed halfway.
type box struct {
	job    *job
	id     string
	limits policies.Limits

	mu      sync.Mutex // guards the life below; held for whole operations
	view    linux.View
	group   linux.Group
	process *os.Process
	ended   chan struct{} // closed once PID 1 was reaped
	pipes   sandbox.Pipes
	done    bool // frozen or collected
	closed  bool
	noise   *linux.Tail // what PID 1 wrote to its standard error
}

var _ sandbox.DriverSandbox = (*box)(nil)

// start builds the sandbox. What a failure leaves is Close's to remove.
func (b *box) start(ctx context.Context, lowers []string, spec sandbox.Spec) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var userns namespace
	var unbound error
	var bounding sync.WaitGroup
	bounding.Go(func() { userns, unbound = b.bound(lowers[0]) }) // it may wait for a process
	err := b.build(ctx, lowers)
	bounding.Wait()
	defer userns.Close() // the sandbox has joined it by then
	if err := errors.Join(err, unbound); err != nil {
		return err
	}
	if err := b.describe(spec, userns); err != nil {
		return err
	}
	if err := b.launch(ctx); err != nil {
		return err
	}
	b.limitIO()
	return nil
}

// limitIO is no part of any policy: where the host can't, its journal is
// measured instead, and the log says so once.
func (b *box) limitIO() {
	d := b.job.driver
	if d.config.Rootless {
		return // its disk is memory
	}
	if _, err := b.group.LimitIO(b.view.Disk); err != nil {
		d.rateless.Do(func() { d.config.Log.Warn("sandboxes may use the disk as fast as they can", "error", err) })
	}
}

// bound makes the user namespace, where the kernel in the sandbox is the host's.
func (b *box) bound(base string) (namespace, error) {
	if !b.job.driver.bounds() {
		return "", nil
	}
	return b.job.ground.namespaces.take(base)
}

// build makes directory, disk and overlay.
func (b *box) build(ctx context.Context, lowers []string) error {
	d := b.job.driver
	b.view.Dir = filepath.Join(d.config.Stage, "b", b.id)
	b.group = linux.Group{All: d.cgroups, Path: filepath.Join(d.label(), b.id)}
	return b.view.Build(ctx, d.config.Stage, d.pool, linux.Size{Bytes: b.limits.DiskBytes, Inodes: b.limits.Inodes}, b.job.ground.ids.first, lowers)
}

func (b *box) describe(spec sandbox.Spec, userns namespace) error {
	d := b.job.driver
	filter, err := d.config.Seccomp(spec.Profile)
	if err != nil {
		return fmt.Errorf("making the seccomp profile: %w", err)
	}
	return writeBundle(b.view.Dir, bundle(plan{
		rootfs: b.view.Root(), cgroup: b.group.Path,
		first: b.job.ground.ids.first, limits: spec.Limits, cpus: linux.CPUs(spec.Limits),
		swap: d.cgroups.SwapAccounting(), unable: d.unable, seccomp: filter, guest: d.runtime.guest, userns: string(userns),
		rootless: d.config.Rootless,
	}))
}

// launch starts PID 1 with three pipes and begins to wait for its end.
func (b *box) launch(ctx context.Context) error {
	ours, theirs, err := makePipes()
	if err != nil {
		return err
	}
	b.pipes = sandbox.Pipes{Stdin: ours.in, Stdout: ours.out}
	b.noise = linux.Drain(ours.err)
	pid, err := b.job.driver.runtime.run(ctx, b.view.Dir, b.id, theirs)
	for _, f := range []*os.File{theirs.in, theirs.out, theirs.err} {
		_ = f.Close()
	}
	if err == nil {
		err = b.own(pid)
	}
	if err != nil {
		return fmt.Errorf("%w; stderr %q", err, b.noise.Text())
	}
	return nil
}

// own takes over what the runtime has started. A number that is no process of
// this sandbox is not believed: whatever it names would be ended with it.
func (b *box) own(first int) error {
	pids, err := b.members(first)
	if err != nil {
		return err
	}
	if !slices.Contains(pids, first) {
		return fmt.Errorf("no process %d, which the runtime calls PID 1, in the sandbox's cgroup: %w", first, linux.ErrMissing)
	}
	if b.process, err = os.FindProcess(first); err != nil {
		return fmt.Errorf("opening PID 1: %w", err)
	}
	b.ended = make(chan struct{})
	go func(p *os.Process, ended chan struct{}) {
		_, _ = p.Wait() // ends with the process, which Close kills
		close(ended)
	}(b.process, b.ended)
	for _, pid := range pids {
		if pid != first {
			// gVisor's file server is our child, since its parent has ended.
			go linux.Reap(pid) // ends with the sandbox, or at once: no child of ours
		}
	}
	return nil
}

// members lists the processes of the sandbox. Without a cgroup it has one that we
// know, if that is a child of ours and the first of a pid namespace.
func (b *box) members(first int) ([]int, error) {
	if !b.job.driver.config.Rootless {
		return b.group.Members()
	}
	return linux.FirstOfOurs(first)
}

// makePipes returns our and PID 1's ends.
func makePipes() (ours, theirs stdio, err error) {
	var ends [6]*os.File
	for i := 0; i < 6; i += 2 {
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			for _, f := range ends[:i] {
				_ = f.Close()
			}
			return stdio{}, stdio{}, fmt.Errorf("making pipes: %w", err)
		}
	}
	return stdio{ends[1], ends[2], ends[4]}, stdio{ends[0], ends[3], ends[5]}, nil
}

// Pipes hands over our ends once.
func (b *box) Pipes() sandbox.Pipes {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pipes
	b.pipes = sandbox.Pipes{}
	return p
}

// end kills PID 1, and with it its whole pid namespace, then what the runtime
// keeps beside it or a failed start has left, and returns when the kernel has let
// go of every process. The end of PID 1's output is no sign of that: it comes one
// or two milliseconds earlier.
func (b *box) end(ctx context.Context) error {
	if b.process != nil {
		if err := b.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("ending sandbox: %w", err)
		}
		select {
		case <-b.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if b.group.All == nil {
		return nil // nothing was built
	}
	err := b.group.End(ctx)
	if b.process == nil {
		linux.ReapStrays() // of a start that failed
	}
	return err
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
	return b.view.Freeze(ctx, &b.job.layers, b.job.ground.ids.first, parts)
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
// goes on.
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
	for _, f := range []*os.File{b.pipes.Stdin, b.pipes.Stdout} {
		if f != nil {
			_ = f.Close()
		}
	}
	b.pipes = sandbox.Pipes{}
	if err := b.view.Release(); err != nil {
		return err // what is still mounted must not be emptied
	}
	if b.job.driver.config.Rootless {
		b.job.driver.runtime.delete(ctx, b.id)
	}
	if err := errors.Join(b.job.driver.runtime.forget(b.id), b.group.Remove(), os.RemoveAll(b.view.Dir)); err != nil {
		return err
	}
	b.closed = true
	b.job.boxes.Remove(b.id)
	return nil
}
