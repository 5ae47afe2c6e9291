package main_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// foreignCore are each role's scenarios of every run; VEYRA_SOAK=1 plays all.
var foreignCore = map[string]string{
	"WORKER": `^(funded command|detected unittest|new, changed|result refused|result's answer lost|` +
		`forbidden path|failing tests, then|requirements|submit_url of another|lease that is over|newer lease)`,
	"VERIFIER": `^(good commit|criterion broken|tests broken|tests bent|no toolchain|wrong head|list lacks|` +
		`credential that can write, 1|verdict's answer lost|newer lease|tasks of the other role)`,
}

// TestWorksForAForeignWorld runs the daemon against tools/foreign/world.py: a
// control plane, git host and model that were written from the documents by
// themselves and share no code with ours or its fakes. What both of our sides
// misread in the same way can only be seen there.
func TestWorksForAForeignWorld(t *testing.T) {
	needSandboxes(t)
	for _, tool := range []string{"python3", "git", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("not applicable: no " + tool)
		}
	}
	for role := range foreignCore {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			liveInForeignWorld(t, role)
		})
	}
}

func liveInForeignWorld(t *testing.T, role string) {
	script, err := filepath.Abs("../../tools/foreign/world.py")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{script, "--daemon", house.daemon, "--policy", "strict", "--role", role}
	if os.Getenv("VEYRA_SOAK") == "" {
		args = append(args, "--only", foreignCore[role])
	} else {
		args = append(args, "--slow")
	}
	cmd := exec.CommandContext(t.Context(), "python3", args...)
	cmd.Env = environ("TMPDIR="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1")
	// The script ends its daemon when asked to; a kill would orphan it.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Minute
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	passed, failed, summary := 0, 0, ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "ok "):
			passed++
			t.Log(line)
		case strings.HasPrefix(line, "FAIL "):
			failed++
			t.Error(line)
		case strings.Contains(line, " passed, "):
			summary = line
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("running the foreign world: %v\n%s", err, stderr.String())
	}
	if want := fmt.Sprintf("%d passed, %d failed", passed, failed); summary != want || passed == 0 {
		t.Errorf("the foreign world says %q; its lines say %q", summary, want)
	}
}
