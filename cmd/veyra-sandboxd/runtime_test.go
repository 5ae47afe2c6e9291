package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// diagnosed is what these tests read of doctor --json.
type diagnosed struct {
	Enforceable bool           `json:"enforceable"`
	Missing     string         `json:"missing"`
	Backend     sandbox.Report `json:"backend"`
	Why         string         `json:"why"`
	PassedOver  []struct {
		Name      string `json:"name"`
		Installed bool   `json:"installed"`
		Why       string `json:"why"`
	} `json:"passed_over"`
}

// doctorOn runs doctor under strict with the runtimes of dir.
func doctorOn(t *testing.T, dir, runtime string, code int) (d diagnosed) {
	t.Helper()
	needSandboxes(t)
	var got said
	until(t, "the host has room for a sandbox", func() bool {
		got = command(t, []string{"PATH=" + dir + ":/usr/sbin:/usr/bin", "VEYRA_SANDBOX_RUNTIME=" + runtime},
			"doctor", "--json", "--policy", "strict", "--config", frugal(t))
		return !strings.Contains(got.out, string(sandbox.KindNoRoom))
	})
	if err := json.Unmarshal([]byte(got.want(t, code).out), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// runtimesIn makes a directory of OCI runtimes: a text is a script, an empty one
// the real program.
func runtimesIn(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if text != "" {
			sandboxtest.WriteProgram(t, filepath.Join(dir, name), text, 0o755)
			continue
		}
		real := filepath.Join(filepath.Dir(runtimePath()), name)
		if _, err := os.Stat(real); err != nil {
			t.Skipf("not applicable: no %s (`make setup` builds it)", name)
		}
		if err := os.Symlink(real, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestAutoTakesTheStrongestThatPasses: what is passed over is named, whether it
// isn't there, is none, or fails its probe.
func TestAutoTakesTheStrongestThatPasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, why string
		runtimes  map[string]string
		taken     string
		installed bool
	}{
		{"both work", "", map[string]string{"runsc": "", "runc": ""}, "runsc", false},
		{"not there", "not installed", map[string]string{"runc": ""}, "runc", false},
		{"J08 another program", "not the version of runsc", map[string]string{"runsc": "#!/bin/sh\necho hello\n", "runc": ""}, "runc", true},
		{"J08 no sandbox starts", "starting container", map[string]string{
			"runsc": "#!/bin/sh\n[ \"$1\" = --version ] && echo runsc version 1 && exit\nexit 137\n", "runc": "",
		}, "runc", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := doctorOn(t, runtimesIn(t, c.runtimes), "auto", 0)
			if !d.Enforceable || d.Backend.Runtime != c.taken || !strings.Contains(d.Why, "strongest") {
				t.Errorf("taken: %s, because %q; missing %q", d.Backend.Runtime, d.Why, d.Missing)
			}
			if c.why == "" {
				if len(d.PassedOver) != 0 {
					t.Errorf("passed over: %+v", d.PassedOver)
				}
				return
			}
			if len(d.PassedOver) != 1 || d.PassedOver[0].Name != "runsc" || d.PassedOver[0].Installed != c.installed ||
				!strings.Contains(d.PassedOver[0].Why, c.why) {
				t.Errorf("passed over: %+v, want runsc because of %q", d.PassedOver, c.why)
			}
		})
	}
}

// TestNamedRuntimeHasNoSubstitute: another one may be there, and is not taken.
func TestNamedRuntimeHasNoSubstitute(t *testing.T) {
	t.Parallel()
	d := doctorOn(t, runtimesIn(t, map[string]string{"runc": ""}), "runsc", 4)
	if d.Enforceable || !strings.Contains(d.Missing, "runsc") {
		t.Errorf("doctor says %+v", d)
	}
	got := command(t, []string{"VEYRA_SANDBOX_RUNTIME=kata"}, "doctor").want(t, 78)
	if !strings.Contains(got.err, "auto, runsc, runc or crun") {
		t.Errorf("an unknown name: %q", got.err)
	}
	got = command(t, nil, "sandbox", "run", "--runtime", "kata", "--", "true").want(t, 2)
	if !strings.Contains(got.err, "--runtime must be auto, runsc, runc or crun") {
		t.Errorf("an unknown name: %q", got.err)
	}
}

// TestSandboxRunOnEachRuntime: the kernel that answers is the runtime's.
func TestSandboxRunOnEachRuntime(t *testing.T) {
	t.Parallel()
	runtimesIn(t, map[string]string{"runsc": ""})
	for _, c := range []struct {
		runtime string
		guest   bool
	}{{"runc", false}, {"runsc", true}} {
		got := sandboxed(t, "", "--runtime", c.runtime, "--", "cat", "/proc/sys/kernel/osrelease").want(t, 0)
		host := readFile(t, "/proc/sys/kernel/osrelease")
		if guest := got.out != host; guest != c.guest {
			t.Errorf("on %s the kernel is %q, the host's is %q", c.runtime, got.out, host)
		}
	}
}

// TestDoctorOfAnOrdinaryUser without subordinate ids starts nothing, and says by what such a user's
// sandboxes could be held.
func TestDoctorOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root, to become an ordinary user")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "veyra-sandboxd")
	sandboxtest.WriteProgram(t, program, readFile(t, house.daemon), 0o755)
	for _, at := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "doctor", "--json", "--state-dir", "/nonexistent/state")
	cmd.Env, cmd.Dir = environ(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64_998, Gid: 64_998}}
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 4 {
		t.Fatalf("exit status %d: %s", code, out)
	}
	var d diagnosed
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, c := range d.Backend.Controls {
		missing[c.Name] = !c.Enforced && c.Fix != ""
	}
	if d.Enforceable || !missing["subordinate_ids"] || !missing["disk"] || !strings.Contains(d.Missing, "an ordinary user's sandboxes lack subordinate_ids") {
		t.Errorf("doctor says %s", out)
	}
}
