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
	var a sandbox.Applied
	err := errors.Join(b.applyIsolation(&a), b.applyCgroup(&a), b.applyDisk(&a), linux.ReadProcess(b.process.Pid, &a))
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	return a, nil
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

func (b *box) applyCgroup(a *sandbox.Applied) error {
	var errs [3]error
	a.Memory, errs[0] = b.group.Read("memory", "memory.limit_in_bytes", "memory.max")
	a.PIDs, errs[1] = b.group.Read("pids", "pids.max", "pids.max")
	a.CPUMilli, errs[2] = b.group.CPUMilli()
	a.NoSwap = b.group.NoSwap(a.Memory)
	return errors.Join(errs[:]...)
}

func (b *box) applyDisk(a *sandbox.Applied) error {
	quota, err := b.disk.Quota()
	if err != nil {
		return err
	}
	a.Disk, a.Inodes = quota.Bytes, quota.Inodes
	if a.Overlay, err = linux.OverlayIsPlain(b.rootfs()); err != nil {
		return err
	}
	a.NoDevices, err = linux.HoldNoDevices(b.rootfs(), b.disk.Path)
	return err
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
	var c sandbox.Counters
	var errs [4]error
	c.OOMKills, errs[0] = b.group.Keyed("memory", "memory.oom_control", "memory.events", "oom_kill")
	c.MemoryPeak, errs[1] = b.group.Peak()
	c.PIDsHits, errs[2] = b.group.Keyed("pids", "pids.events", "pids.events", "max")
	if b.disk != nil {
		c.DiskErrors, errs[3] = b.disk.Failures()
	}
	select {
	case <-b.ended:
		c.Ended = true
	default:
	}
	if err := errors.Join(errs[:]...); err != nil {
		return sandbox.Counters{}, fmt.Errorf("reading counters: %w", err)
	}
	return c, nil
}
