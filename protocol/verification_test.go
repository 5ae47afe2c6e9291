package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

func verificationObject() object {
	return object{
		"id": uuidA, "type": "independent_verification", "worker_assignment_id": uuidB, "job_id": 7,
		"lease_id": uuidB, "lease_token": "eyJ0.abc-_=", "lease_expires_at": "2026-03-01T12:30:00+00:00",
		"repository": object{
			"owner": "octo", "name": "demo.py", "full_name": "octo/demo.py",
			"target_branch": "main", "clone_url": "https://github.com/octo/demo.py.git",
		},
		"submission": object{
			"commit_sha": commit, "pull_request_number": 12, "pull_request_url": "https://github.com/octo/demo.py/pull/12",
			"branch": "veyra/job-7-fix-it-1", "changed_files": []any{"src/a.py", "b"},
			"worker_evidence_hash": "0x" + strings.Repeat("a", 64), "worker_test_command": "pytest", "worker_test_passed": true,
		},
		"work": object{
			"title": "Fix it", "description": "Long.", "technical_requirements": []any{"fast"},
			"acceptance_criteria": []any{object{"statement": "passes", "verificationMethod": "tests"}, "quick"},
		},
		"policy": object{
			"allowed_paths": []any{"src"}, "forbidden_paths": []any{}, "required_commands": []any{"pytest"},
			"maximum_review_minutes": 20,
		},
		"credential_url": originText + "/api/v1/agent-runtime/verification/credential/",
		"submit_url":     originText + "/api/v1/agent-runtime/verification/result/",
	}
}

func validateVerification(t testing.TB, raw json.RawMessage) (protocol.Verification, error) {
	t.Helper()
	task, err := protocol.DecodeVerificationTask(raw)
	if err != nil {
		return protocol.Verification{}, err
	}
	return task.Validate(origin(t), taskNow)
}

func TestValidVerification(t *testing.T) {
	v, err := validateVerification(t, encode(t, verificationObject()))
	if err != nil {
		t.Fatal(err)
	}
	if v.Assignment != uuidA || v.ID != uuidB || v.WorkerAssignment != uuidB || v.JobID != 7 || v.Minutes != 20 {
		t.Errorf("verification = %+v", v)
	}
	if v.Submission.CommitSHA != commit || len(v.Submission.ChangedFiles) != 2 || v.Work.AcceptanceCriteria[1].Text != "quick" {
		t.Errorf("verification = %+v", v)
	}
	if text := fmt.Sprintf("%+v", v); strings.Contains(text, "eyJ0") {
		t.Errorf("the lease token is shown: %s", text)
	}
}

// TestVerificationRefusedByField covers attack cases G04, G07, G13 and G15 for
// the other role.
func TestVerificationRefusedByField(t *testing.T) {
	commands := make([]any, protocol.MaxReviewCommands+1)
	for i := range commands {
		commands[i] = "pytest"
	}
	bad := map[string][]any{
		"id":                             {missing, nil, "", 7, "../../x", strings.ToUpper(uuidA)},
		"worker_assignment_id":           {missing, "", "7"},
		"lease_id":                       {missing, ""},
		"lease_token":                    {missing, "", "a b"},
		"job_id":                         {missing, 0, -1, "7", 1.5},
		"type":                           {missing, "veyra_paid_job"},
		"lease_expires_at":               {missing, "", "2026-03-01T12:32:00", "9999-12-31T23:59:59Z", "2027-03-01T12:32:00Z"},
		"credential_url":                 {missing, originText + "/api/v1/agent-runtime/job/credential/", "https://evil.example/api/v1/agent-runtime/verification/credential/"},
		"submit_url":                     {missing, originText + "/api/v1/agent-runtime/job/result/", originText + "/api/v1/agent-runtime/verification/result"},
		"repository.owner":               {missing, "..", "a/b"},
		"repository.full_name":           {missing, "octo/other"},
		"repository.target_branch":       {missing, "--force", "veyra/job-7..x"},
		"submission":                     {missing, nil, []any{}},
		"submission.commit_sha":          {missing, "", commit[:39], strings.ToUpper(commit), commit + "\n", "HEAD", 7},
		"submission.pull_request_number": {missing, 0, -1, 1.5, "12", json.Number("1e9"), 1 << 32},
		"submission.pull_request_url":    {strings.Repeat("x", 3000), 7},
		"submission.branch":              {missing, "", "main", "a..b", "-x"},
		"submission.changed_files": {
			missing, nil, []any{}, "a", []any{""}, []any{7}, []any{strings.Repeat("x", 5000)}, make([]any, 1001),
		},
		"work.title":                    {missing, ""},
		"work.acceptance_criteria":      {make([]any, 300), "text"},
		"policy":                        {missing, nil, "none"},
		"policy.maximum_review_minutes": {missing, nil, 0, -1, "45", 1.5},
		"policy.required_commands":      {commands, []any{""}, "pytest"},
		"policy.forbidden_paths":        {"src", []any{7}},
	}
	for path, values := range bad {
		for i, v := range values {
			t.Run(fmt.Sprintf("%s/%d", path, i), func(t *testing.T) {
				_, err := validateVerification(t, encode(t, with(verificationObject(), path, v)))
				var refused *protocol.TaskError
				if !errors.As(err, &refused) {
					t.Fatalf("error = %v", err)
				}
				if !strings.HasPrefix(refused.Field, path) {
					t.Errorf("field = %q (%s)", refused.Field, refused.Why)
				}
			})
		}
	}
}

// TestOddVerificationsAreTaken: what nothing is decided by may be odd.
func TestOddVerificationsAreTaken(t *testing.T) {
	odd := map[string]any{
		"submission.worker_evidence_hash": nil, "submission.worker_test_command": 7, "submission.worker_test_passed": nil,
		"submission.pull_request_url": "", "work.description": missing, "work.acceptance_criteria": missing,
		"policy.required_commands": nil, "policy.allowed_paths": missing, "extra": object{"x": 1.5},
		"repository.private": true, "submission.changed_files": []any{"../odd name\\ "},
	}
	for path, v := range odd {
		if _, err := validateVerification(t, encode(t, with(verificationObject(), path, v))); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	v, err := validateVerification(t, encode(t, with(verificationObject(), "policy.maximum_review_minutes", 1_000_000)))
	if err != nil || v.Minutes != protocol.MaxMinutes {
		t.Errorf("minutes %d, %v", v.Minutes, err)
	}
}

func FuzzVerificationTask(f *testing.F) {
	f.Add([]byte(encode(f, verificationObject())))
	f.Add([]byte(encode(f, with(verificationObject(), "submission.commit_sha", "HEAD"))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := validateVerification(t, raw)
		var refused *protocol.TaskError
		switch {
		case err != nil && !errors.As(err, &refused):
			t.Fatalf("error of another kind: %v", err)
		case err == nil && (v.Minutes < 1 || !protocol.ValidCommit(v.Submission.CommitSHA) || v.Submission.PullRequestNumber < 1):
			t.Fatalf("took %+v", v)
		}
	})
}

// goodReport approves the submission of verificationObject.
func goodReport() object {
	return object{
		"verdict": "APPROVED", "summary": "fine", "commit_sha": commit, "pull_request_number": 12,
		"changed_files": []any{"src/a.py", "b"}, "independent_test_command": "pytest",
		"independent_test_return_code": 0, "independent_test_output": "ok", "environment_setup_command": "",
		"environment_setup_output": "", "acceptance_criteria": []any{
			object{"passed": true, "evidence": "yes"}, object{"passed": true, "evidence": ""},
		},
		"security_findings": []any{object{"severity": "MEDIUM", "title": "t", "detail": "d"}},
		"provider":          "p", "model": "m", "runtime_version": "1",
		"started_at": "2026-03-01T12:00:00Z", "completed_at": "2026-03-01T12:01:00Z", "more": object{"x": 1},
	}
}

// Attack case I14: no report that breaks a rule is signed, whatever made it.
func TestReportsAreChecked(t *testing.T) {
	v, err := validateVerification(t, encode(t, verificationObject()))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := protocol.CheckReport(encode(t, goodReport()), v); err != nil || got != protocol.VerdictApproved {
		t.Fatalf("%s, %v", got, err)
	}
	criterion := func(passed any, evidence any) []any {
		return []any{object{"passed": true, "evidence": "x"}, object{"passed": passed, "evidence": evidence}}
	}
	finding := func(severity, title string) []any {
		return []any{object{"severity": severity, "title": title, "detail": ""}}
	}
	bad := map[string][]any{
		"verdict":                      {missing, "", "approved", "PASSED", 7},
		"summary":                      {missing, "", strings.Repeat("é", 3001)},
		"commit_sha":                   {missing, strings.Repeat("a", 40)},
		"pull_request_number":          {missing, 13, "12"},
		"changed_files":                {missing, []any{}, []any{"b", "src/a.py"}, []any{"src/a.py"}, []any{"src/a.py", "b", "c"}},
		"independent_test_command":     {missing, strings.Repeat("x", 501)},
		"independent_test_return_code": {missing, "0", 1.5, nil},
		"independent_test_output":      {missing, strings.Repeat("x", 12_001)},
		"environment_setup_command":    {missing, nil},
		"acceptance_criteria": {
			missing,
			[]any{},
			criterion(nil, "x"), criterion("yes", "x"), criterion(true, nil),
			criterion(true, strings.Repeat("x", 1201)), append(criterion(true, "x"), criterion(true, "x")...),
		},
		"security_findings": {
			missing, nil, finding("GRAVE", "t"), finding("LOW", ""), finding("LOW", strings.Repeat("x", 241)), make([]any, 31),
		},
		"provider": {missing, ""}, "model": {missing, strings.Repeat("x", 161)}, "runtime_version": {missing},
		"started_at": {missing}, "completed_at": {""},
	}
	for name, values := range bad {
		for i, value := range values {
			if _, err := protocol.CheckReport(encode(t, with(goodReport(), name, value)), v); err == nil {
				t.Errorf("%s/%d was taken", name, i)
			} else if rule := new(protocol.ReportError); !errors.As(err, &rule) {
				t.Errorf("%s/%d: error %v", name, i, err)
			}
		}
	}
	for name, spoil := range map[string]object{
		"failing tests": {"independent_test_return_code": 1},
		"a criterion":   {"acceptance_criteria": criterion(false, "no")},
		"high":          {"security_findings": finding("HIGH", "t")},
		"critical":      {"security_findings": finding("CRITICAL", "t")},
	} {
		report := goodReport()
		maps.Copy(report, spoil)
		if _, err := protocol.CheckReport(encode(t, report), v); err == nil {
			t.Errorf("approved in spite of %s", name)
		}
		report["verdict"] = "REJECTED"
		if got, err := protocol.CheckReport(encode(t, report), v); err != nil || got != protocol.VerdictRejected {
			t.Errorf("rejected for %s: %v", name, err)
		}
	}
}

// FuzzReport: what is taken approves only what passed.
func FuzzReport(f *testing.F) {
	v, err := validateVerification(f, encode(f, verificationObject()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(encode(f, goodReport())))
	f.Add([]byte(encode(f, with(goodReport(), "verdict", "INCONCLUSIVE"))))
	f.Fuzz(func(t *testing.T, body []byte) {
		verdict, err := protocol.CheckReport(body, v)
		if err != nil {
			return
		}
		var said struct {
			Code *int `json:"independent_test_return_code"`
		}
		if json.Unmarshal(body, &said) != nil || said.Code == nil || verdict == protocol.VerdictApproved && *said.Code != 0 {
			t.Errorf("%s for %q", verdict, body)
		}
	})
}
