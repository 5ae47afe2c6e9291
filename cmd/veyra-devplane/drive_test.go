package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// A token opens one repository, for what it was given for, until its time.
func TestTokensOpenOneRepositoryUntilTheirTime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	w := serveWorld(t, worldOptions{})
	w.passes.now = func() time.Time { return now }
	for _, name := range []string{"one", "two"} {
		git(t, w, "octo", name, map[string]githosttest.File{"a": githosttest.Text("1\n")})
	}
	write, ends := w.passes.issue("octo/one")
	read, _ := w.passes.grant("octo", "one", githosttest.Read)
	probe := func(token, repository, service string) int {
		status, _ := ask(t, "GET", withToken(w.origin, token, repository+".git/info/refs?service="+service), "")
		return status
	}
	for _, c := range []struct {
		token, repository, service string
		want                       int
	}{
		{write, "octo/one", "git-receive-pack", http.StatusOK},
		{read, "octo/one", "git-upload-pack", http.StatusOK},
		{read, "octo/one", "git-receive-pack", http.StatusForbidden},
		{write, "octo/two", "git-upload-pack", http.StatusNotFound},
		{"made-up", "octo/one", "git-upload-pack", http.StatusNotFound},
	} {
		if got := probe(c.token, c.repository, c.service); got != c.want {
			t.Errorf("%s of %s: %d, want %d", c.service, c.repository, got, c.want)
		}
	}
	now = ends.Add(-time.Second)
	if got := probe(write, "octo/one", "git-receive-pack"); got != http.StatusOK {
		t.Errorf("a second before its end: %d", got)
	}
	now = ends
	if got := probe(write, "octo/one", "git-receive-pack"); got != http.StatusNotFound {
		t.Errorf("at its end: %d", got)
	}
	if status, _ := ask(t, "GET", w.origin+restRoot+"/repos/octo/one/pulls", "", "Authorization", "Bearer "+write); status != http.StatusNotFound {
		t.Errorf("REST after its end: %d", status)
	}
}

// Pages and names that were bent to point here get nothing.
func TestOnlyLocalScriptsDrive(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	for _, c := range []struct{ header, value string }{
		{"Origin", "http://evil.example"}, {"Host", "evil.example"}, {"Host", "evil.example:80"}, {"Host", "192.0.2.1"},
	} {
		if status, _ := ask(t, "POST", w.origin+"/devplane/jobs", "", c.header, c.value); status != http.StatusForbidden {
			t.Errorf("%s: %s was answered %d", c.header, c.value, status)
		}
	}
	if got := len(w.plane.View().Jobs); got != 0 {
		t.Errorf("%d jobs were placed", got)
	}
	for _, host := range []string{"localhost", "127.0.0.1:1", "[::1]:1"} {
		if status, _ := ask(t, "GET", w.origin+"/devplane/state", "", "Host", host); status != http.StatusOK {
			t.Errorf("host %s was answered %d", host, status)
		}
	}
}

func TestListeningIsForLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:0", ":0", "example.org:80", "127.0.0.1"} {
		listener, err := listenLoopback(address)
		if err == nil {
			listener.Close()
		}
		if !errors.Is(err, errUsage) {
			t.Errorf("--listen %s: %v", address, err)
		}
	}
	listener, err := listenLoopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
}

func TestOrdersThatAreRefused(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	for _, body := range []string{
		`{`, `[]`, `{"titel":"x"}`, `{"files":{"../a":"x"}}`, `{"files":{".git/config":"x"}}`, `{"files":{"a//b":"x"}}`,
		`{"files":{"a":7}}`, `{"owner":"..","files":{"a":"x"}}`, `{"name":"a/b"}`, `{"name":"a..b"}`,
		`{"commands":["pytest"],"detected":true}`, `{"fail_criterion":5}`, `{"fail_criterion":-1}`,
	} {
		if status, text := ask(t, "POST", w.origin+"/devplane/jobs", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	for _, body := range []string{
		`{}`, `{"link":""}`, `x`, `{"link":"veyra-connect://127.0.0.1/connect/x","role":"OWNER"}`,
		`{"link":"veyra-connect://127.0.0.1/connect/x","role":"VERIFIER","agent_id":"a"}`,
	} {
		if status, _ := ask(t, "POST", w.origin+"/devplane/link", body); status != http.StatusBadRequest {
			t.Errorf("link %s: %d", body, status)
		}
	}
	if status, text := ask(t, "POST", w.origin+"/devplane/link", `{"link":"https://127.0.0.1/connect/x"}`); status != http.StatusBadGateway {
		t.Errorf("a link of another kind: %d %s", status, text)
	}
}

// An order becomes the repository and the task that it describes.
func TestOrderBecomesRepositoryAndTask(t *testing.T) {
	w := serveWorld(t, worldOptions{Qualified: true})
	body := `{"owner":"acme","name":"tool","title":"Do it","files":{"a.txt":"text\n","run.sh":{"content":"#!/bin/sh\n","exec":true},"l":{"link":"a.txt"}},
		"commands":["pytest -q"],"forbidden_paths":["docs/*"],"minutes":5,"repairs":2,"criteria":["works"],"steps":[{"finish":"ok"}]}`
	if status, text := ask(t, "POST", w.origin+"/devplane/jobs", body); status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	tree, err := w.git.Git("acme", "tool", "ls-tree", "-r", "--format=%(objectmode) %(path)", "main")
	if err != nil {
		t.Fatal(err)
	}
	if want := "100644 a.txt\n120000 l\n100755 run.sh"; tree != want {
		t.Errorf("tree\n%s\nwant\n%s", tree, want)
	}
	r := newHandRuntime(t)
	if _, err := w.plane.Pair(t.Context(), r.link()); err != nil {
		t.Fatal(err)
	}
	if task := r.beat(w.origin); task.Repository.FullName != "acme/tool" || !strings.HasPrefix(task.Delivery.Branch, "veyra/job-1-do-it") {
		t.Errorf("task %+v", task)
	}
}

// A job that has to find its commands brings none.
func TestDetectedSampleHasNoCommands(t *testing.T) {
	if got := (order{Detected: true}).withSample(); len(got.Commands) != 0 || len(got.Files) == 0 {
		t.Errorf("commands %q, %d files", got.Commands, len(got.Files))
	}
	if got := (order{Title: "Mine", Repairs: 3}).withSample(); got.Title != "Mine" || got.Repairs != 3 || len(got.Steps) != len(sampleSteps()) {
		t.Errorf("order %+v", got)
	}
}

// The model knows jobs by their titles, also where one holds another.
func TestModelFollowsTheScriptOfItsJob(t *testing.T) {
	s := newScripts()
	step := func(text string) []providertest.Step { return []providertest.Step{{Shell: text}} }
	if first, second := s.add("Fix", step("one"), step("again")), s.add("Fix", step("two"), nil); first != "Fix" || second != "Fix (2)" {
		t.Fatalf("titles %q and %q", first, second)
	}
	tools := []providertest.Tool{{Name: "bash", Parameters: map[string]bool{"command": true}}}
	for _, c := range []struct {
		user, want string
		turn       int
	}{
		{user: "task: Fix", want: "one"},
		{user: "task: Fix (2)", want: "two"},
		{user: "This is repair 1. task: Fix", want: "again"},
		{user: "This is repair 1. task: Fix (2)", want: "two"},
		{user: "task: Fix", turn: 1, want: ""},
	} {
		got := s.decide(providertest.Conversation{User: c.user, Turn: c.turn, Tools: tools})
		if got.Shell != c.want || c.want == "" && got.Finish == "" {
			t.Errorf("%q, turn %d: %+v", c.user, c.turn, got)
		}
	}
	s.add("something longer", step("wrong"), nil)
	if got := s.decide(providertest.Conversation{User: "title\nFix\nabout something longer", Tools: tools}); got.Shell != "one" {
		t.Errorf("a title on its own line: %+v", got)
	}
	if got := s.decide(providertest.Conversation{User: "nothing known", Tools: tools}); got.Text == "" {
		t.Errorf("a task without a script: %+v", got)
	}
	got := s.decide(providertest.Conversation{User: "replace " + qualificationFile})
	if !strings.Contains(got.Text, "VEYRA_AGENT_READY_V1") {
		t.Errorf("the qualification: %+v", got)
	}
}

func TestWaitAnswersWhatItWaitedFor(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	w.plane.AddAgent(controlplanetest.AgentSpec{})
	for _, c := range []struct {
		query string
		want  int
	}{
		{"for=paired&timeout=1ms", http.StatusGatewayTimeout},
		{"for=accepted&timeout=1ms", http.StatusGatewayTimeout},
		{"for=luck", http.StatusBadRequest},
		{"for=paired&timeout=never", http.StatusBadRequest},
		{"for=paired&timeout=100h", http.StatusBadRequest},
		{"for=done&job=x", http.StatusBadRequest},
	} {
		if status, text := ask(t, "GET", w.origin+"/devplane/wait?"+c.query, ""); status != c.want {
			t.Errorf("%s: %d %s", c.query, status, text)
		}
	}
}

func TestViewsAreJudged(t *testing.T) {
	jobs := func(statuses ...string) controlplanetest.View {
		var v controlplanetest.View
		for i, s := range statuses {
			v.Jobs = append(v.Jobs, controlplanetest.JobView{JobID: int64(i + 1), Status: s})
		}
		return v
	}
	for _, c := range []struct {
		view     controlplanetest.View
		job      int64
		accepted bool
		want     outcome
	}{
		{jobs(), 0, true, waiting},
		{jobs("LEASED"), 0, true, waiting},
		{jobs("ACCEPTED"), 0, true, reached},
		{jobs("ACCEPTED", "QUEUED"), 0, true, waiting},
		{jobs("ACCEPTED", "QUEUED"), 1, true, reached},
		{jobs("FAILED"), 0, true, hopeless},
		{jobs("FAILED"), 0, false, reached},
		{jobs("ACCEPTED"), 2, true, waiting},
	} {
		if got := jobsAre(c.view, c.job, c.accepted); got != c.want {
			t.Errorf("%+v, job %d: %v, want %v", c.view.Jobs, c.job, got, c.want)
		}
	}
	dead := controlplanetest.View{Agents: []controlplanetest.AgentView{{Status: "DEAD"}}}
	if got := agentsAre("", "ACTIVE")(dead); got != hopeless {
		t.Errorf("a dead agent: %v", got)
	}
	two := controlplanetest.View{Agents: []controlplanetest.AgentView{{ID: "a", Status: "DEAD"}, {ID: "b", Status: "ACTIVE"}}}
	for id, want := range map[string]outcome{"": reached, "a": hopeless, "b": reached, "c": waiting} {
		if got := agentsAre(id, "ACTIVE")(two); got != want {
			t.Errorf("agent %q of two: %v, want %v", id, got, want)
		}
	}
}

// Each step of a job is told once.
func TestNewsTellsEachStepOnce(t *testing.T) {
	beat := map[string]any{"health": "HEALTHY"}
	agent := controlplanetest.AgentView{ID: "a", Status: "ACTIVE", LastBeat: beat}
	job := controlplanetest.JobView{JobID: 1, Status: "LEASED", LeaseID: "l", Attempt: 1}
	views := []controlplanetest.View{
		{Agents: []controlplanetest.AgentView{{ID: "a", Status: "PENDING"}}},
		{Agents: []controlplanetest.AgentView{{ID: "a", Status: "CONNECTED"}}},
		{Agents: []controlplanetest.AgentView{{ID: "a", Status: "CONNECTED", LastBeat: beat, Qualifications: []controlplanetest.QualificationView{{Status: "PENDING"}}}}},
		{Agents: []controlplanetest.AgentView{{ID: "a", Status: "ACTIVE", LastBeat: beat, Qualifications: []controlplanetest.QualificationView{{Status: "PASSED", Attempt: 1}}}}},
		{Agents: []controlplanetest.AgentView{agent}, Jobs: []controlplanetest.JobView{{JobID: 1, Status: "QUEUED"}}},
		{Agents: []controlplanetest.AgentView{agent}, Jobs: []controlplanetest.JobView{job}},
	}
	with := func(change func(*controlplanetest.JobView)) {
		change(&job)
		views = append(views, controlplanetest.View{Agents: views[4].Agents, Jobs: []controlplanetest.JobView{job}})
	}
	with(func(j *controlplanetest.JobView) { j.Phases = []string{"PUSHING_BRANCH"} })
	with(func(j *controlplanetest.JobView) { j.Refusal = "not yet" })
	with(func(j *controlplanetest.JobView) { j.Hash, j.Evidence = "0x1", map[string]any{"outcome": "FAILED"} })
	with(func(j *controlplanetest.JobView) { j.LeaseID, j.Phases = "m", []string{"PUSHING_BRANCH"} })
	with(func(j *controlplanetest.JobView) {
		j.Status, j.Hash, j.Evidence = "ACCEPTED", "0x2", map[string]any{"outcome": "SUCCEEDED"}
	})
	with(func(*controlplanetest.JobView) {})
	var got []string
	var last controlplanetest.View
	for _, v := range views {
		for _, e := range news(last, v) {
			got = append(got, e.Name)
		}
		last = v
	}
	want := []string{
		"paired", "first_beat", "qualification_passed", "active", "job_placed", "job_delivered", "job_phase",
		"result_refused", "result_failed", "job_delivered", "job_phase", "result_accepted",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// serve tells its addresses first and takes its temporary directory away.
func TestServeTellsAndCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serve(ctx, serveOptions{listen: "127.0.0.1:0", model: "scripted", json: true}, writer)
		writer.Close()
		served <- err
	}()
	lines := bufio.NewScanner(reader)
	if !lines.Scan() {
		t.Fatal("nothing was told")
	}
	var told map[string]any
	if err := json.Unmarshal(lines.Bytes(), &told); err != nil || told["event"] != "listening" {
		t.Fatalf("first line %s: %v", lines.Bytes(), err)
	}
	status, text := ask(t, "GET", told["control_plane"].(string)+"/devplane/state", "")
	if status != http.StatusOK || !strings.Contains(text, told["dir"].(string)) {
		t.Errorf("state: %d %s", status, text)
	}
	status, text = ask(t, "GET", told["model"].(string)+"/models", "")
	if status != http.StatusOK || !strings.Contains(text, "scripted") {
		t.Errorf("models: %d %s", status, text)
	}
	stop()
	for lines.Scan() {
		t.Logf("told after the end: %s", lines.Text())
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A directory that was named is made, is known by its whole name, and stays.
func TestNamedDirectoryIsWholeAndStays(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, done, err := openDir("new/repositories")
	if err != nil || !filepath.IsAbs(dir) {
		t.Fatalf("%q, %v", dir, err)
	}
	w := newWorld(worldOptions{Origin: "http://127.0.0.1:1", Dir: dir})
	if _, err := w.place(order{}); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("new/repositories/octo"); err != nil {
		t.Error(err)
	}
}

func TestLinesAreTextOrJSON(t *testing.T) {
	e := event{"job_placed", []field{{"job_id", int64(7)}}}
	var asText, asJSON bytes.Buffer
	newTeller(&asText, false).tell(e)
	newTeller(&asJSON, true).tell(e)
	if !strings.HasSuffix(asText.String(), "s  job_placed  job_id=7\n") {
		t.Errorf("text %q", asText.String())
	}
	var line map[string]any
	if err := json.Unmarshal(asJSON.Bytes(), &line); err != nil || line["event"] != "job_placed" || line["job_id"] != 7.0 {
		t.Errorf("JSON %q: %v", asJSON.String(), err)
	}
}

func TestWrongCommandsAreUsage(t *testing.T) {
	for _, args := range [][]string{{"serve", "--nope"}, {"serve", "more"}, {"serve", "--listen", "0.0.0.0:1"}} {
		cmd := rootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// What is no path of git and of nothing else is not found.
func TestUnknownPathsAreNotFound(t *testing.T) {
	w := newWorld(worldOptions{Origin: "http://127.0.0.1:1", Dir: t.TempDir()})
	for _, path := range []string{"/", "/repos/a/b/pulls", "/devplane/nothing", "/a/b"} {
		recorder := httptest.NewRecorder()
		w.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if recorder.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, recorder.Code)
		}
	}
}

func FuzzReadOrder(f *testing.F) {
	for _, seed := range []string{``, `{}`, `{"files":{"a":"b","c":{"content":"d","exec":true}}}`, `{"steps":[{"edit":{"path":"a","old":"","new":"b"}}]}`, `{"detected":true}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := readOrder(bytes.NewReader(body))
		if err != nil {
			return
		}
		for path := range o.Files {
			if !filepath.IsLocal(path) || path != filepath.Clean(path) {
				t.Errorf("path %q was taken", path)
			}
		}
		if spec := o.withSample().spec(); len(o.Commands) > 0 && len(spec.RequiredCommands) != len(o.Commands) {
			t.Errorf("commands %q became %q", o.Commands, spec.RequiredCommands)
		}
	})
}
