package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// advised is what these tests read of doctor --json.
type advised struct {
	Enforceable bool   `json:"enforceable"`
	Missing     string `json:"missing"`
	Advisories  []struct {
		ID       string `json:"id"`
		Strict   string `json:"strict"`
		Accepted bool   `json:"accepted"`
	} `json:"advisories"`
	Weakenings []string `json:"weakenings"`
}

func (a advised) ids() []string {
	var ids []string
	for _, f := range a.Advisories {
		ids = append(ids, f.ID)
	}
	return ids
}

// oldRuntime is runc by what it does, and another version by what it says.
func oldRuntime(t *testing.T, version string) []string {
	t.Helper()
	dir := withWeakRuntime(t, weakRuntime{Version: version})
	return []string{"PATH=" + dir + ":/usr/sbin:/usr/bin:/sbin:/bin", "VEYRA_SANDBOX_RUNTIME=runc"}
}

// advice runs doctor with the environment until the host has room.
func advice(t *testing.T, env []string, code int, args ...string) (a advised) {
	t.Helper()
	var got said
	until(t, "the host has room for a sandbox", func() bool {
		got = command(t, env, append([]string{"doctor", "--json", "--config", frugal(t)}, args...)...)
		return !strings.Contains(got.out, "no_room")
	})
	if err := json.Unmarshal([]byte(got.want(t, code).out), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// masked are the ids of one row of the table, which strict refuses for.
var masked = []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}

// TestA07DoctorNamesEachAdvisory of the version that the runtime says: strict
// refuses or warns, other policies warn.
func TestA07DoctorNamesEachAdvisory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, policy string
		code            int
		want            []string
	}{
		{"1.3.2", "strict", 4, append(slices.Clone(masked), "CVE-2026-41579")},
		{"1.3.2", "standard", 0, append(slices.Clone(masked), "CVE-2026-41579")},
		{"1.3.3", "strict", 0, []string{"CVE-2026-41579"}},
		{"1.5.3", "strict", 0, nil},
	} {
		t.Run(c.version+" "+c.policy, func(t *testing.T) {
			t.Parallel()
			a := advice(t, oldRuntime(t, c.version), c.code, "--policy", c.policy, "--state-dir", filepath.Join(t.TempDir(), "state"))
			if !slices.Equal(a.ids(), c.want) || a.Enforceable != (c.code == 0) {
				t.Errorf("%v, missing %q; want %v", a.ids(), a.Missing, c.want)
			}
			for _, id := range c.want {
				if refused := c.code == 4 && slices.Contains(masked, id); strings.Contains(a.Missing, id) != refused {
					t.Errorf("%s refused: %t, missing %q", id, refused, a.Missing)
				}
				if !slices.ContainsFunc(a.Weakenings, func(s string) bool { return strings.Contains(s, id) }) {
					t.Errorf("%s is no weakening: %q", id, a.Weakenings)
				}
			}
		})
	}
}

// TestA07BackportsCountByPackage: the same program, as two builds of a
// distribution by what dpkg's records say.
func TestA07BackportsCountByPackage(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/var/lib/dpkg"); err != nil {
		t.Skip("not applicable: this host does not use dpkg")
	}
	for version, fixed := range map[string]bool{"1.1.5+ds1-1": false, "1.1.5+ds1-1+deb12u1": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := withWeakRuntime(t, weakRuntime{Version: "1.1.5+ds1"})
			records := t.TempDir()
			writeFile(t, filepath.Join(records, "info", "runc.list"), "/.\n"+filepath.Join(dir, "runc")+"\n", 0o644)
			writeFile(t, filepath.Join(records, "status"), "Package: runc\nStatus: install ok installed\nVersion: "+version+"\n", 0o644)
			host := takeAway{prelude: "mount --bind '" + records + "' /var/lib/dpkg"}
			got := host.ended(t, dir, "doctor", "--json", "--policy", "standard", "--config", frugal(t)).want(t, 0)
			var a advised
			if err := json.Unmarshal([]byte(got.out), &a); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(a.ids(), "CVE-2024-21626") == fixed || !slices.Contains(a.ids(), masked[0]) {
				t.Errorf("package %s is affected by %v", version, a.ids())
			}
			if !strings.Contains(strings.Join(a.Weakenings, "\n"), "package runc "+version) {
				t.Errorf("the package is not named: %q", a.Weakenings)
			}
		})
	}
}

// TestA07SandboxRunRefusesToo: a sandbox without a job is under the same policy.
func TestA07SandboxRunRefusesToo(t *testing.T) {
	t.Parallel()
	env := oldRuntime(t, "1.3.2")
	got := command(t, env, "sandbox", "run", "--policy", "strict", "--config", frugal(t), "--", "true").want(t, 125)
	if !strings.Contains(got.err, masked[0]) || !strings.Contains(got.err, "--accept-runtime") {
		t.Errorf("it says %q", got.err)
	}
}

// TestA07AcceptedRuntimeIsRecordedAndShown: an acceptance lasts, lets strict go
// on, and is told by doctor, start log, status and metric.
func TestA07AcceptedRuntimeIsRecordedAndShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	p.env = append(p.env, oldRuntime(t, "1.3.2")...)
	state := []string{"--policy", "strict", "--state-dir", p.state}
	command(t, p.env, append([]string{"run", "--config", p.config}, state...)...).want(t, 4)
	for i, id := range masked {
		code := 4
		if i == len(masked)-1 {
			code = 0
		}
		a := advice(t, p.env, code, append([]string{"--accept-runtime", id}, state...)...)
		for _, f := range a.Advisories {
			if f.Accepted != slices.Contains(masked[:i+1], f.ID) {
				t.Errorf("after %s: %s accepted: %t", id, f.ID, f.Accepted)
			}
		}
	}
	command(t, p.env, append([]string{"doctor", "--accept-runtime", "CVE-2026-41579"}, state...)...).want(t, 2)

	d := w.start(p)
	for _, id := range masked {
		if !strings.Contains(d.text(), id) {
			t.Errorf("the start log does not tell of %s", id)
		}
		info, err := os.Stat(filepath.Join(p.state, "accepted", id))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the record of %s: %v, %v", id, info, err)
		}
	}
	if got := d.status().Accepted; len(got) != len(masked) || !strings.Contains(got[0], masked[0]) {
		t.Errorf("status shows %q", got)
	}
	if text := d.tell("status").want(t, 0).out; strings.Count(text, "accepted by the owner") != len(masked) {
		t.Errorf("status prints %q", text)
	}
	// Three accepted ones, one that strict only warns of, and what the host lacks.
	said := strings.Count(d.text(), "weakening: ")
	if _, page := get(t, "http://"+d.admin+"/metrics"); said < 4 || !strings.Contains(page, fmt.Sprintf("\nveyra_sandboxd_policy_weakenings %d\n", said)) {
		t.Errorf("policy_weakenings is not the %d of the log", said)
	}
	d.stop()
}

// TestForeignAcceptanceStopsTheDaemon: what others could have put there is no
// word of the owner's.
func TestForeignAcceptanceStopsTheDaemon(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, file string){
		"another's": func(t *testing.T, file string) { must(t, os.Chown(file, 12_345, -1)) },
		"open":      func(t *testing.T, file string) { must(t, os.Chmod(file, 0o644)) },
		"of another": func(t *testing.T, file string) {
			must(t, os.Rename(file, filepath.Join(filepath.Dir(file), "CVE-2024-21626")))
		},
		"garbage":     func(t *testing.T, file string) { writeFile(t, file, "{", 0o600) },
		"a directory": func(t *testing.T, file string) { must(t, os.Mkdir(file+"x", 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := oldRuntime(t, "1.3.2")
			state := filepath.Join(t.TempDir(), "state")
			advice(t, env, 4, "--policy", "strict", "--state-dir", state, "--accept-runtime", masked[0])
			spoil(t, filepath.Join(state, "accepted", masked[0]))
			for _, args := range [][]string{{"doctor"}, {"run"}} {
				got := command(t, env, append(args, "--policy", "strict", "--state-dir", state)...).want(t, 78)
				if !strings.Contains(got.err, "acceptances in") {
					t.Errorf("%v says %q", args, got.err)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
