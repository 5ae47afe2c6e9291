package controlplanetest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

const commitSHA = "0123456789abcdef0123456789abcdef01234567"

func submission() controlplanetest.VerificationSpec {
	return controlplanetest.VerificationSpec{
		Owner: "o", Name: "n", CommitSHA: commitSHA, PullRequest: 3, ChangedFiles: []string{"b", "a"},
		Criteria: []any{"one", map[string]any{"statement": "two"}},
	}
}

func report() map[string]any {
	return map[string]any{
		"verdict": "APPROVED", "summary": "fine", "commit_sha": commitSHA, "pull_request_number": 3,
		"changed_files": []any{"b", "a"}, "independent_test_command": "pytest", "independent_test_return_code": 0,
		"independent_test_output": "ok", "environment_setup_command": "", "environment_setup_output": "",
		"acceptance_criteria": []any{
			map[string]any{"passed": true, "evidence": "x"}, map[string]any{"passed": true, "evidence": "y"},
		},
		"security_findings": []any{}, "provider": "p", "model": "m", "runtime_version": "1",
		"started_at": "2026-11-29T10:00:00Z", "completed_at": "2026-11-29T10:01:00Z",
	}
}

// stepping is a clock that only the test moves.
type stepping struct{ seconds atomic.Int64 }

func (c *stepping) now() time.Time { return time.Unix(1_800_000_000+c.seconds.Load(), 0) }

func (c *stepping) pass(d time.Duration) { c.seconds.Add(int64(d.Seconds())) }

func (r *runtime) review() map[string]any {
	r.t.Helper()
	_, got := r.beat(nil)
	task, _ := got["verification_task"].(map[string]any)
	return task
}

// send submits a report for a task, signed well.
func (r *runtime) send(task, report map[string]any) (int, map[string]any) {
	r.t.Helper()
	text, err := canonjson.Marshal(report)
	if err != nil {
		r.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	message := fmt.Sprintf("veyra-verifier-result-v1:%s:%s:0x%s", task["id"], task["lease_id"], hex.EncodeToString(sum[:]))
	status, _, got := r.post("verification/result/", map[string]any{
		"agent_id": r.agent, "verification_id": task["id"], "lease_token": task["lease_token"],
		"report": report, "signature": r.sign(message),
	}, nil)
	return status, got
}

func TestReportsAreJudgedAsTheProtocolSays(t *testing.T) {
	r := newRuntimeOf(t, "VERIFIER", controlplanetest.Options{})
	r.plane.AddVerification(submission())
	task := r.review()
	for name, change := range map[string]map[string]any{
		"no verdict":           {"verdict": "MAYBE"},
		"failing tests":        {"independent_test_return_code": 1},
		"failed criterion":     {"acceptance_criteria": []any{map[string]any{"passed": true, "evidence": ""}, map[string]any{"passed": false, "evidence": ""}}},
		"missing criterion":    {"acceptance_criteria": []any{map[string]any{"passed": true, "evidence": ""}}},
		"long evidence":        {"acceptance_criteria": []any{map[string]any{"passed": true, "evidence": strings.Repeat("x", 1201)}, map[string]any{"passed": true, "evidence": ""}}},
		"grave finding":        {"security_findings": []any{map[string]any{"severity": "HIGH", "title": "t", "detail": ""}}},
		"unknown severity":     {"security_findings": []any{map[string]any{"severity": "BAD", "title": "t", "detail": ""}}},
		"other commit":         {"commit_sha": strings.Repeat("a", 40)},
		"other pull request":   {"pull_request_number": 4},
		"files in other order": {"changed_files": []any{"a", "b"}},
		"long summary":         {"summary": strings.Repeat("é", 3001)},
		"long output":          {"independent_test_output": strings.Repeat("x", 12_001)},
		"no model":             {"model": ""},
	} {
		bad := report()
		maps.Copy(bad, change)
		if status, got := r.send(task, bad); status != 409 {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	forged := map[string]any{"id": task["id"], "lease_id": "other", "lease_token": task["lease_token"]}
	if status, got := r.send(forged, report()); status != 409 {
		t.Errorf("signature of another lease: %d %v", status, got)
	}
	for range 2 {
		if status, got := r.send(task, report()); status != 200 || got["verdict"] != "APPROVED" || got["verification_id"] != task["id"] {
			t.Errorf("good report: %d %v", status, got)
		}
	}
	other := report()
	other["verdict"] = "REJECTED"
	if status, _ := r.send(task, other); status != 409 {
		t.Errorf("another report: %d", status)
	}
	view := r.plane.View()
	if view.Counts.Verdicts != 1 || view.Verifications[0].Verdict != "APPROVED" || r.review() != nil {
		t.Errorf("plane %+v", view)
	}
}

// After its lease a verification takes nothing, and comes again under the same id
// to the same verifier once, then to another.
func TestVerificationLeasesRunOut(t *testing.T) {
	clock := &stepping{}
	r := newRuntimeOf(t, "VERIFIER", controlplanetest.Options{Now: clock.now})
	r.plane.AddVerification(submission())
	first := r.review()
	if status, _ := r.send(first, report()); status != 200 {
		t.Fatalf("in time: %d", status)
	}
	clock.pass(31 * time.Minute)
	if status, _ := r.send(first, report()); status != 409 {
		t.Errorf("the identical report after the lease: %d", status)
	}
	id := r.plane.AddVerification(submission())
	first = r.review()
	clock.pass(31 * time.Minute)
	second := r.review()
	if second["id"] != id || second["lease_id"] == first["lease_id"] {
		t.Errorf("came again as %v", second)
	}
	if status, _ := r.send(first, report()); status != 409 {
		t.Errorf("with the old lease: %d", status)
	}
	clock.pass(31 * time.Minute)
	if third := r.review(); third != nil {
		t.Errorf("a third time: %v", third)
	}
	if v := r.plane.View().Verifications[1]; v.Status != "QUEUED" || v.Leases != 2 {
		t.Errorf("verification %+v", v)
	}
}

func TestVerifiersGetReadOnlyTokens(t *testing.T) {
	r := newRuntimeOf(t, "VERIFIER", controlplanetest.Options{})
	r.plane.AddVerification(submission())
	task := r.review()
	ask := func() map[string]any {
		_, _, got := r.post("verification/credential/", map[string]any{
			"agent_id": r.agent, "verification_id": task["id"], "lease_token": task["lease_token"],
		}, nil)
		return got
	}
	one, two := ask(), ask()
	if one["write_access"] != false || one["token"] == two["token"] || one["permissions"].(map[string]any)["contents"] != "read" {
		t.Errorf("credential %v, then %v", one, two)
	}
}

// A worker gets no verification, a verifier no job, and an accepted job becomes a
// verification of what its evidence claims.
func TestAcceptedJobsBecomeVerifications(t *testing.T) {
	r := newRuntimeOf(t, "VERIFIER", controlplanetest.Options{})
	r.plane.AddJob(controlplanetest.JobSpec{Owner: "o", Name: "n"})
	if _, got := r.beat(nil); got["job_task"] != nil || got["verification_task"] != nil {
		t.Errorf("beat %v", got)
	}
	if _, err := r.plane.VerifyJob(1); err == nil {
		t.Error("a queued job was verified")
	}
	w := newRuntime(t, controlplanetest.Options{Qualified: true})
	w.plane.AddVerification(submission())
	if _, got := w.beat(nil); got["verification_task"] != nil {
		t.Errorf("beat %v", got)
	}
}
