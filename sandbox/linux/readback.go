package linux

import (
	"errors"
	"fmt"
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

// Apply reads the group's limits back. One whose controller does not hold this
// group stays 0: whether the host could have held it is the driver's to know.
func (g Group) Apply(a *sandbox.Applied) error {
	var errs [3]error
	if g.has("memory") {
		a.Memory, errs[0] = g.Read("memory", "memory.limit_in_bytes", "memory.max")
		a.NoSwap = g.NoSwap(a.Memory)
	}
	if g.has("pids") {
		a.PIDs, errs[1] = g.Read("pids", "pids.max", "pids.max")
	}
	if g.has("cpu") {
		a.CPUMilli, errs[2] = g.CPUMilli()
	}
	return errors.Join(errs[:]...)
}

func (g Group) has(controller string) bool {
	_, ok := g.All.With(controller)
	return ok
}

// Insist refuses to begin on a host that can't enforce what the policy doesn't go
// without. The supervisor compares every sandbox with the policy; this much the
// runner does by itself, so that one that was taken over starts none (attack case
// A19).
func Insist(policy policies.Policy, unable []policies.Control) error {
	var failed error
	for _, control := range unable {
		if !policy.Tolerates(control) {
			failed = errors.Join(failed, fmt.Errorf("%s: it can't be enforced on this host, and the policy %s doesn't go without it", control, policy.Name))
		}
	}
	if failed == nil {
		return nil
	}
	return &sandbox.Error{Kind: sandbox.KindStart, Op: "comparing the host with the policy", Err: failed}
}

// Unable are the controls that can't be enforced for want of a controller. Ask
// before there is any sandbox: later, what merely failed looks the same.
func (c *Cgroups) Unable() []policies.Control {
	var unable []policies.Control
	for _, needs := range []struct {
		controller string
		controls   []policies.Control
	}{
		{"memory", []policies.Control{policies.ControlMemory, policies.ControlSwap}},
		{"pids", []policies.Control{policies.ControlPIDs}},
		{"cpu", []policies.Control{policies.ControlCPU}},
	} {
		if _, ok := c.With(needs.controller); !ok {
			unable = append(unable, needs.controls...)
		}
	}
	return unable
}

// Counters reads what the kernel counted against the group's limits; 0 where
// nobody counts.
func (g Group) Counters() (sandbox.Counters, error) {
	var c sandbox.Counters
	var errs [3]error
	if g.has("memory") {
		c.OOMKills, errs[0] = g.Keyed("memory", "memory.oom_control", "memory.events", "oom_kill")
		c.MemoryPeak, errs[1] = g.Peak()
	}
	if g.has("pids") {
		c.PIDsHits, errs[2] = g.Keyed("pids", "pids.events", "pids.events", "max")
	}
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
