package main_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// judgement is a model's answer about one criterion.
func judgement(passed bool) func(providertest.Conversation) providertest.Step {
	text, _ := json.Marshal(map[string]any{
		"summary":  "calc.py was looked at.",
		"criteria": []any{map[string]any{"passed": passed, "evidence": "calc.py"}}, "security_findings": []any{},
	})
	return func(providertest.Conversation) providertest.Step { return providertest.Step{Text: string(text)} }
}

// submission makes a repository with a pull request that changes files, and
// queues its verification.
func (w *world) submission(name, title string, files map[string]string, change func(*controlplanetest.VerificationSpec)) string {
	w.t.Helper()
	base, err := w.git.CreateRepo("acme", name, project())
	if err != nil {
		w.t.Fatal(err)
	}
	git := func(args ...string) string {
		out, err := w.git.Git("acme", name, args...)
		if err != nil {
			w.t.Fatal(err)
		}
		return out
	}
	const branch = "veyra/job-1-x-1"
	git("update-ref", "refs/heads/"+branch, base)
	head, err := w.git.Commit("acme", name, branch, with(files))
	if err != nil {
		w.t.Fatal(err)
	}
	git("update-ref", "refs/pull/1/head", head)
	spec := controlplanetest.VerificationSpec{
		Owner: "acme", Name: name, JobID: 1, Branch: branch, CommitSHA: head, PullRequest: 1,
		ChangedFiles: strings.Split(git("diff", "--name-only", base, head), "\n"),
		Title:        title, Description: "add(2, 3) must be 5", Criteria: []any{"add adds"}, RequiredCommands: []string{unittest},
	}
	if change != nil {
		change(&spec)
	}
	return w.plane.AddVerification(spec)
}

// reviewed waits until a verification meets cond.
func (w *world) reviewed(id, what string, cond func(controlplanetest.VerificationView) bool) controlplanetest.VerificationView {
	w.t.Helper()
	one := func(v controlplanetest.View) controlplanetest.VerificationView {
		i := slices.IndexFunc(v.Verifications, func(v controlplanetest.VerificationView) bool { return v.ID == id })
		return v.Verifications[i]
	}
	return one(w.wait(what, func(v controlplanetest.View) bool { return cond(one(v)) }))
}

// TestVerifierJudges runs the daemon in the role of a verifier: each verdict
// reaches the control plane, what has no report leaves its sentence, and no
// request of the whole life asks to write.
func TestVerifierJudges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	d := w.start(w.newPlace(), "VEYRA_RUNTIME_ROLE=VERIFIER")
	link := strings.TrimSpace(d.tell("link").want(t, 0).out)
	agent := w.plane.AddAgent(controlplanetest.AgentSpec{Role: "VERIFIER"})
	if _, err := w.plane.PairWith(t.Context(), link, controlplanetest.PairOptions{AgentID: agent}); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"calc.py": "def add(a, b):\n    return a + b\n"}
	wrong := map[string]string{"calc.py": "def add(a, b):\n    return a * b\n"}
	w.script("Judge the good one", judgement(true))
	w.script("Judge the poor one", judgement(false))
	for _, c := range []struct {
		name, title, verdict string
		files                map[string]string
		change               func(*controlplanetest.VerificationSpec)
	}{
		{"good", "Judge the good one", "APPROVED", good, nil},
		{"poor", "Judge the poor one", "REJECTED", good, nil},
		{"failing", "Judge the good one", "REJECTED", wrong, nil},
		{"untestable", "Judge the good one", "INCONCLUSIVE", good, func(s *controlplanetest.VerificationSpec) { s.RequiredCommands = []string{"rm -rf /"} }},
	} {
		id := w.submission(c.name, c.title, c.files, c.change)
		v := w.reviewed(id, c.name+" has a verdict", func(v controlplanetest.VerificationView) bool { return v.Verdict != "" })
		if v.Verdict != c.verdict || v.Leases != 1 {
			t.Errorf("%s: %s after %d leases, want %s\n%s", c.name, v.Verdict, v.Leases, c.verdict, pretty(v))
		}
	}
	// Last, since its lease keeps every other from this verifier.
	id := w.submission("writable", "Judge the good one", good, func(s *controlplanetest.VerificationSpec) { s.WriteCredential = true })
	v := w.reviewed(id, "the write credential is refused", func(v controlplanetest.VerificationView) bool {
		return slices.Contains(v.Phases, "FAILED")
	})
	if v.Verdict != "" || v.Report != nil || v.LastSaid != protocol.Lookup(protocol.CodeCredentialRefused).Sentence {
		t.Errorf("with a write credential: %s", pretty(v))
	}
	for _, r := range w.git.Requests() {
		if strings.Contains(r.Path+r.Query, "receive-pack") {
			t.Errorf("the verifier asked for %s %s", r.Path, r.Query)
		}
	}
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}
