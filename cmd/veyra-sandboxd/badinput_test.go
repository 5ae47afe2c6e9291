package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// wantExit waits for the end of a daemon that must not start.
func (d *daemon) wantExit(code int, stderr string) {
	d.t.Helper()
	waittest.For(d.t, "the daemon ends", d.ended)
	var exit *exec.ExitError
	got := 0
	if errors.As(d.err, &exit) {
		got = exit.ExitCode()
	}
	if got != code {
		d.t.Errorf("exit status %d, want %d:\n%s", got, code, d.text())
	}
	// What it said last may still be in the pipe.
	until(d.t, "the daemon has said "+stderr, func() bool { return strings.Contains(d.text(), stderr) })
}

// contents are the files below a directory, besides locks.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && !strings.Contains(entry.Name(), "lock") {
			name, _ := filepath.Rel(dir, path)
			all[name] = readFile(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUnreadableState: a state that can't be read ends the daemon with 78, and
// nothing of it is replaced.
func TestUnreadableState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	d := w.ready(p)
	w.accepted(w.job("before", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."}))
	d.stop()
	for _, c := range []struct {
		name, file string
		damage     func(text string) string
	}{
		{"key cut", "identity/key/key.pem", func(s string) string { return s[:len(s)/2] }},
		{"key empty", "identity/key/key.pem", func(string) string { return "" }},
		{"binding is no JSON", "identity/binding/binding.json", func(s string) string { return s[:len(s)-3] }},
		{"journal overwritten", "journal/journal.db", func(s string) string { return "no database" + s[11:] }},
		{"journal cut", "journal/journal.db", func(s string) string { return s[:len(s)-5000] }},
		{"signing log changed", "signing.log", func(s string) string { return "{" + strings.Replace(s[1:], "a", "b", 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := p
			other.state = filepath.Join(t.TempDir(), "state")
			if out, err := exec.Command("cp", "-a", p.state, other.state).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text := readFile(t, filepath.Join(other.state, c.file))
			damaged := c.damage(text)
			if damaged == text {
				t.Fatalf("%s was not damaged", c.file)
			}
			writeFile(t, filepath.Join(other.state, c.file), damaged, 0o600)
			before := contents(t, other.state)
			again := w.launch(other)
			again.t = t
			again.wantExit(78, "veyra-sandboxd: ")
			after := contents(t, other.state)
			for name := range before {
				if diff := cmp.Diff(before[name], after[name]); diff != "" {
					t.Errorf("%s was changed:\n%s", name, diff)
				}
			}
		})
	}
}

// TestSecondDaemon: the second daemon of a state directory names the first and
// leaves it alone; settings that nobody knows are told once.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	first := w.start(p, "VEYRA_NO_SUCH_SETTING=1")
	if n := strings.Count(first.text(), "VEYRA_NO_SUCH_SETTING"); n != 1 {
		t.Errorf("an unknown variable is told %d times", n)
	}
	other := p
	other.public, other.admin = freeAddress(t), freeAddress(t)
	second := w.launch(other)
	second.wantExit(3, fmt.Sprint(first.cmd.Process.Pid))
	if st := first.status(); st.Ready != "not_paired" {
		t.Errorf("the first daemon says %s", pretty(st))
	}
	first.stop()
	wantNothingLeft(t, first.instance(), first.state)
}

func at(task map[string]any, names ...string) (map[string]any, string) {
	for _, name := range names[:len(names)-1] {
		task = task[name].(map[string]any)
	}
	return task, names[len(names)-1]
}

func set(value any, names ...string) func(map[string]any) {
	return func(task map[string]any) {
		inner, name := at(task, names...)
		inner[name] = value
	}
}

// TestHostileTasks: a task that breaks the rules gets its named failure, signed
// because a lease is held, and touches nothing.
func TestHostileTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	d := w.ready(w.newPlace())
	for i, c := range []struct {
		name   string
		change func(map[string]any)
		want   protocol.Code
	}{
		{"submit_url elsewhere", set("http://127.0.0.1:1/steal/", "submit_url"), protocol.CodeTaskInvalid},
		{"credential_url elsewhere", set(w.origin+"/other/", "credential_url"), protocol.CodeTaskInvalid},
		{"branch is the target", set("main", "delivery", "branch"), protocol.CodeTaskInvalid},
		{"branch climbs", set("../../heads/main", "delivery", "branch"), protocol.CodeTaskInvalid},
		{"owner climbs", set("../acme", "repository", "owner"), protocol.CodeTaskInvalid},
		{"clone_url elsewhere", set("http://127.0.0.1:1/acme/x.git", "repository", "clone_url"), protocol.CodeTaskInvalid},
		{"no minutes", set(-5, "policy", "maximum_execution_minutes"), protocol.CodeTaskInvalid},
		{"a shell", set([]any{"sh -c 'id'"}, "policy", "required_commands"), protocol.CodeUnsafeValidationCommand},
		{"an operator", set([]any{"python -m pytest; id"}, "policy", "required_commands"), protocol.CodeUnsafeValidationCommand},
	} {
		name := fmt.Sprintf("hostile%d", i)
		j := w.ended(w.job(name, "Title of "+name, project(), func(s *controlplanetest.JobSpec) { s.Change = c.change }))
		if j.Evidence["failure_code"] != string(c.want) || j.Evidence["failure_message"] != protocol.Lookup(c.want).Sentence {
			t.Errorf("%s: %s", c.name, pretty(j))
		}
		if pulls, branches := w.pushed(name); pulls+branches != 0 {
			t.Errorf("%s: %d pull requests, %d branches", c.name, pulls, branches)
		}
	}
	if n := len(w.sent(controlplanetest.JobCredential)); n != 0 {
		t.Errorf("%d credentials were asked for", n)
	}
	d.stop()
}

// TestUnanswerableTasks: what can't be answered by its ids, or not even be
// read, has no effect; once it is well it is done.
func TestUnanswerableTasks(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(map[string]any){
		"ids":  set("../../etc/passwd", "id"),
		"deep": set(deep(100_000), "work", "title"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			d := w.ready(w.newPlace())
			var deliveries atomic.Int64
			id := w.job("later", "Make add add", project(), func(s *controlplanetest.JobSpec) {
				s.Change = func(task map[string]any) {
					if deliveries.Add(1) <= 2 {
						change(task)
					}
				}
			}, fix(), providertest.Step{Finish: "Fixed add."})
			w.accepted(id)
			if deliveries.Load() < 3 {
				t.Error("the task was taken as it was broken")
			}
			if n := w.plane.View().Counts.FailedResults; n != 0 {
				t.Errorf("%d failures were sent", n)
			}
			d.stop()
		})
	}
}

// deep is a value that encodes to so many levels.
func deep(levels int) any { return rawLevels(levels) }

type rawLevels int

// MarshalJSON gives empty lists in each other.
func (n rawLevels) MarshalJSON() ([]byte, error) {
	return []byte(strings.Repeat("[", int(n)) + strings.Repeat("]", int(n))), nil
}

// TestHostileAnswers: what a git host, a model and its commands do wrong ends in a
// named failure, with nothing pushed.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	w.git.Fault = func(r *http.Request) githosttest.Fault {
		if strings.Contains(r.URL.Path, "/refused.git/") {
			return githosttest.Status(http.StatusForbidden, "<html>\x00\xff")
		}
		if strings.Contains(r.URL.Path, "/moved.git/") {
			return githosttest.Redirect(301, "http://127.0.0.1:1/")
		}
		return githosttest.Pass()
	}
	d := w.ready(w.newPlace())
	for _, c := range []struct {
		name  string
		steps []providertest.Step
		want  protocol.Code
	}{
		{"refused", nil, protocol.CodeRepositoryRefused},
		{"moved", nil, protocol.CodeRepositoryMoved},
		{"model", []providertest.Step{{Message: `{"role":"assistant","content":""}`}, {Message: `{"role":"assistant","content":""}`}, {Message: `{"role":"assistant","content":""}`}, {Message: `{"role":"assistant","content":""}`}}, protocol.CodeModelEmptyResponse},
		{"idle", []providertest.Step{{Finish: "Did nothing."}}, protocol.CodeEmptyDiff},
		{"escape", []providertest.Step{{Shell: "rm -f calc.py; ln -s /etc/passwd calc.py"}, {Finish: "Linked."}}, protocol.CodeChangeUnsupported},
		{"workflow", []providertest.Step{{Shell: "mkdir -p .github/workflows; echo evil >.github/workflows/x.yml"}, {Finish: "Wrote."}}, protocol.CodePolicyPathViolation},
	} {
		id := w.job(c.name, "Title of "+c.name, project(), nil, c.steps...)
		j := w.ended(id)
		if j.Evidence["failure_code"] != string(c.want) {
			t.Errorf("%s: %v (%v), want %s", c.name, j.Evidence["failure_code"], j.Evidence["summary"], c.want)
		}
		if pulls, branches := w.pushed(c.name); pulls+branches != 0 {
			t.Errorf("%s: %d pull requests, %d branches", c.name, pulls, branches)
		}
	}
	d.statusUntil("the daemon is as ready as before", func(st supervisor.Status) bool { return st.Ready == "ok" })
	d.stop()
}
