package linux

import (
	"errors"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestGroupThatNobodyHoldsIsNoExcuse: a sandbox that an engine put into no
// control group of memory is not one of a host without the controller.
func TestGroupThatNobodyHoldsIsNoExcuse(t *testing.T) {
	var a sandbox.Applied
	if err := (Group{All: &Cgroups{}}).Apply(&a); err != nil || a.Memory != 0 || a.Unable != nil {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestA19HostThatThePolicyRefuses names every control that a policy insists on.
func TestA19HostThatThePolicyRefuses(t *testing.T) {
	lacking := []policies.Control{policies.ControlMemory, policies.ControlSwap}
	for name, c := range map[string]struct {
		without []policies.Control
		named   []string
	}{
		"both are insisted on": {nil, []string{"memory: ", "swap: "}},
		"one is":               {lacking[:1], []string{"swap: "}},
		"none is":              {lacking, nil},
	} {
		err := Insist(policies.Policy{Name: "mine", Without: c.without}, lacking)
		var typed *sandbox.Error
		if errors.As(err, &typed) != (c.named != nil) || typed != nil && typed.Kind != sandbox.KindStart {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.named {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q is not named: %v", name, text, err)
			}
		}
	}
}
