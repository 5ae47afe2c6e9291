package linux

import (
	"errors"
	"runtime"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// CPUs is the number of whole CPUs a sandbox gets.
func CPUs(l policies.Limits) int {
	if l.CPUs <= 0 {
		return runtime.NumCPU()
	}
	return min(l.CPUs, runtime.NumCPU())
}

// Apply reads the group's limits back.
func (g Group) Apply(a *sandbox.Applied) error {
	var errs [3]error
	a.Memory, errs[0] = g.Read("memory", "memory.limit_in_bytes", "memory.max")
	a.PIDs, errs[1] = g.Read("pids", "pids.max", "pids.max")
	a.CPUMilli, errs[2] = g.CPUMilli()
	a.NoSwap = g.NoSwap(a.Memory)
	return errors.Join(errs[:]...)
}

// Counters reads what the kernel counted against the group's limits.
func (g Group) Counters() (sandbox.Counters, error) {
	var c sandbox.Counters
	var errs [3]error
	c.OOMKills, errs[0] = g.Keyed("memory", "memory.oom_control", "memory.events", "oom_kill")
	c.MemoryPeak, errs[1] = g.Peak()
	c.PIDsHits, errs[2] = g.Keyed("pids", "pids.events", "pids.events", "max")
	return c, errors.Join(errs[:]...)
}

// Apply reads the disk's size back, and how the overlay at root was mounted
// on it.
func (d *Disk) Apply(root string, a *sandbox.Applied) error {
	quota, err := d.Quota()
	if err != nil {
		return err
	}
	a.Disk, a.Inodes = quota.Bytes, quota.Inodes
	if a.Overlay, err = OverlayIsPlain(root); err != nil {
		return err
	}
	a.NoDevices, err = HoldNoDevices(root, d.Path)
	return err
}
