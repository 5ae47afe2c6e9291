package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// pair hands a link over for a new agent of the runtime's role.
func (r *handRuntime) pair(w *world) {
	r.t.Helper()
	body := fmt.Sprintf(`{"link":%q,"role":%q}`, r.link(), r.role)
	if status, text := ask(r.t, "POST", w.origin+"/devplane/link", body); status != http.StatusOK {
		r.t.Fatalf("pairing a %s: %d %s", r.role, status, text)
	}
}

// acceptedJob has the sample worked and accepted.
func acceptedJob(t *testing.T, o worldOptions, body string) *world {
	t.Helper()
	w := serveWorld(t, o)
	worker := newHandRuntime(t)
	worker.pair(w)
	if status, text := ask(t, "POST", w.origin+"/devplane/jobs", body); status != http.StatusCreated {
		t.Fatalf("placing the sample: %d %s", status, text)
	}
	worker.work(w)
	return w
}

// askModel asks the scripted model for its judgement in a verifier's words.
func askModel(t *testing.T, w *world, title string, criteria []string) map[string]any {
	t.Helper()
	prompt := "<<<task title\n" + title + "\n>>>\n\n<<<acceptance criteria\n"
	for i, text := range criteria {
		prompt += fmt.Sprintf("%d. %s\n", i+1, text)
	}
	prompt += fmt.Sprintf("\n>>>\n\nJudge the %d acceptance criteria now.\n", len(criteria))
	body, err := json.Marshal(map[string]any{"model": "scripted", "messages": []any{map[string]any{"role": "user", "content": prompt}}})
	if err != nil {
		t.Fatal(err)
	}
	_, text := ask(t, "POST", w.origin+modelRoot+"/chat/completions", string(body))
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	judgement := map[string]any{}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Choices) != 1 {
		t.Fatalf("the model's answer: %v %s", err, text)
	}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &judgement); err != nil {
		t.Fatalf("the judgement: %v %s", err, text)
	}
	return judgement
}

func stateOf(t *testing.T, text string) planeState {
	t.Helper()
	var state planeState
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatal(err)
	}
	return state
}

// With verify set an accepted job goes on to a second agent, whose tokens are
// fresh and can't write, and whose verdict is waited for.
func TestJobGoesOnToItsVerdict(t *testing.T) {
	w := acceptedJob(t, worldOptions{Qualified: true, Verify: true}, "")
	verifier := newHandRole(t, "VERIFIER", 2)
	verifier.pair(w)
	task := verifier.beat(w.origin)
	one, two := verifier.readCredential(w.origin, task), verifier.readCredential(w.origin, task)
	if one == two {
		t.Error("the same token was given twice")
	}
	clone := filepath.Join(t.TempDir(), "clone")
	mustGit(t, "/", "clone", "-q", withToken(w.origin, one, task.Repository.FullName+".git"), clone)
	mustGit(t, clone, "fetch", "-q", withToken(w.origin, two, task.Repository.FullName+".git"), fmt.Sprintf("refs/pull/%d/head", task.Submission.Number))
	if got := mustGit(t, clone, "rev-parse", "FETCH_HEAD"); got != task.Submission.Commit {
		t.Errorf("head of the pull request %s, submitted %s", got, task.Submission.Commit)
	}
	if out, err := gitRun(clone, "push", "-q", withToken(w.origin, two, task.Repository.FullName+".git"), "FETCH_HEAD:refs/heads/mine"); err == nil {
		t.Errorf("a verifier's token could push: %s", out)
	}
	judgement := askModel(t, w, sampleOrder().Title, task.Work.Criteria)
	verifier.report(w.origin, task, "APPROVED", judgement)
	status, text := ask(t, "GET", w.origin+"/devplane/wait?for=approved&job=1&timeout=5s", "")
	state := stateOf(t, text)
	if status != http.StatusOK || len(state.Verifications) != 1 {
		t.Fatalf("waiting: %d %s", status, text)
	}
	got := state.Verifications[0]
	if got.Status != "COMPLETED" || got.Verdict != "APPROVED" || got.JobID != 1 || got.Leases != 1 || got.Signature == "" ||
		got.AgentID != state.Agents[1].ID || state.Agents[1].Role != "VERIFIER" || got.Report["commit_sha"] != task.Submission.Commit {
		t.Errorf("state of the verification: %+v", got)
	}
}

// Without verify an accepted job waits until it is offered; the offer may fail a
// criterion, and then an approval is no longer worth waiting for.
func TestOffersNameTheCriterionThatFails(t *testing.T) {
	w := acceptedJob(t, worldOptions{Qualified: true}, "")
	verifier := newHandRole(t, "VERIFIER", 2)
	verifier.pair(w)
	if n := len(w.plane.View().Verifications); n != 0 {
		t.Fatalf("%d verifications that nobody offered", n)
	}
	status, text := ask(t, "POST", w.origin+"/devplane/verifications", `{"job_id":1,"fail_criterion":2}`)
	if status != http.StatusCreated || !strings.Contains(text, `"verification_id"`) {
		t.Fatalf("offering: %d %s", status, text)
	}
	if status, text := ask(t, "GET", w.origin+"/devplane/wait?for=verified&timeout=1ms", ""); status != http.StatusGatewayTimeout {
		t.Errorf("before the verdict: %d %s", status, text)
	}
	task := verifier.beat(w.origin)
	verifier.report(w.origin, task, "REJECTED", askModel(t, w, sampleOrder().Title, task.Work.Criteria))
	for query, want := range map[string]int{"for=verified": http.StatusOK, "for=approved": http.StatusConflict} {
		if status, text := ask(t, "GET", w.origin+"/devplane/wait?timeout=5s&"+query, ""); status != want {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	report := w.plane.View().Verifications[0].Report
	var passed []bool
	for _, item := range report["acceptance_criteria"].([]any) {
		passed = append(passed, item.(map[string]any)["passed"].(bool))
	}
	if diff := cmp.Diff([]bool{true, false, true, true}, passed); diff != "" {
		t.Error(diff)
	}
}

// A job's own fail_criterion holds for its verifications until an offer says
// otherwise.
func TestJobsNameTheCriterionThatFails(t *testing.T) {
	w := acceptedJob(t, worldOptions{Qualified: true}, `{"title":"Mine","fail_criterion":4}`)
	last := func() any {
		entries := askModel(t, w, "Mine", sampleOrder().Criteria)["criteria"].([]any)
		return entries[3].(map[string]any)["passed"]
	}
	if last() != false {
		t.Error("the job's criterion is met")
	}
	if status, text := ask(t, "POST", w.origin+"/devplane/verifications", `{"fail_criterion":0}`); status != http.StatusCreated {
		t.Fatalf("offering the newest: %d %s", status, text)
	}
	if last() != true {
		t.Error("the criterion is still not met")
	}
}

func TestOffersThatAreRefused(t *testing.T) {
	w := serveWorld(t, worldOptions{Qualified: true})
	if status, text := ask(t, "POST", w.origin+"/devplane/verifications", ""); status != http.StatusConflict {
		t.Errorf("before any job: %d %s", status, text)
	}
	if status, text := ask(t, "POST", w.origin+"/devplane/jobs", ""); status != http.StatusCreated {
		t.Fatalf("placing: %d %s", status, text)
	}
	for body, want := range map[string]int{
		`{`: http.StatusBadRequest, `[]`: http.StatusBadRequest, `{"job":1}`: http.StatusBadRequest, `{"job_id":-1}`: http.StatusBadRequest,
		`{"job_id":1}`: http.StatusConflict, `{"job_id":2}`: http.StatusConflict, `{"fail_criterion":5}`: http.StatusConflict, ``: http.StatusConflict,
	} {
		if status, text := ask(t, "POST", w.origin+"/devplane/verifications", body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
	}
	if status, _ := ask(t, "POST", w.origin+"/devplane/verifications", "", "Origin", "http://evil.example"); status != http.StatusForbidden {
		t.Errorf("a page's offer: %d", status)
	}
	if n := len(w.plane.View().Verifications); n != 0 {
		t.Errorf("%d verifications were made", n)
	}
}

func TestVerdictsAreJudged(t *testing.T) {
	view := func(jobs string, reviews ...controlplanetest.VerificationView) controlplanetest.View {
		return controlplanetest.View{Jobs: []controlplanetest.JobView{{JobID: 1, Status: jobs}}, Verifications: reviews}
	}
	is := func(job int64, status, verdict string) controlplanetest.VerificationView {
		return controlplanetest.VerificationView{JobID: job, Status: status, Verdict: verdict}
	}
	for _, c := range []struct {
		name     string
		view     controlplanetest.View
		job      int64
		approved bool
		want     outcome
	}{
		{"nothing offered", view("ACCEPTED"), 0, false, waiting},
		{"a failed job", view("FAILED"), 0, false, hopeless},
		{"a failed job beside", view("FAILED"), 2, false, waiting},
		{"under way", view("ACCEPTED", is(1, "LEASED", "")), 0, true, waiting},
		{"lease ran out", view("ACCEPTED", is(1, "EXPIRED", "")), 0, true, waiting},
		{"approved", view("ACCEPTED", is(1, "COMPLETED", "APPROVED")), 1, true, reached},
		{"rejected", view("ACCEPTED", is(1, "COMPLETED", "REJECTED")), 0, false, reached},
		{"rejected is not approved", view("ACCEPTED", is(1, "COMPLETED", "REJECTED")), 0, true, hopeless},
		{"inconclusive is not approved", view("ACCEPTED", is(1, "COMPLETED", "INCONCLUSIVE")), 1, true, hopeless},
		{"another is under way", view("ACCEPTED", is(1, "COMPLETED", "APPROVED"), is(2, "LEASED", "")), 0, true, waiting},
		{"another job's", view("ACCEPTED", is(1, "COMPLETED", "APPROVED"), is(2, "LEASED", "")), 1, true, reached},
		{"another job's rejection", view("ACCEPTED", is(1, "COMPLETED", "APPROVED"), is(2, "COMPLETED", "REJECTED")), 1, true, reached},
	} {
		if got := verdictsAre(c.view, c.job, c.approved); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Each step of a verification is told once, with what a reader needs.
func TestNewsTellsEachStepOfAVerificationOnce(t *testing.T) {
	r := controlplanetest.VerificationView{ID: "v", JobID: 1, Status: "QUEUED"}
	views := []controlplanetest.View{{}, {Verifications: []controlplanetest.VerificationView{r}}}
	with := func(change func(*controlplanetest.VerificationView)) {
		change(&r)
		views = append(views, controlplanetest.View{Verifications: []controlplanetest.VerificationView{r}})
	}
	with(func(r *controlplanetest.VerificationView) {
		r.Status, r.LeaseID, r.AgentID, r.Leases = "LEASED", "l", "a", 1
	})
	with(func(r *controlplanetest.VerificationView) { r.Phases, r.LastSaid = []string{"FAILED"}, "why" })
	with(func(r *controlplanetest.VerificationView) { r.LeaseID, r.Phases, r.Leases = "m", nil, 2 })
	with(func(r *controlplanetest.VerificationView) {
		r.Phases = []string{"PREPARING_REVIEW", "RUNNING_VALIDATION"}
	})
	with(func(r *controlplanetest.VerificationView) { r.Refusal = "not so" })
	with(func(r *controlplanetest.VerificationView) {
		r.Status, r.Verdict, r.Refusal, r.Hash = "COMPLETED", "REJECTED", "", "0x1"
		r.Report = map[string]any{
			"commit_sha": "c", "independent_test_command": "t", "independent_test_return_code": json.Number("0"),
			"acceptance_criteria": []any{map[string]any{"passed": true}, map[string]any{"passed": false}, "odd"},
		}
	})
	with(func(*controlplanetest.VerificationView) {})
	var told bytes.Buffer
	last := controlplanetest.View{}
	for _, v := range views {
		for _, e := range news(last, v) {
			fmt.Fprintln(&told, strings.TrimSpace(textLine(0, e)))
		}
		last = v
	}
	want := `0.00s  verification_offered  verification_id=v  job_id=1
0.00s  verification_delivered  verification_id=v  agent_id=a  lease=1
0.00s  verification_phase  verification_id=v  phase=FAILED  message=why
0.00s  verification_delivered  verification_id=v  agent_id=a  lease=2
0.00s  verification_phase  verification_id=v  phase=PREPARING_REVIEW
0.00s  verification_phase  verification_id=v  phase=RUNNING_VALIDATION
0.00s  report_refused  verification_id=v  detail=not so
0.00s  verdict  verification_id=v  verdict=REJECTED  commit=c  criteria_met=1 of 3  findings=0  commands=t  return_code=0  report_hash=0x1
`
	if diff := cmp.Diff(want, told.String()); diff != "" {
		t.Error(diff)
	}
}
