package controlplanetest_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

const runtimeID = "runtime-43725ad0-077e-46c3-a4f0-b991a459d879"

// runtime is the smallest one that can pair: it answers as the protocol says,
// by code of its own.
type runtime struct {
	t      *testing.T
	key    ed25519.PrivateKey
	plane  *controlplanetest.Plane
	origin string

	role              string
	agent, credential string
}

func newRuntime(t *testing.T, opts controlplanetest.Options) *runtime {
	t.Helper()
	return newRuntimeOf(t, "WORKER", opts)
}

func newRuntimeOf(t *testing.T, role string, opts controlplanetest.Options) *runtime {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(nil)
	r := &runtime{t: t, key: key, role: role}
	opts.Transport = controlplanetest.Direct{Handler: r}
	r.plane = controlplanetest.New(opts)
	origin, err := r.plane.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.plane.Close)
	r.origin = origin
	id := r.plane.AddAgent(controlplanetest.AgentSpec{Role: role})
	link := "veyra-connect://127.0.0.1:1/connect/" + strings.Repeat("t", 48) + "?protocol=1"
	if _, err := r.plane.PairWith(t.Context(), link, controlplanetest.PairOptions{AgentID: id}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *runtime) sign(text string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(r.key, []byte(text)))
}

func (r *runtime) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		r.t.Error(err)
	}
	if strings.HasSuffix(req.URL.Path, "claim") {
		r.agent, r.credential = body["agent_id"].(string), body["runtime_credential"].(string)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"connected": true, "runtime_id": runtimeID, "agent_id": r.agent})
		return
	}
	access := "job-scoped-write"
	if r.role == "VERIFIER" {
		access = "read-only"
	}
	challenge := body["challenge"].(string)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"runtime_id": runtimeID, "challenge": challenge, "signature": r.sign("veyra-connect-v1:" + challenge + ":" + runtimeID),
		"public_key":      base64.RawURLEncoding.EncodeToString(r.key.Public().(ed25519.PublicKey)),
		"runtime_version": "1", "provider": "p", "model": "m", "provider_ready": true, "protocol_version": 1,
		"capabilities": map[string]any{
			"role": r.role, "coding": r.role == "WORKER", "verification": r.role == "VERIFIER", "testing": true, "git": true,
			"repository_access": access, "job_transport": "veyra-outbound-heartbeat-v1",
		},
	})
}

// post calls the plane and returns status, content type and body.
func (r *runtime) post(path string, body any, change func(*http.Request)) (int, string, map[string]any) {
	r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost,
		r.origin+controlplanetest.Prefix+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.credential)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Veyra-Agent-ID", r.agent)
	if change != nil {
		change(req)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	var got map[string]any
	_ = json.Unmarshal(text, &got)
	return res.StatusCode, res.Header.Get("Content-Type"), got
}

func (r *runtime) beat(change func(map[string]any)) (int, map[string]any) {
	r.t.Helper()
	body := map[string]any{
		"agent_id": r.agent, "health": "HEALTHY", "provider_ready": true, "provider": "p", "model": "m",
		"runtime_version": "1", "message": "",
	}
	if change != nil {
		change(body)
	}
	status, _, got := r.post("heartbeat/", body, nil)
	return status, got
}

func TestPlaneRefusesWhatTheProtocolForbids(t *testing.T) {
	r := newRuntime(t, controlplanetest.Options{Qualified: true})
	good := map[string]any{"agent_id": r.agent, "health": "HEALTHY", "provider_ready": true}
	for name, c := range map[string]struct {
		path   string
		body   any
		change func(*http.Request)
		status int
	}{
		"good":               {"heartbeat/", good, nil, 200},
		"no slash":           {"heartbeat", good, nil, 301},
		"unknown path":       {"other/", good, nil, 404},
		"wrong method":       {"heartbeat/", good, func(q *http.Request) { q.Method = "PUT" }, 405},
		"origin header":      {"heartbeat/", good, func(q *http.Request) { q.Header.Set("Origin", r.origin) }, 403},
		"cookie":             {"heartbeat/", good, func(q *http.Request) { q.Header.Set("Cookie", "a=b") }, 403},
		"no credential":      {"heartbeat/", good, func(q *http.Request) { q.Header.Del("Authorization") }, 401},
		"other agent header": {"heartbeat/", good, func(q *http.Request) { q.Header.Set("X-Veyra-Agent-ID", "x") }, 403},
		"other agent body":   {"heartbeat/", map[string]any{"agent_id": "x"}, nil, 403},
		"form":               {"heartbeat/", good, func(q *http.Request) { q.Header.Set("Content-Type", "text/plain") }, 415},
		"list":               {"heartbeat/", []any{}, nil, 400},
		"number as text":     {"heartbeat/", map[string]any{"agent_id": r.agent, "health": "HEALTHY", "provider_ready": true, "message": 1}, nil, 400},
		"ready as text":      {"heartbeat/", map[string]any{"agent_id": r.agent, "health": "HEALTHY", "provider_ready": "true"}, nil, 400},
		"nul":                {"heartbeat/", map[string]any{"agent_id": r.agent, "message": "\x00"}, nil, 500},
		"too large":          {"heartbeat/", map[string]any{"agent_id": r.agent, "message": strings.Repeat("x", 2_621_440)}, nil, 400},
		"bad id":             {"job/credential/", map[string]any{"agent_id": r.agent, "assignment_id": "7"}, nil, 500},
	} {
		if status, kind, got := r.post(c.path, c.body, c.change); status != c.status {
			t.Errorf("%s: %d %s %v, want %d", name, status, kind, got, c.status)
		}
	}
}

func TestUnhealthyBeatsAreStoredAndAnswered500(t *testing.T) {
	r := newRuntime(t, controlplanetest.Options{Qualified: true})
	r.plane.AddJob(controlplanetest.JobSpec{Owner: "o", Name: "n"})
	status, _ := r.beat(func(b map[string]any) { b["health"] = "UNHEALTHY" })
	view := r.plane.View()
	if status != 500 || view.Counts.Beats != 1 || view.Counts.Leases != 0 {
		t.Errorf("status %d, counts %+v", status, view.Counts)
	}
	if status, got := r.beat(nil); status != 200 || got["job_task"] == nil {
		t.Errorf("healthy again: %d %v", status, got)
	}
}

// failure is a FAILED result for the task of a beat, signed well.
func (r *runtime) failure(task map[string]any, message string) map[string]any {
	evidence := map[string]any{
		"outcome": "FAILED", "assignment_id": task["id"], "lease_id": task["lease_id"], "job_id": 1,
		"failure_stage": "runtime_infrastructure", "failure_code": "X", "failure_message": message,
		"provider": "p", "model": "m", "runtime_version": "1", "summary": "",
		"started_at": "2026-11-29T10:00:00Z", "completed_at": "2026-11-29T10:00:00Z",
	}
	text, err := canonjson.Marshal(evidence)
	if err != nil {
		r.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	hash := "0x" + hex.EncodeToString(sum[:])
	return map[string]any{
		"agent_id": r.agent, "assignment_id": task["id"], "lease_token": task["lease_token"], "evidence": evidence,
		"evidence_hash": hash, "signature": r.sign(fmt.Sprintf("veyra-job-result-v1:%s:%s:%s", task["id"], task["lease_id"], hash)),
	}
}

func (r *runtime) task() map[string]any {
	r.t.Helper()
	_, got := r.beat(nil)
	task, _ := got["job_task"].(map[string]any)
	return task
}

func TestResultsAreCheckedAndFailuresGivenOutAgain(t *testing.T) {
	r := newRuntime(t, controlplanetest.Options{Qualified: true, Attempts: 2})
	r.plane.AddJob(controlplanetest.JobSpec{Owner: "o", Name: "n"})
	task := r.task()
	for name, spoil := range map[string]func(map[string]any){
		"signature": func(b map[string]any) { b["signature"] = r.sign("something else") },
		"hash":      func(b map[string]any) { b["evidence_hash"] = "0x" + strings.Repeat("0", 64) },
		"evidence":  func(b map[string]any) { b["evidence"].(map[string]any)["model"] = "other" },
		"float":     func(b map[string]any) { b["evidence"].(map[string]any)["x"] = 1.5 },
		"token":     func(b map[string]any) { b["lease_token"] = "a.b" },
		"lease":     func(b map[string]any) { b["evidence"].(map[string]any)["lease_id"] = "x" },
	} {
		body := r.failure(task, "A sandbox was temporarily unavailable.")
		spoil(body)
		if status, _, got := r.post("job/result/", body, nil); status != 409 {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	result := r.failure(task, "A sandbox was temporarily unavailable.")
	for range 2 {
		if status, _, got := r.post("job/result/", result, nil); status != 200 {
			t.Errorf("result: %d %v", status, got)
		}
	}
	again := r.task()
	if again["id"] != task["id"] || again["lease_id"] == task["lease_id"] || again["delivery"].(map[string]any)["branch"] == task["delivery"].(map[string]any)["branch"] {
		t.Errorf("given out again as %v", again)
	}
	if status, _, _ := r.post("job/credential/", map[string]any{
		"agent_id": r.agent, "assignment_id": task["id"], "lease_token": task["lease_token"],
	}, nil); status != 409 {
		t.Errorf("credential with the old lease: %d", status)
	}
	if status, _, _ := r.post("job/result/", r.failure(again, "The change is bad."), nil); status != 200 {
		t.Errorf("second result: %d", status)
	}
	if view := r.plane.View(); r.task() != nil || view.Counts.FailedResults != 2 || view.Counts.Leases != 2 {
		t.Errorf("plane %+v", view)
	}
}

func TestFaultsLoseAnswersWithOrWithoutEffect(t *testing.T) {
	r := newRuntime(t, controlplanetest.Options{Qualified: true})
	beats := func() int { return r.plane.View().Counts.Beats }
	r.plane.FaultNext(controlplanetest.Heartbeat, controlplanetest.Fault{Status: 502, Body: "<html>"})
	if status, _ := r.beat(nil); status != 502 || beats() != 0 {
		t.Errorf("failed: %d, %d beats", status, beats())
	}
	r.plane.FaultNext(controlplanetest.Heartbeat, controlplanetest.Fault{Status: 502, Effect: true})
	if status, _ := r.beat(nil); status != 502 || beats() != 1 {
		t.Errorf("done, but lost: %d, %d beats", status, beats())
	}
	if status, _ := r.beat(nil); status != 200 || beats() != 2 {
		t.Errorf("no fault: %d, %d beats", status, beats())
	}
	r.plane.FaultNext(controlplanetest.Heartbeat, controlplanetest.Fault{Repeat: true})
	if status, got := r.beat(nil); status != 200 || beats() != 2 || got["agent_id"] != r.agent {
		t.Errorf("repeated: %d %v, %d beats", status, got, beats())
	}
}

func TestSecondFailedQualificationKillsTheAgent(t *testing.T) {
	r := newRuntime(t, controlplanetest.Options{})
	for range 2 {
		_, got := r.beat(nil)
		task, _ := got["qualification_task"].(map[string]any)
		if task == nil {
			t.Fatalf("beat %v", got)
		}
		status, _, _ := r.post("qualification/submit/", map[string]any{
			"agent_id": r.agent, "qualification_id": task["id"], "lease_token": task["lease_token"],
			"runtime_error": "The model declined the task.",
		}, nil)
		if status != 200 {
			t.Errorf("giving up: %d", status)
		}
	}
	if status := r.plane.View().Agents[0].Status; status != "DEAD" {
		t.Errorf("agent %s, want DEAD", status)
	}
}
