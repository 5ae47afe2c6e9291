package sandboxtest

import (
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// about says which control a case tries to its end, where another than the
// backend would have to stop it else.
var about = map[string]policies.Control{
	"B02MemoryOfTheKernel":    policies.ControlMemory,
	"B02CommandThatEndsWell":  policies.ControlMemory,
	"B02ManyChildren":         policies.ControlMemory,
	"B02ChildIsOOM":           policies.ControlMemory,
	"B02InitDiesIsOOM":        policies.ControlMemory,
	"B03TmpfsIsMemory":        policies.ControlMemory,
	"B12BombsEndInside":       policies.ControlMemory,
	"B13CPUByTheHostsAccount": policies.ControlCPU,
}

// lacks says whether a case is about a control that this host can't enforce.
func (h Host) lacks(name string) bool {
	control, found := about[name]
	return found && slices.Contains(h.Unable, control)
}

// goesWithout says whether a control that was not seen is one of those.
func (h Host) goesWithout(c sandbox.Control) bool {
	control := c.For
	if control == "" {
		control = policies.Control(c.Name)
	}
	return c.Waived && (slices.Contains(h.Unable, control) || h.HostIDs && control == policies.ControlUserNamespace)
}

// unproven says whether the proof of a control needs what this host hasn't got.
func (h Host) unproven(name string) bool {
	switch name {
	case "memory":
		return slices.Contains(h.Unable, policies.ControlMemory)
	case "processes":
		return slices.Contains(h.Unnamed, sandbox.LimitPIDs)
	}
	return false
}

// onlyPIDs says that the limit of tasks was named and no other; none where nobody
// counts what it refuses.
func (h Host) onlyPIDs(exit sandbox.Exit) bool {
	if slices.Contains(h.Unnamed, sandbox.LimitPIDs) {
		return len(exit.Limits) == 0
	}
	return len(exit.Limits) == 1 && exit.Limits[0] == sandbox.LimitPIDs
}
