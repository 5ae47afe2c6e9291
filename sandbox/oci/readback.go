package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// errIsolation is in the chain when a runtime did not bring what holds its
// sandboxes.
var errIsolation = errors.New("the runtime has another isolation")

// Applied reads every control back from the host's side.
func (b *box) Applied(ctx context.Context) (sandbox.Applied, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Applied{}, err
	}
	if b.done || b.closed || b.process == nil {
		return sandbox.Applied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading a sandbox back: it has ended"}
	}
	a := sandbox.Applied{Unable: b.job.driver.unable}
	err := errors.Join(b.applyIsolation(&a), b.group.Apply(&a), b.view.Disk.Apply(b.view.Root(), &a), linux.ReadProcess(b.process.Pid, &a))
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	if b.job.driver.config.Rootless {
		err = readRootless(b.process.Pid, &a)
	}
	return a, err
}

// applyIsolation wants what the runtime is there for.
func (b *box) applyIsolation(a *sandbox.Applied) (err error) {
	runtime := b.job.driver.runtime
	if a.Isolation, err = linux.IsolationOf(b.process.Pid, runtime.path); err != nil {
		return err
	}
	if a.Isolation != runtime.isolation {
		return fmt.Errorf("%s, but this sandbox is held by %s: %w", runtime.name, a.Isolation, errIsolation)
	}
	return nil
}

// Counters reads what the kernel counted against the limits.
func (b *box) Counters(ctx context.Context) (sandbox.Counters, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Counters{}, err
	}
	if b.closed || b.process == nil {
		return sandbox.Counters{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading counters: the sandbox is closed"}
	}
	c, err := b.group.Counters()
	if b.view.Disk != nil {
		var diskErr error
		c.DiskErrors, diskErr = b.view.Disk.Failures()
		err = errors.Join(err, diskErr)
	}
	select {
	case <-b.ended:
		c.Ended = true
	default:
	}
	if err != nil {
		return sandbox.Counters{}, fmt.Errorf("reading counters: %w", err)
	}
	return c, nil
}
