package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	uuidA      = "43725ad0-077e-46c3-a4f0-b991a459d879"
	uuidB      = "d128dc79-35da-483c-98b1-4c25ea91cd39"
	originText = "https://api.veyra.example"
)

var taskNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func origin(t testing.TB) protocol.Origin {
	t.Helper()
	o, err := protocol.ParseOrigin(originText)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// object is a JSON object that a test bends out of shape.
type object = map[string]any

func jobObject() object {
	return object{
		"id": uuidA, "type": "veyra_paid_job", "job_id": 7, "queue_item_id": 12,
		"assignment_attempt": 1, "lease_id": uuidB, "lease_token": "eyJ0.abc-_=",
		"lease_expires_at": "2026-03-01T12:32:00.123456+00:00",
		"credential_url":   originText + "/api/v1/agent-runtime/job/credential/",
		"submit_url":       originText + "/api/v1/agent-runtime/job/result/",
		"repository": object{
			"owner": "octo", "name": "demo.py", "full_name": "octo/demo.py", "private": true,
			"target_branch": "main", "clone_url": "https://github.com/octo/demo.py.git",
		},
		"work": object{
			"title": "Fix it", "description": "Long.", "issue_number": nil, "issue_url": "",
			"technical_requirements": []any{"fast"},
			"acceptance_criteria":    []any{object{"statement": "passes", "verificationMethod": "tests"}},
		},
		"policy": object{
			"allowed_paths": []any{"src"}, "forbidden_paths": []any{}, "allow_new_dependencies": false,
			"allow_database_migrations": false, "maximum_execution_minutes": 30,
			"required_commands": []any{"pytest"}, "maximum_repair_attempts": 2,
		},
		"delivery": object{
			"branch": "veyra/job-7-fix-it-1", "pull_request_title": "Fix it", "pull_request_body_prefix": "Job 7\n",
		},
	}
}

// with returns o with the member at a dotted path set to v, or removed if v is
// the value missing.
func with(o object, path string, v any) object {
	inner := o
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		inner = inner[name].(object)
	}
	last := names[len(names)-1]
	if v == missing {
		delete(inner, last)
	} else {
		inner[last] = v
	}
	return o
}

var missing = new(int)

func encode(t testing.TB, v any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func validateJob(t testing.TB, raw json.RawMessage) (protocol.Job, error) {
	t.Helper()
	task, err := protocol.DecodeJobTask(raw)
	if err != nil {
		return protocol.Job{}, err
	}
	return task.Validate(origin(t), taskNow)
}

func TestValidJob(t *testing.T) {
	job, err := validateJob(t, encode(t, jobObject()))
	if err != nil {
		t.Fatal(err)
	}
	if job.Assignment != uuidA || job.ID != uuidB || job.JobID != 7 || job.Minutes != 30 || job.Repairs != 2 {
		t.Errorf("job = %+v", job)
	}
	if want := taskNow.Add(32*time.Minute + 123456*time.Microsecond); !job.Ends.Equal(want) {
		t.Errorf("lease ends %v, want %v", job.Ends, want)
	}
	if got := job.Work.AcceptanceCriteria[0]; got.Text != "passes" || got.VerificationMethod != "tests" {
		t.Errorf("criterion = %+v", got)
	}
	if text := fmt.Sprintf("%+v", job); strings.Contains(text, "eyJ0") {
		t.Errorf("the lease token is shown: %s", text)
	}
}

// TestJobRefusedByField covers attack cases G04, G07, G13, G14 and G15.
func TestJobRefusedByField(t *testing.T) {
	credential := originText + "/api/v1/agent-runtime/job/credential/"
	bad := map[string][]any{
		"id":                   {missing, nil, "", 7, "../../x", "/", ":", uuidA + "\n", strings.ToUpper(uuidA), strings.Repeat("a", 10_000)},
		"lease_id":             {missing, "", uuidB[:35], strings.ReplaceAll(uuidB, "-", "")},
		"lease_token":          {missing, "", nil, "a b", "a\nb", "é", strings.Repeat("x", 9_000)},
		"job_id":               {missing, 0, -1, "7", 1.5, json.Number("1e400"), nil},
		"type":                 {missing, "automatic_qualification"},
		"assignment_attempt":   {-1, "1"},
		"lease_expires_at":     {missing, "", "soon", "2026-03-01T12:32:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", 1772366400, "2027-03-01T12:32:00Z"},
		"credential_url":       {missing, "", credential[:len(credential)-1], credential + "?a=b", strings.Replace(credential, "https", "http", 1), strings.Replace(credential, "api.", "evil.", 1), strings.Replace(credential, "://", "://u@", 1), strings.Replace(credential, ".example", ".example:8443", 1), strings.Replace(credential, "job", "Job", 1), originText + "/api/v1/agent-runtime/job/result/"},
		"submit_url":           {missing, credential, originText + "/api/v1/agent-runtime/verification/result/"},
		"repository.owner":     {missing, "", ".", "..", "-x", "a/b", "a b", "a\u00e9", strings.Repeat("a", 101)},
		"repository.name":      {"..", "demo.git/", "demo?"},
		"repository.full_name": {missing, "octo/other", "Octo/demo.py"},
		"repository.target_branch": {
			missing, "", "--force", "a..b", "a b", "a~1", "refs/heads/main", "HEAD", "x.lock", "a//b", "/a", "a/",
			".a", "a.", "a@{1}", "@", "a\\b", strings.Repeat("a", 300),
		},
		"work.title":                       {missing, "", "  ", nil, strings.Repeat("x", 501)},
		"work.acceptance_criteria":         {[]any{strings.Repeat("x", 20_000)}, make([]any, 300), "text"},
		"policy":                           {missing, nil, "none", []any{}},
		"policy.maximum_execution_minutes": {missing, nil, 0, -1, "45", 45.5, json.Number("1e9"), json.Number("1e400"), true},
		"policy.maximum_repair_attempts":   {"2", 1.5},
		"policy.required_commands":         {[]any{"a", "b", "c", "d", "e"}, []any{""}, []any{7}, []any{strings.Repeat("x", 2001)}, "pytest"},
		"policy.forbidden_paths":           {"src", []any{7}, []any{strings.Repeat("x", 5000)}},
		"delivery.branch":                  {missing, "", "main", "veyra/job-7..x", "veyra/job-7 x", "feature/x", "veyra/job-" + strings.Repeat("x", 300)},
		"delivery.pull_request_title":      {missing, ""},
	}
	for path, values := range bad {
		for i, v := range values {
			t.Run(fmt.Sprintf("%s/%d", path, i), func(t *testing.T) {
				_, err := validateJob(t, encode(t, with(jobObject(), path, v)))
				var refused *protocol.TaskError
				if !errors.As(err, &refused) {
					t.Fatalf("error = %v", err)
				}
				if !strings.HasPrefix(refused.Field, path) && path != "policy" {
					t.Errorf("field = %q (%s)", refused.Field, refused.Why)
				}
			})
		}
	}
}

func TestLeasedBranchIsNotTheTarget(t *testing.T) {
	for _, target := range []string{"veyra/job-7-fix-it-1", "Veyra/Job-7-fix-it-1"} {
		_, err := validateJob(t, encode(t, with(jobObject(), "repository.target_branch", target)))
		var refused *protocol.TaskError
		if !errors.As(err, &refused) || refused.Field != "delivery.branch" {
			t.Errorf("%s: error = %v", target, err)
		}
	}
}

// TestNumbersAreClamped covers attack case G15.
func TestNumbersAreClamped(t *testing.T) {
	task := with(jobObject(), "policy.maximum_execution_minutes", 1_000_000_000)
	task = with(task, "policy.maximum_repair_attempts", 1_000_000)
	job, err := validateJob(t, encode(t, task))
	if err != nil || job.Minutes != protocol.MaxMinutes || job.Repairs != protocol.MaxRepairs {
		t.Errorf("minutes %d, repairs %d, error %v", job.Minutes, job.Repairs, err)
	}
	job, err = validateJob(t, encode(t, with(jobObject(), "policy.maximum_repair_attempts", -3)))
	if err != nil || job.Repairs != 0 {
		t.Errorf("repairs %d, error %v", job.Repairs, err)
	}
}

// TestLeaseOfAnAbsurdYear covers attack case G07: not even a failure is sent for
// a lease that can't be believed.
func TestLeaseOfAnAbsurdYear(t *testing.T) {
	for _, ends := range []string{"9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2026-03-01T12:32:00", "2026-02-30T12:00:00Z"} {
		task, err := protocol.DecodeJobTask(encode(t, with(jobObject(), "lease_expires_at", ends)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.Lease(); err == nil {
			t.Errorf("%s was taken", ends)
		}
	}
}

// TestExpiredLeaseIsNoBrokenTask: its name is LEASE_TOO_SHORT, after the clocks
// have been compared.
func TestExpiredLeaseIsNoBrokenTask(t *testing.T) {
	if _, err := validateJob(t, encode(t, with(jobObject(), "lease_expires_at", "2026-03-01T11:00:00Z"))); err != nil {
		t.Error(err)
	}
}

// TestBrokenTaskStillNamesItsLease: the control plane can then be told.
func TestBrokenTaskStillNamesItsLease(t *testing.T) {
	bend := map[string]any{
		"submit_url": "https://evil.example/", "policy": "none", "repository": nil,
		"policy.maximum_execution_minutes": "45", "delivery.branch": 7, "work": []any{},
	}
	for path, v := range bend {
		t.Run(path, func(t *testing.T) {
			raw := encode(t, with(jobObject(), path, v))
			task, err := protocol.DecodeJobTask(raw)
			if err == nil {
				_, err = task.Validate(origin(t), taskNow)
			}
			if err == nil {
				t.Fatal("the task was taken")
			}
			lease, err := task.Lease()
			if err != nil || lease.Assignment != uuidA || lease.ID != uuidB || lease.Token == "" {
				t.Errorf("lease %+v, error %v", lease, err)
			}
		})
	}
}

func TestHarmlessOddnessIsTaken(t *testing.T) {
	odd := map[string]any{
		"queue_item_id": "q-1", "work.issue_number": "12", "work.issue_url": 7, "work.description": missing,
		"policy.required_commands": nil, "policy.allowed_paths": missing, "new_member": object{"x": []any{1.5}},
		"work.acceptance_criteria": missing, "repository.private": missing,
		"work.technical_requirements": []any{object{"title": "x"}, "", nil},
	}
	for path, v := range odd {
		if _, err := validateJob(t, encode(t, with(jobObject(), path, v))); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func qualificationObject() object {
	return object{
		"id": uuidA, "type": "automatic_qualification", "attempt": 1, "task_version": "v1", "title": "Ready",
		"instructions": "Write it.", "qualification_target_path": "qualification/ready.txt",
		"starter_files": []any{
			object{"path": "qualification/ready.txt", "content": "no\n"},
			object{"path": "tests/test_ready.py", "content": "import unittest\n"},
		},
		"allowed_submission_paths": []any{"qualification/ready.txt"},
		"test_command":             "python -m unittest discover -s tests -q",
		"lease_token":              "token", "submit_url": originText + "/api/v1/agent-runtime/qualification/submit/",
	}
}

func validateQualification(t testing.TB, raw json.RawMessage) (protocol.Qualification, error) {
	t.Helper()
	task, err := protocol.DecodeQualificationTask(raw)
	if err != nil {
		return protocol.Qualification{}, err
	}
	return task.Validate(origin(t))
}

func TestValidQualification(t *testing.T) {
	q, err := validateQualification(t, encode(t, qualificationObject()))
	if err != nil {
		t.Fatal(err)
	}
	if q.ID != uuidA || q.Attempt != 1 || q.StarterText() != "no\n" || q.Target != "qualification/ready.txt" {
		t.Errorf("qualification = %+v", q)
	}
}

func TestQualificationRefusedByField(t *testing.T) {
	file := func(path string) object { return object{"path": path, "content": "x"} }
	target := file("qualification/ready.txt")
	bad := map[string][]any{
		"id":                        {missing, "x", 7},
		"attempt":                   {-1, "1", 1e9},
		"type":                      {missing, "veyra_paid_job"},
		"lease_token":               {missing, ""},
		"submit_url":                {missing, originText + "/api/v1/agent-runtime/job/result/"},
		"instructions":              {missing, ""},
		"test_command":              {missing, "", strings.Repeat("x", 501)},
		"qualification_target_path": {missing, "", "/etc/passwd", "../x", "a/../b", ".git/config", "a\\b", " x", "a//b", "a/"},
		"allowed_submission_paths":  {missing, []any{}, []any{"other"}, []any{"qualification/ready.txt", "b"}},
		"starter_files": {
			missing,
			[]any{},
			[]any{file("b")},
			[]any{target, file("../x")},
			[]any{target, file(".GIT/hooks/x")},
			[]any{target, target},
			[]any{target, file("Qualification/Ready.txt")},
			[]any{target, file("qualification/ready.txt/x")},
			[]any{target, file("a/b/c"), file("a")},
			[]any{target, "b"},
		},
	}
	for path, values := range bad {
		for i, v := range values {
			t.Run(fmt.Sprintf("%s/%d", path, i), func(t *testing.T) {
				_, err := validateQualification(t, encode(t, with(qualificationObject(), path, v)))
				var refused *protocol.TaskError
				if !errors.As(err, &refused) {
					t.Fatalf("error = %v", err)
				}
				if !strings.HasPrefix(refused.Field, path) && refused.Field != "allowed_submission_paths" {
					t.Errorf("field = %q (%s)", refused.Field, refused.Why)
				}
			})
		}
	}
}

func FuzzJobTask(f *testing.F) {
	f.Add([]byte(encode(f, jobObject())))
	f.Add([]byte(encode(f, with(jobObject(), "policy.maximum_execution_minutes", "45"))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		job, err := validateJob(t, raw)
		var refused *protocol.TaskError
		switch {
		case err != nil && !errors.As(err, &refused):
			t.Fatalf("error of another kind: %v", err)
		case err == nil && (job.Minutes < 1 || job.Minutes > protocol.MaxMinutes || !protocol.ValidBranch(job.Delivery.Branch)):
			t.Fatalf("took %+v", job)
		}
	})
}
