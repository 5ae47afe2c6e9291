package oci_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

const rootlessEnv = "VEYRA_TEST_ROOTLESS"

// ordinary is an account that only the test's mount namespace knows.
const ordinary = 64_997

// asOrdinary measures as a user with that many subordinate ids.
func asOrdinary(t *testing.T, ids int) map[string]sandbox.Control {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	dir := t.TempDir()
	self := filepath.Join(dir, "self")
	raw, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) string {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sandboxtest.WriteProgram(t, self, string(raw), 0o755)
	for at := dir; at != os.TempDir(); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := "set -e\n"
	for path, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("veyra-ordinary:x:%d:%d::/:/bin/sh\n", ordinary, ordinary),
		"/etc/subuid": fmt.Sprintf("veyra-ordinary:300000:%d\n", ids),
		"/etc/subgid": fmt.Sprintf("%d:300000:%d\n", ordinary, ids),
	} {
		script += fmt.Sprintf("mount --bind %s %s\n", write(filepath.Join(dir, filepath.Base(path)), line), path)
	}
	// The group file may name only what the host has: newgidmap asks for none.
	script += fmt.Sprintf("exec setpriv --reuid %d --regid %d --clear-groups --inh-caps=-all %s\n", ordinary, ordinary, self)
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
	cmd.Env = append(os.Environ(), rootlessEnv+"=1")
	cmd.Stderr = os.Stderr
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
