package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// proven is what these tests read of doctor --prove --json.
type proven struct {
	diagnosed
	Proof struct {
		Controls []sandbox.Control `json:"controls"`
		SHA256   string            `json:"sha256"`
	} `json:"proof"`
}

// proveOn attacks with the runtimes of dir, keeping what holds in state.
func proveOn(t *testing.T, dir, runtime, state string, code int) (p proven) {
	t.Helper()
	needSandboxes(t)
	var got said
	until(t, "the host has room for a sandbox", func() bool {
		got = command(t, []string{"PATH=" + dir + ":/usr/sbin:/usr/bin", "VEYRA_SANDBOX_RUNTIME=" + runtime},
			"doctor", "--prove", "--json", "--policy", "strict", "--config", frugal(t), "--state-dir", state)
		return !strings.Contains(got.out, string(sandbox.KindNoRoom))
	})
	if err := json.Unmarshal([]byte(got.want(t, code).out), &p); err != nil {
		t.Fatalf("stdout is not one document: %v\n%s", err, got.out)
	}
	return p
}

// TestDoctorProves: on each runtime every control is seen enforced under attack,
// and the digest of that says the same each time.
func TestDoctorProves(t *testing.T) {
	t.Parallel()
	digests := map[string]string{}
	for _, runtime := range []string{"runc", "runsc"} {
		dir, state := runtimesIn(t, map[string]string{runtime: ""}), filepath.Join(t.TempDir(), "state")
		first := proveOn(t, dir, runtime, state, 0)
		for _, c := range first.Proof.Controls {
			if !c.Enforced || c.Seen == "" {
				t.Errorf("%s: %+v", runtime, c)
			}
		}
		if len(first.Proof.Controls) < 25 || len(first.Proof.SHA256) != 64 || !first.Enforceable {
			t.Errorf("%s: %d controls, digest %q, %t", runtime, len(first.Proof.Controls), first.Proof.SHA256, first.Enforceable)
		}
		var kept map[string]any
		if err := json.Unmarshal([]byte(readFile(t, filepath.Join(state, "proof.json"))), &kept); err != nil || kept["sha256"] != first.Proof.SHA256 {
			t.Errorf("%s: kept %v, %v", runtime, kept["sha256"], err)
		}
		digests[runtime] = first.Proof.SHA256
	}
	state := filepath.Join(t.TempDir(), "state")
	if again := proveOn(t, filepath.Dir(runtimePath()), "runc", state, 0); again.Proof.SHA256 != digests["runc"] {
		t.Errorf("two proofs of one host have digests %s and %s", digests["runc"], again.Proof.SHA256)
	}
	if digests["runc"] == digests["runsc"] {
		t.Error("the digest doesn't say on which runtime")
	}
}

// TestProveSeesWhatReadingBackMisses: the settings of these sandboxes look as
// they should, their effects don't. What fails takes the kept proof with it.
func TestProveSeesWhatReadingBackMisses(t *testing.T) {
	t.Parallel()
	for part, names := range map[string][]string{
		"profile": {"namespaces", "mount_calls", "kernel_calls", "socket_families", "terminal"},
		"quota":   {"disk_bytes", "disk_inodes", "memory_files"},
		"masks":   {"masked"},
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			writeFile(t, filepath.Join(state, "proof.json"), "{}", 0o600)
			got := proveOn(t, withWeakRuntime(t, weakRuntime{Take: []string{part}}), "runc", state, 4)
			var broken []string
			for _, c := range got.Proof.Controls {
				if !c.Enforced {
					broken = append(broken, c.Name)
					if c.Fix == "" || !strings.Contains(got.Missing, c.Name) {
						t.Errorf("%+v: no way to get it, or not named in %q", c, got.Missing)
					}
				}
			}
			if diff := cmp.Diff(names, broken); diff != "" {
				t.Errorf("broken controls (-want +got):\n%s\n%s", diff, got.Missing)
			}
			if _, err := os.Stat(filepath.Join(state, "proof.json")); got.Proof.SHA256 != "" || !os.IsNotExist(err) {
				t.Errorf("a proof is left: %q, %v", got.Proof.SHA256, err)
			}
		})
	}
}

// TestProveNamesWhatIsTakenAway: what already keeps a sandbox from starting is
// named before any attack.
func TestProveNamesWhatIsTakenAway(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	for _, c := range takeAways {
		if c.names != "runc" && c.names != "seccomp" && c.names != "user_namespaces" && c.names != "loop_devices" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			got := c.ended(t, c.runtime(t), "doctor", "--prove", "--json", "--policy", "strict", "--config", frugal(t), "--state-dir", state).want(t, 4)
			var p proven
			if err := json.Unmarshal([]byte(got.out), &p); err != nil {
				t.Fatal(err)
			}
			if p.Enforceable || !strings.Contains(p.Missing, c.names) || p.Proof.SHA256 != "" {
				t.Errorf("enforceable %t, missing %q, proof %q", p.Enforceable, p.Missing, p.Proof.SHA256)
			}
		})
	}
}

// TestProofCountsForWhatItWasMadeWith: a daemon names the kept proof in evidence
// where everything that it rests on is the same and nobody wrote in it, else it
// says why not.
func TestProofCountsForWhatItWasMadeWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	made := proveOn(t, filepath.Dir(runtimePath()), "runc", p.state, 0)
	d := w.start(p)
	d.pair(w)
	done := w.accepted(w.job("proven", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."}))
	if named := done.Evidence["sandbox"].(map[string]any)["proof_sha256"]; named != made.Proof.SHA256 {
		t.Errorf("evidence names the proof %v, made was %s", named, made.Proof.SHA256)
	}
	d.stop()

	file := filepath.Join(p.state, "proof.json")
	text := readFile(t, file)
	for name, c := range map[string]struct{ from, to string }{
		"another kernel": {`"kernel":"`, `"kernel":"5.`},
		"other controls": {`"name":"masked"`, `"name":"muddled"`},
	} {
		changed := strings.Replace(text, c.from, c.to, 1)
		if changed == text {
			t.Fatalf("%s: nothing to change in %s", name, text)
		}
		writeFile(t, file, changed, 0o600)
		d := w.start(p)
		d.line("evidence names no proof of this host: make a new one with `veyra-sandboxd doctor --prove`")
		d.stop()
	}
}
