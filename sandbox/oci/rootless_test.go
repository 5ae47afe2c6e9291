package oci_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

const rootlessEnv = "VEYRA_TEST_ROOTLESS"

// asOrdinary measures as a user with that many subordinate ids.
func asOrdinary(t *testing.T, ids int) map[string]sandbox.Control {
	t.Helper()
	o := sandboxtest.NewOrdinary(t, ids)
	cmd := o.Command(t, false, o.Copy(t, "/proc/self/exe", "self"))
	cmd.Env, cmd.Stderr = append(cmd.Env, rootlessEnv+"=1"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var controls []sandbox.Control
	if err := json.Unmarshal(out, &controls); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	named := map[string]sandbox.Control{}
	for _, c := range controls {
		named[c.Name] = c
	}
	return named
}

// TestOrdinaryUserIsMeasured: ids and mounts are really made; what an ordinary
// user can't have is said, with what would give it.
func TestOrdinaryUserIsMeasured(t *testing.T) {
	seen := asOrdinary(t, 65_536)
	for _, name := range []string{"subordinate_ids", "user_namespace", "mounts", "overlay", "pids", "disk", "inodes"} {
		if c := seen[name]; !c.Enforced || c.Seen == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for _, name := range []string{"memory", "cpu"} {
		if c := seen[name]; c.Enforced || c.Seen == "" || c.Fix == "" {
			t.Errorf("%s without a control group: %+v", name, c)
		}
	}
	if c, found := seen["swap"]; !found || c.Enforced == linux.HostHasSwap() {
		t.Errorf("swap: %+v", c)
	}
}

// TestTooFewSubordinateIDs: a sandbox's range doesn't fit.
func TestTooFewSubordinateIDs(t *testing.T) {
	seen := asOrdinary(t, 65_535)
	if c := seen["subordinate_ids"]; c.Enforced || !strings.Contains(c.Seen, "65535 user ids") || !strings.Contains(c.Fix, "65536") {
		t.Errorf("subordinate ids: %+v", c)
	}
	if c, tried := seen["user_namespace"]; tried {
		t.Errorf("a namespace was tried all the same: %+v", c)
	}
	for _, name := range []string{"pids", "disk", "inodes"} {
		if c := seen[name]; c.Enforced || c.Fix == "" {
			t.Errorf("%s without a namespace: %+v", name, c)
		}
	}
}
