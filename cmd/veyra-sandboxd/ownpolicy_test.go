package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// ownPolicy writes an owner's policy file.
func ownPolicy(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mine.yaml")
	writeFile(t, file, text, 0o644)
	return file
}

// TestJobUnderAnOwnersPolicy: the name, the digest and the limits of the file are
// what evidence tells; what it weakens is told at start and counted.
func TestJobUnderAnOwnersPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	p.policy = ownPolicy(t, "name: mine\nextends: strict\nlimits:\n  pids: 777\n  open_files: 5000\n")
	d := w.start(p)
	d.pair(w)
	done := w.accepted(w.job("mine", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."}))
	wantOwnEvidence(t, done)
	for _, sentence := range []string{"more processes than strict allows: 777, not 512", "more open files than strict allows: 5000, not 4096"} {
		if !strings.Contains(d.text(), "weakening: A sandbox may use "+sentence) {
			t.Errorf("the start does not say %q", sentence)
		}
	}
	said := strings.Count(d.text(), "weakening: ")
	if _, page := get(t, "http://"+d.admin+"/metrics"); said < 2 || !strings.Contains(page, fmt.Sprintf("\nveyra_sandboxd_policy_weakenings %d\n", said)) {
		t.Errorf("policy_weakenings is not the %d of the log", said)
	}
	d.stop()
}

func wantOwnEvidence(t *testing.T, j controlplanetest.JobView) {
	t.Helper()
	box, _ := j.Evidence["sandbox"].(map[string]any)
	limits, _ := box["limits"].(map[string]any)
	if j.Evidence["policy"] != "mine" || fmt.Sprint(limits["pids"]) != "777" {
		t.Errorf("evidence tells of the policy %v with %v processes", j.Evidence["policy"], limits["pids"])
	}
	if digest, _ := j.Evidence["policy_sha256"].(string); len(digest) != 64 {
		t.Errorf("evidence has the digest %q", digest)
	}
}

// TestOwnersLimitHolds: the number of the file is what ends the forks.
func TestOwnersLimitHolds(t *testing.T) {
	t.Parallel()
	file := ownPolicy(t, "name: few\nextends: strict\nlimits: {pids: 40}\n")
	got := sandboxed(t, "", "--policy", file, "--", "sh", "-c", "for i in $(seq 60); do sleep 600 & done; true")
	if !strings.Contains(got.err, "pids") {
		t.Errorf("ended with %d and %q", got.code, got.err)
	}
}

// TestSpoiltPolicyFileStopsTheDaemon with 78 and everything that is wrong, before
// anything is made.
func TestSpoiltPolicyFileStopsTheDaemon(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	for name, file := range map[string]string{
		"line 2: extends": ownPolicy(t, "name: mine\nextends: none\nlimits: {pids: 1}\n"),
		"limits.pids":     ownPolicy(t, "name: mine\nextends: none\nlimits: {pids: 1}\n"),
		"no such file":    "/no/such/policy.yaml",
		"chmod go-w":      openPolicy(t),
	} {
		got := command(t, nil, "run", "--policy", file, "--state-dir", state).want(t, 78)
		if !strings.Contains(got.err, name) {
			t.Errorf("%s: %q", name, got.err)
		}
	}
}

func openPolicy(t *testing.T) string {
	t.Helper()
	file := ownPolicy(t, "name: mine\nextends: strict\n")
	must(t, os.Chmod(file, 0o666))
	return file
}
