package policies_test

import (
	"slices"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

func TestBuiltinPoliciesTolerateWhatTheyDoNotRequire(t *testing.T) {
	for _, c := range policies.Waivable() {
		if builtin(t, "strict").Tolerates(c) {
			t.Errorf("strict goes without %s", c)
		}
		notRequired := slices.Contains([]policies.Control{policies.ControlUserNamespace, policies.ControlDisk, policies.ControlInodes}, c)
		for _, name := range []string{"standard", "relaxed"} {
			if got := builtin(t, name).Tolerates(c); got != notRequired {
				t.Errorf("%s goes without %s: %t", name, c, got)
			}
		}
	}
}

// TestWhatHoldsAStrangerIsNeverWaived: these have to be there on every host.
func TestWhatHoldsAStrangerIsNeverWaived(t *testing.T) {
	for _, c := range []policies.Control{
		"network", "namespaces", "init_capabilities", "command_capabilities", "no_new_privs", "seccomp", "root_read_only", "mounts",
	} {
		if slices.Contains(policies.Waivable(), c) {
			t.Errorf("%s may be waived", c)
		}
	}
}

// TestEachWaivedControlIsAWeakening: one sentence each, and a digest of its own.
func TestEachWaivedControlIsAWeakening(t *testing.T) {
	standard := builtin(t, "standard")
	seen := map[string]policies.Control{}
	for _, c := range policies.Waivable() {
		p := standard
		p.Without = []policies.Control{c}
		if !p.Tolerates(c) {
			t.Errorf("%s is not tolerated", c)
		}
		if got, want := len(p.Warnings()), len(standard.Warnings())+1; got != want {
			t.Errorf("%s: %d sentences, want %d", c, got, want)
		}
		e, err := p.Effective()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := e.Digest("")
		if err != nil || seen[digest] != "" {
			t.Errorf("%s has the digest of %s: %v", c, seen[digest], err)
		}
		seen[digest] = c
	}
}
