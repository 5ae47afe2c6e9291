package main_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestPolicyGoesWithoutWhatTheHostLacks: a host without the memory controller
// runs sandboxes under a policy that goes without the limit, and under no other;
// doctor says what is waived.
func TestPolicyGoesWithoutWhatTheHostLacks(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	unmount := `for m in $(awk '$9 == "cgroup" && $NF ~ /(^|,)memory(,|$)/ {print $5}' /proc/self/mountinfo); do umount -l "$m" || exit 1; done`
	if !strings.Contains(readFile(t, "/proc/self/mountinfo"), " - cgroup cgroup rw,memory\n") {
		t.Skip("not applicable: only a controller of version 1 can be taken from one process alone")
	}
	host, dir := takeAway{prelude: unmount}, realRuntime(t)
	without := ownPolicy(t, "name: mine\nextends: standard\nwithout: [memory, swap]\n")

	got := host.ended(t, dir, "doctor", "--json", "--policy", without, "--config", frugal(t)).want(t, 0)
	var d diagnosed
	if err := json.Unmarshal([]byte(got.out), &d); err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Backend.Controls {
		if lacks := slices.Contains([]string{"memory", "swap", "cgroup_memory"}, c.Name); c.Enforced == lacks || c.Waived != lacks {
			t.Errorf("doctor says %+v", c)
		}
	}
	if got := host.ended(t, dir, "sandbox", "run", "--policy", without, "--config", frugal(t), "--", "sh", "-c", "exit 7"); got.code != 7 {
		t.Errorf("sandbox run ends with %d: %s", got.code, got.err)
	}
	for _, policy := range []string{"strict", "standard", ownPolicy(t, "name: mine\nextends: standard\nwithout: [pids]\n")} {
		got := host.ended(t, dir, "doctor", "--json", "--policy", policy, "--config", frugal(t)).want(t, 4)
		if !strings.Contains(got.out, "cgroup_memory: not mounted") {
			t.Errorf("doctor under %s: %s", policy, got.out)
		}
		got = host.ended(t, dir, "sandbox", "run", "--policy", policy, "--config", frugal(t), "--", "true").want(t, 125)
		if !strings.Contains(got.err, "memory: ") || strings.Contains(got.err, string(sandbox.KindNoRoom)) {
			t.Errorf("sandbox run under %s: %s", policy, got.err)
		}
	}
}
