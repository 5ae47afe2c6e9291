package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

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
	a := sandbox.Applied{Isolation: sandbox.IsolationUserns}
	err := errors.Join(b.applyCgroup(&a), b.applyDisk(&a), linux.ReadProcess(b.process.Pid, &a))
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	return a, nil
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
	a.Overlay, err = linux.OverlayIsPlain(b.rootfs())
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
