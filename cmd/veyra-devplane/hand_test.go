package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

// handRuntime is the least that a control plane takes for a runtime: it pairs,
// beats once when told, and signs a result.
type handRuntime struct {
	t      *testing.T
	role   string
	id     string
	key    ed25519.PrivateKey
	server *httptest.Server
	agent  string
	secret string
}

const handToken = "abcdefghijklmnopqrstuvwxyz0123456789"

func newHandRuntime(t *testing.T) *handRuntime { return newHandRole(t, "WORKER", 1) }

// newHandRole makes a runtime of a role; n tells it from others.
func newHandRole(t *testing.T, role string, n int) *handRuntime {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &handRuntime{t: t, role: role, id: fmt.Sprintf("runtime-7b1c2d3e-0000-4000-8000-%012d", n), key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /veyra/connect/challenge", r.challenge)
	mux.HandleFunc("POST /veyra/connect/claim", r.claim)
	r.server = httptest.NewServer(mux)
	t.Cleanup(r.server.Close)
	return r
}

func (r *handRuntime) link() string {
	return "veyra-connect://" + strings.TrimPrefix(r.server.URL, "http://") + "/connect/" + handToken + "?protocol=1"
}

func (r *handRuntime) sign(text string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(r.key, []byte(text)))
}

func (r *handRuntime) challenge(w http.ResponseWriter, req *http.Request) {
	var in struct{ Token, Challenge string }
	if json.NewDecoder(req.Body).Decode(&in) != nil || in.Token != handToken {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	worker, access := r.role == "WORKER", "job-scoped-write"
	if !worker {
		access = "read-only"
	}
	answer(w, http.StatusOK, map[string]any{
		"runtime_id": r.id, "challenge": in.Challenge, "signature": r.sign("veyra-connect-v1:" + in.Challenge + ":" + r.id),
		"public_key":      base64.RawURLEncoding.EncodeToString(r.key.Public().(ed25519.PublicKey)),
		"runtime_version": "1", "protocol_version": 1, "provider": "p", "model": "m", "provider_ready": true, "provider_message": "",
		"capabilities": map[string]any{
			"role": r.role, "coding": worker, "verification": !worker, "testing": true, "git": true,
			"repository_access": access, "job_transport": "veyra-outbound-heartbeat-v1",
		},
	})
}

func (r *handRuntime) claim(w http.ResponseWriter, req *http.Request) {
	var in struct {
		AgentID    string `json:"agent_id"`
		Credential string `json:"runtime_credential"`
	}
	if json.NewDecoder(req.Body).Decode(&in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.agent, r.secret = in.AgentID, in.Credential
	answer(w, http.StatusCreated, map[string]any{"connected": true, "runtime_id": r.id, "agent_id": in.AgentID})
}

// call posts to an endpoint of the control plane and reads a 200.
func (r *handRuntime) call(origin, endpoint string, body map[string]any, into any) {
	r.t.Helper()
	body["agent_id"] = r.agent
	text, err := canonjson.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	status, got := ask(r.t, "POST", origin+"/api/v1/agent-runtime/"+endpoint+"/", string(text),
		"Authorization", "Bearer "+r.secret, "Content-Type", "application/json", "X-Veyra-Agent-ID", r.agent)
	if status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", endpoint, status, got)
	}
	if err := json.Unmarshal([]byte(got), into); err != nil {
		r.t.Fatal(err)
	}
}

// handTask is what is used of a task.
type handTask struct {
	ID         string
	JobID      int64  `json:"job_id"`
	LeaseID    string `json:"lease_id"`
	LeaseToken string `json:"lease_token"`
	Repository struct {
		FullName string `json:"full_name"`
	}
	Delivery   struct{ Branch string }
	Submission struct {
		Commit string   `json:"commit_sha"`
		Number int64    `json:"pull_request_number"`
		Files  []string `json:"changed_files"`
	}
	Work struct {
		Criteria []string `json:"acceptance_criteria"`
	}
}

func (r *handRuntime) beat(origin string) handTask {
	r.t.Helper()
	var got struct {
		Job          *handTask `json:"job_task"`
		Verification *handTask `json:"verification_task"`
	}
	r.call(origin, "heartbeat", map[string]any{
		"health": "HEALTHY", "provider_ready": true, "provider": "p", "model": "m", "runtime_version": "1", "message": "",
	}, &got)
	task := got.Job
	if r.role == "VERIFIER" {
		task = got.Verification
	}
	if task == nil {
		r.t.Fatalf("the beat carried no task for a %s", r.role)
	}
	return *task
}

func (r *handRuntime) credential(origin string, task handTask) string {
	r.t.Helper()
	var got struct{ Token string }
	r.call(origin, "job/credential", map[string]any{"assignment_id": task.ID, "lease_token": task.LeaseToken}, &got)
	return got.Token
}

// readCredential asks for a verifier's token.
func (r *handRuntime) readCredential(origin string, task handTask) string {
	r.t.Helper()
	var got struct {
		Token string
		Write bool `json:"write_access"`
	}
	r.call(origin, "verification/credential", map[string]any{"verification_id": task.ID, "lease_token": task.LeaseToken}, &got)
	if got.Write {
		r.t.Error("a verifier got a token that may write")
	}
	return got.Token
}

// report submits a verdict, with the model's judgement.
func (r *handRuntime) report(origin string, task handTask, verdict string, judgement map[string]any) {
	r.t.Helper()
	report := map[string]any{
		"verdict": verdict, "summary": judgement["summary"], "commit_sha": task.Submission.Commit,
		"pull_request_number": task.Submission.Number, "changed_files": task.Submission.Files,
		"independent_test_command": "t", "independent_test_return_code": 0, "independent_test_output": "",
		"environment_setup_command": "", "environment_setup_output": "",
		"acceptance_criteria": judgement["criteria"], "security_findings": judgement["security_findings"],
		"provider": "p", "model": "m", "runtime_version": "1",
		"started_at": "2026-01-01T00:00:00Z", "completed_at": "2026-01-01T00:01:00Z",
	}
	hash, err := canonjson.Hash(report)
	if err != nil {
		r.t.Fatal(err)
	}
	var got map[string]any
	r.call(origin, "verification/result", map[string]any{
		"verification_id": task.ID, "lease_token": task.LeaseToken, "report": report,
		"signature": r.sign(fmt.Sprintf("veyra-verifier-result-v1:%s:%s:0x%s", task.ID, task.LeaseID, hash)),
	}, &got)
}

func (r *handRuntime) openPull(origin, token string, task handTask) (int64, string) {
	r.t.Helper()
	status, text := ask(r.t, "POST", origin+restRoot+"/repos/"+task.Repository.FullName+"/pulls",
		`{"title":"t","head":"`+task.Delivery.Branch+`","base":"main","body":"b"}`, "Authorization", "Bearer "+token)
	var pull struct {
		Number int64
		URL    string `json:"html_url"`
	}
	if err := json.Unmarshal([]byte(text), &pull); err != nil || status != http.StatusCreated {
		r.t.Fatalf("opening a pull request: %d %s", status, text)
	}
	return pull.Number, pull.URL
}

// submit fills evidence up to what a success has, and signs it.
func (r *handRuntime) submit(origin string, task handTask, evidence map[string]any) {
	r.t.Helper()
	for name, value := range map[string]any{
		"outcome": "SUCCEEDED", "assignment_id": task.ID, "lease_id": task.LeaseID, "job_id": task.JobID,
		"branch": task.Delivery.Branch, "base_branch": "main",
		"environment_setup_command": "", "environment_setup_output": "",
		"baseline_test_command": "t", "baseline_test_return_code": 1, "baseline_test_output": "",
		"test_command": "t", "test_return_code": 0, "test_output": "", "validation_toolchain": "python",
		"validation_command_source": "funded_policy", "validation_commands": []any{"t"},
		"repair_attempts": 0, "model_output_repair_attempts": 0, "provider": "p", "model": "m", "runtime_version": "1",
		"summary": "s", "started_at": "2026-01-01T00:00:00Z", "completed_at": "2026-01-01T00:01:00Z",
	} {
		evidence[name] = value
	}
	text, err := canonjson.Marshal(evidence)
	if err != nil {
		r.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	hash := "0x" + hex.EncodeToString(sum[:])
	var got map[string]any
	r.call(origin, "job/result", map[string]any{
		"assignment_id": task.ID, "lease_token": task.LeaseToken, "evidence": evidence, "evidence_hash": hash,
		"signature": r.sign(fmt.Sprintf("veyra-job-result-v1:%s:%s:%s", task.ID, task.LeaseID, hash)),
	}, &got)
}
