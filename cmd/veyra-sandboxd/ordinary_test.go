package main_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// ordinaryUser runs commands of the daemon's program as an account without any
// power, which has the ids of one job.
type ordinaryUser struct {
	sandboxtest.Ordinary
	daemon string
}

func newOrdinaryUser(t *testing.T) ordinaryUser {
	t.Helper()
	needSandboxes(t)
	u := ordinaryUser{Ordinary: sandboxtest.NewOrdinary(t, 65_536)}
	u.daemon = u.Copy(t, house.daemon, "veyra-sandboxd")
	runc, err := exec.LookPath(runtimePath())
	if err != nil {
		runc, err = exec.LookPath("runc")
	}
	if err != nil {
		t.Fatal(err)
	}
	u.Copy(t, runc, "runc")
	return u
}

func (u ordinaryUser) says(t *testing.T, env []string, args ...string) said {
	t.Helper()
	cmd := u.Command(t, false, append([]string{u.daemon}, args...)...)
	var out, errs strings.Builder
	cmd.Env = append(append(cmd.Env, "HOME="+u.Own, "XDG_RUNTIME_DIR="+filepath.Join(u.Own, "run")), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// TestSandboxRunAsOrdinaryUser: what such a user can have is held, the owner's file
// says what is not, and what a command did to a directory comes back, also what an
// overlay has marks for.
func TestSandboxRunAsOrdinaryUser(t *testing.T) {
	u := newOrdinaryUser(t)
	policy := filepath.Join(u.Dir, "policy.yaml")
	source, changes := filepath.Join(u.Dir, "source"), filepath.Join(u.Own, "changes")
	for name, text := range map[string]string{"kept": "1", "gone": "2", "again/old": "3"} {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, text, 0o644)
	}
	got := u.says(t, nil, "sandbox", "run", "--json", "--policy", policy, "-C", source, "--changes", changes, "--", "sh", "-c",
		"id -u; cat kept; rm gone; rm -r again; mkdir again; echo new > again/new; exit 7").want(t, 7)
	if got.out != "1000\n1" {
		t.Errorf("it says %q", got.out)
	}
	if text := readFile(t, filepath.Join(changes, "again", "new")); text != "new\n" {
		t.Errorf("a new file holds %q", text)
	}
	for _, word := range []string{`"gone"`, `"again"`} {
		if !strings.Contains(got.err, word) {
			t.Errorf("%s is not told: %s", word, got.err)
		}
	}
	left, err := os.ReadDir(filepath.Join(u.Own, "run"))
	if err != nil || len(left) != 0 {
		t.Errorf("the run directory still has %v, %v", left, err)
	}
}

// TestDoctorOfAnOrdinaryUserStartsASandbox under a policy that such a user can have.
func TestDoctorOfAnOrdinaryUserStartsASandbox(t *testing.T) {
	u := newOrdinaryUser(t)
	got := u.says(t, nil, "doctor", "--json", "--policy", filepath.Join(u.Dir, "policy.yaml"), "--state-dir", filepath.Join(u.Own, "state")).want(t, 0)
	var d diagnosed
	if err := json.Unmarshal([]byte(got.out), &d); err != nil {
		t.Fatal(err)
	}
	var waived, enforced []string
	for _, c := range d.Backend.Controls {
		if c.Waived {
			waived = append(waived, c.Name)
		}
		if c.Enforced {
			enforced = append(enforced, c.Name)
		}
	}
	if !d.Enforceable || !slices.Contains(waived, "memory") || !slices.Contains(waived, "cpu") {
		t.Errorf("doctor says %s", got.out)
	}
	for _, name := range []string{"user_namespace", "namespaces", "seccomp", "network", "pids", "disk", "inodes", "overlay"} {
		if !slices.Contains(enforced, name) {
			t.Errorf("%s is not enforced: %s", name, got.out)
		}
	}
}

// TestOrdinaryUserIsRefused where a policy, a backend or a runtime needs root, and
// where others could get at the run directory; nothing is started.
func TestOrdinaryUserIsRefused(t *testing.T) {
	u := newOrdinaryUser(t)
	own := filepath.Join(u.Dir, "policy.yaml")
	memory := "an ordinary user's sandboxes lack memory, cpu"
	for _, c := range []struct {
		names string
		env   []string
		code  int
		args  []string
	}{
		{memory, nil, 125, []string{"sandbox", "run", "--policy", "strict", "--", "true"}},
		{memory, nil, 125, []string{"sandbox", "run", "--policy", "standard", "--runtime", "runc", "--", "true"}},
		{"runsc is driven by root only", nil, 125, []string{"sandbox", "run", "--policy", own, "--runtime", "runsc", "--", "true"}},
		{"a Docker Engine is driven by root only", nil, 125, []string{"sandbox", "run", "--policy", own, "--backend", "docker", "--runtime", "runc", "--", "true"}},
		{"mode 0700", []string{"XDG_RUNTIME_DIR=" + u.Dir}, 125, []string{"sandbox", "run", "--policy", own, "--", "true"}},
		{"is another user's", []string{"VEYRA_CACHE_DIR=" + u.Dir}, 125, []string{"sandbox", "run", "--policy", own, "--", "true"}},
		{"is another user's", []string{"VEYRA_CACHE_DIR=" + u.Dir}, 4, []string{"doctor", "--policy", own}},
		{"--prove attacks every control", nil, 4, []string{"doctor", "--prove", "--policy", own}},
		{memory, nil, 4, []string{"doctor", "--policy", "strict"}},
		{"needs root", nil, 4, []string{"run", "--policy", own, "--state-dir", filepath.Join(u.Own, "state")}},
	} {
		got := u.says(t, c.env, c.args...).want(t, c.code)
		if !strings.Contains(got.err, c.names) {
			t.Errorf("%v: %q does not name %q", c.args, got.err, c.names)
		}
	}
	left, err := os.ReadDir(filepath.Join(u.Own, "run"))
	if err != nil || len(left) != 0 {
		t.Errorf("the run directory has %v, %v", left, err)
	}
}
