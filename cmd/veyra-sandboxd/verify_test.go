package main_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
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

func (w *world) newVerifierPlace() place {
	p := w.newPlace()
	p.env = append(p.env, "VEYRA_RUNTIME_ROLE=VERIFIER")
	return p
}

// verifier starts a daemon in this role and pairs it with an agent of it.
func (w *world) verifier(p place) *daemon {
	w.t.Helper()
	d := w.start(p)
	link := strings.TrimSpace(d.tell("link").want(w.t, 0).out)
	agent := w.plane.AddAgent(controlplanetest.AgentSpec{Role: "VERIFIER"})
	if _, err := w.plane.PairWith(w.t.Context(), link, controlplanetest.PairOptions{AgentID: agent}); err != nil {
		w.t.Fatal(err)
	}
	return d
}

// good is the change that makes the project's test pass.
var good = map[string]string{"calc.py": "def add(a, b):\n    return a + b\n"}

// TestVerifierJudges runs the daemon in the role of a verifier: each verdict
// reaches the control plane, what has no report leaves its sentence, and no
// request of the whole life asks to write.
func TestVerifierJudges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	d := w.verifier(w.newVerifierPlace())
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

func isFetch(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/git-upload-pack") }

func isVerdict(r *http.Request) bool {
	return r.URL.Path == controlplanetest.Prefix+string(controlplanetest.VerificationResult)+"/"
}

var verdictCrashPoints = []crashPoint{
	{name: "before the refs", at: isFetch, nth: 1},
	{name: "before the commit's files", at: isFetch, nth: 4, group: true},
	{name: "while the model judges", at: isModel, nth: 1},
	{name: "between seal and deliver", at: isVerdict, nth: 1, group: true},
	{name: "verdict taken, answer lost", at: isVerdict, nth: 2, lost: loseVerdict},
}

func loseVerdict(w *world) {
	w.plane.FaultNext(controlplanetest.VerificationResult, controlplanetest.Fault{Effect: true, Lose: true})
}

// TestKilledVerifier kills a verifier once in the middle of a verification: the
// control plane gets one verdict, and what was signed once is never signed
// differently.
func TestKilledVerifier(t *testing.T) {
	t.Parallel()
	for _, point := range verdictCrashPoints {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			if point.lost != nil {
				point.lost(w)
			}
			w.script("Judge the good one", judgement(true))
			p := w.newVerifierPlace()
			died := w.dieAt(point, w.verifier(p))
			id := w.submission("killed", "Judge the good one", good, nil)
			select {
			case <-died:
			case <-time.After(patience):
				t.Fatal("the daemon never came to the point where it is killed")
			}
			again := w.start(p)
			v := w.reviewed(id, "there is a verdict", func(v controlplanetest.VerificationView) bool { return v.Verdict != "" })
			again.statusUntil("nothing is left to deliver", func(st supervisor.Status) bool { return len(st.Outbox) == 0 && st.Running == nil })
			if counts := w.plane.View().Counts; v.Verdict != "APPROVED" || v.Leases != 1 || counts.Verdicts != 1 {
				t.Errorf("verdict %s of %d leases, %d in all", v.Verdict, v.Leases, counts.Verdicts)
			}
			sent := w.sent(controlplanetest.VerificationResult)
			for _, body := range sent {
				if !strings.Contains(body, v.Signature) {
					t.Errorf("another signature was sent: %s", body)
				}
			}
			again.stop()
			wantNothingLeft(t, again.instance(), again.state)
		})
	}
}
