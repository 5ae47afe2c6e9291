package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// TestWholeLife goes from a fresh state directory to paid jobs as an owner
// does: with interface.md's environment alone, through the commands, against a
// control plane, a git host and a model that are real HTTP servers.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	p := w.newPlace()
	p.config = "" // the environment alone
	d := w.start(p)
	wantUnpaired(t, d)
	agent, _ := d.pair(w)
	w.wait("the agent is qualified", func(v controlplanetest.View) bool {
		return v.Agents[0].Status == "ACTIVE"
	})
	wantPaired(t, d, agent)

	loud := with(map[string]string{
		"calc.py": "import sys\nsys.stderr.write('\\x1b]0;owned\\x07\\x08end\\n')\n\n\ndef add(a, b):\n    return a - b\n",
	})
	funded := w.accepted(w.job("funded", "Make add add", loud, nil,
		fix(),
		providertest.Step{Edit: &providertest.Edit{Path: "docs/new file.md", New: "# New\n"}},
		providertest.Step{Shell: "rm old.py && chmod +x run.sh"},
		providertest.Step{Finish: "Fixed add."}))
	wantChanges(t, w, funded)
	detected := w.accepted(w.job("detected", "Find the tests", project(), func(s *controlplanetest.JobSpec) {
		s.RequiredCommands = nil
	}, fix(), providertest.Step{Finish: "Fixed add."}))
	wantEvidence(t, funded, "funded_policy")
	wantEvidence(t, detected, "repository_detection")

	wantJobs(t, d, funded, detected)
	wantNoControlBytes(t, d, funded)
	wantMetrics(t, d)
	pids := family(d.cmd.Process.Pid)
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
	alive := processes()
	for _, old := range pids {
		if slices.ContainsFunc(alive, func(p process) bool { return p.pid == old.pid && cmp.Equal(p.command, old.command) }) {
			t.Errorf("process %d %q is still there", old.pid, old.command)
		}
	}
	wantJobs(t, d, funded, detected)
	wantDelete(t, d, funded)
	if got := d.tell("status").want(t, 3); !strings.Contains(got.err, "no daemon runs") {
		t.Errorf("status without a daemon says %q", got.err)
	}
}

func wantUnpaired(t *testing.T, d *daemon) {
	t.Helper()
	if code, body := get(t, "http://"+d.public+"/veyra/health"); code != 200 || strings.TrimSpace(body) != `{"ok":true,"protocol_version":1,"paired":false}` {
		t.Errorf("health before pairing: %d %s", code, body)
	}
	if code, body := get(t, "http://"+d.admin+"/readyz"); code != 503 || body != "not_paired\n" {
		t.Errorf("readyz before pairing: %d %q", code, body)
	}
	if code, body := get(t, "http://"+d.admin+"/livez"); code != 200 || body != "ok\n" {
		t.Errorf("livez: %d %q", code, body)
	}
	first := d.tell("link").want(t, 0).out
	if again := d.tell("link").want(t, 0).out; again != first {
		t.Errorf("link prints another link each time: %s, %s", first, again)
	}
	if rotated := d.tell("link", "--rotate").want(t, 0).out; rotated == first || strings.Count(rotated, "\n") != 1 {
		t.Errorf("link --rotate printed %q after %q", rotated, first)
	}
}

func wantPaired(t *testing.T, d *daemon, agent string) {
	t.Helper()
	if code, body := get(t, "http://"+d.public+"/veyra/health"); code != 200 || strings.TrimSpace(body) != `{"ok":true,"protocol_version":1,"paired":true}` {
		t.Errorf("health after pairing: %d %s", code, body)
	}
	until(t, "readyz says ok", func() bool {
		code, body := get(t, "http://"+d.admin+"/readyz")
		return code == 200 && body == "ok\n"
	})
	if got := d.tell("link").want(t, 3); got.out != "" || !strings.Contains(got.err, "already paired") {
		t.Errorf("link once paired: stdout %q, stderr %q", got.out, got.err)
	}
	st := d.statusUntil("a status of the paired daemon", func(st supervisor.Status) bool { return st.Ready == "ok" })
	if string(st.AgentID) != agent || st.Pairing != supervisor.Paired {
		t.Errorf("status after pairing: %s", pretty(st))
	}
}

// wantChanges reads the pushed branch: new file, change, deletion, mode.
func wantChanges(t *testing.T, w *world, j controlplanetest.JobView) {
	t.Helper()
	out, err := w.git.Git("acme", "funded", "diff", "--raw", "--abbrev=4", "main", j.Branch)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out) {
		f := strings.Fields(strings.TrimPrefix(line, ":"))
		got = append(got, strings.Join(append([]string{f[0], f[1]}, f[4:]...), " "))
	}
	want := []string{"100644 100644 M calc.py", "000000 100644 A docs/new file.md", "100644 000000 D old.py", "100644 100755 M run.sh"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pushed branch (-want +got):\n%s", diff)
	}
	if pulls, branches := w.pushed("funded"); pulls != 1 || branches != 1 {
		t.Errorf("%d pull requests and %d branches", pulls, branches)
	}
}

// wantEvidence checks what the control plane does not: the keys of our own.
func wantEvidence(t *testing.T, j controlplanetest.JobView, source string) {
	t.Helper()
	if got := j.Evidence["validation_command_source"]; got != source {
		t.Errorf("validation_command_source %v, want %s", got, source)
	}
	for _, key := range []string{"sandbox", "policy", "policy_sha256", "clean_room", "tree_sha", "log_sha256", "limits_hit", "usage"} {
		if _, found := j.Evidence[key]; !found {
			t.Errorf("evidence has no %s", key)
		}
	}
	if j.Evidence["policy"] != "strict" || j.Evidence["clean_room"] != true {
		t.Errorf("policy %v, clean_room %v", j.Evidence["policy"], j.Evidence["clean_room"])
	}
}

// wantJobs asks for the runs, over the control socket or in the state.
func wantJobs(t *testing.T, d *daemon, js ...controlplanetest.JobView) {
	t.Helper()
	for _, j := range js {
		var list []supervisor.JobView
		until(t, "the run of "+j.AssignmentID+" is listed as delivered", func() bool {
			if err := json.Unmarshal([]byte(d.tell("jobs", "list", "--json").want(t, 0).out), &list); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(list, func(v supervisor.JobView) bool {
				return v.ID == j.AssignmentID && v.Lease == j.LeaseID && v.State == "delivered" && v.Hash == j.Hash
			})
		})
		shown := d.tell("jobs", "show", j.AssignmentID).want(t, 0).out
		if !strings.Contains(shown, `"commit_sha":"`+j.Evidence["commit_sha"].(string)+`"`) {
			t.Errorf("jobs show has no evidence:\n%s", shown)
		}
		if log := d.tell("jobs", "logs", j.AssignmentID).want(t, 0).out; !strings.Contains(log, "$ "+j.Evidence["test_command"].(string)) {
			t.Errorf("jobs logs shows no run of the tests:\n%s", log)
		}
		stored := readFile(t, filepath.Join(d.state, "jobs", j.AssignmentID, j.LeaseID, "evidence.json"))
		if !strings.Contains(shown, stored) {
			t.Errorf("jobs show differs from the stored evidence:\n%s\n%s", shown, stored)
		}
	}
	d.tell("jobs", "show", "no-such-id").want(t, 3)
}

// wantNoControlBytes is case A14: what a job wrote to drive a terminal is text
// wherever an operator looks.
func wantNoControlBytes(t *testing.T, d *daemon, j controlplanetest.JobView) {
	t.Helper()
	logs := d.tell("jobs", "logs", j.AssignmentID).want(t, 0).out
	if !strings.Contains(logs, "owned") {
		t.Errorf("jobs logs has nothing of the job's noise: the check is blind:\n%s", logs)
	}
	for where, text := range map[string]string{
		"jobs logs": logs, "status": d.tell("status").want(t, 0).out, "jobs list": d.tell("jobs", "list").want(t, 0).out, "the daemon's log": d.text(),
	} {
		if at := strings.IndexFunc(text, func(r rune) bool {
			return r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r <= 0x9f || r == 0x202e || r == 0xfffd
		}); at >= 0 {
			t.Errorf("%s has a raw control character: %.80q", where, text[at:])
		}
	}
}

func wantDelete(t *testing.T, d *daemon, j controlplanetest.JobView) {
	t.Helper()
	d.tell("jobs", "delete", j.AssignmentID).want(t, 0)
	if _, err := os.Stat(filepath.Join(d.state, "jobs", j.AssignmentID, j.LeaseID, "log")); err == nil {
		t.Error("jobs delete left the log")
	}
	if got := d.tell("jobs", "logs", j.AssignmentID).want(t, 3); got.out != "" || !strings.Contains(got.err, "the log was deleted") {
		t.Errorf("jobs logs of a deleted run: stdout %q, stderr %q", got.out, got.err)
	}
	if shown := d.tell("jobs", "list").want(t, 0).out; !strings.Contains(shown, j.AssignmentID) {
		t.Errorf("jobs list forgot a deleted run, whose hash and signature must stay:\n%s", shown)
	}
}

func wantMetrics(t *testing.T, d *daemon) {
	t.Helper()
	var text string
	until(t, "the last sandbox is gone", func() bool { // the result goes first
		_, text = get(t, "http://"+d.admin+"/metrics")
		return strings.Contains(text, "veyra_sandboxd_sandboxes_running 0")
	})
	for _, name := range []string{
		"build_info", "paired 1", "heartbeats_total{", "heartbeat_last_success_timestamp_seconds", "heartbeat_gap_seconds",
		"control_plane_requests_total{", "control_plane_request_duration_seconds", "clock_offset_seconds", "jobs_total{",
		"job_duration_seconds", "job_phase_duration_seconds", "jobs_running", `ready{reason="ok"} 1`, "outbox_depth",
		"sandbox_start_duration_seconds", "sandbox_exec_duration_seconds", "sandboxes_running 0", "provider_requests_total{",
		"provider_request_duration_seconds", "provider_tokens_total{", "signatures_total{", "signature_failures_total",
		"policy_weakenings", "state_free_bytes", "journal_records{",
		"journal_commit_duration_seconds_count",
	} {
		if !strings.Contains(text, "veyra_sandboxd_"+name) {
			t.Errorf("metrics have no veyra_sandboxd_%s", name)
		}
	}
	for _, id := range []string{d.instance(), "acme"} {
		if strings.Contains(text, id) {
			t.Errorf("metrics name %s", id)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
