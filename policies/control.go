package policies

import (
	"slices"
)

// Control names something that a sandbox is held by and that is read back from
// the host once it has started, for example "memory". The names are those of a
// probe's report and of the error of a start that is refused.
type Control string

// The controls that an owner's policy may go without, since there are honest
// hosts that can't enforce them. What keeps a stranger's code from the host
// itself (seccomp, no_new_privs, capabilities, namespaces, network, mounts) is
// not among them: no policy runs without.
const (
	ControlMemory        Control = "memory"
	ControlSwap          Control = "swap"
	ControlPIDs          Control = "pids"
	ControlCPU           Control = "cpu"
	ControlDisk          Control = "disk"
	ControlInodes        Control = "inodes"
	ControlShm           Control = "shm"
	ControlOpenFiles     Control = "open_files"
	ControlCoreFiles     Control = "core_files"
	ControlUserNamespace Control = "user_namespace"
	ControlOverlay       Control = "overlay"
)

// waivers say what going without a control means, in the order of the consts.
var waivers = []struct {
	control Control
	means   string
}{
	{ControlMemory, "A job may use all memory of the host where that can't be limited, and the kernel then ends other programs."},
	{ControlSwap, "A job's memory may be swapped out where swap can't be limited: its limit then holds no longer, and its content reaches the host's disk."},
	{ControlPIDs, "A job may start as many processes as the host has room for where that can't be limited, so that others can start none."},
	{ControlCPU, "A job may use every CPU of the host where that can't be limited."},
	{ControlDisk, "A job may fill the host's disk where its bytes can't be limited."},
	{ControlInodes, "A job may use up the inodes of the host's disk where they can't be limited."},
	{ControlShm, "A job's shared memory may grow to its memory limit where it has no size of its own."},
	{ControlOpenFiles, "A job may open more files than its limit where that can't be set."},
	{ControlCoreFiles, "A crash in a job may write a core file where that can't be limited."},
	{ControlUserNamespace, "A sandbox may run without a user namespace where none can be made: root inside is then root of the host, held by the other controls alone."},
	{ControlOverlay, "A sandbox's layers may be joined with options that follow what a job wrote where those can't be switched off."},
}

// Waivable returns the controls that an owner's policy may go without.
func Waivable() []Control {
	out := make([]Control, 0, len(waivers))
	for _, w := range waivers {
		out = append(out, w.control)
	}
	return out
}

// Tolerates says whether sandboxes may run under p where the host can't enforce
// the control: because the owner's file goes without it, or because p does not
// require it. A backend still applies every control that it can; under a policy
// that extends strict the answer is always false.
func (p Policy) Tolerates(c Control) bool {
	switch {
	case c == ControlUserNamespace && !p.Require.UserNamespace:
		return true
	case (c == ControlDisk || c == ControlInodes) && !p.Require.DiskQuota:
		return true
	}
	return slices.Contains(p.Without, c) && slices.Contains(Waivable(), c)
}

// withoutWarnings are the sentences of the controls that p goes without.
func (p Policy) withoutWarnings() []string {
	var out []string
	for _, w := range waivers {
		if slices.Contains(p.Without, w.control) {
			out = append(out, w.means)
		}
	}
	return out
}
