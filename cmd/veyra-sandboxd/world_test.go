package main_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

const restRoot = "/api/v3"

// world is everything that a daemon talks to, on one loopback origin: a control
// plane, a git host with its REST interface, and a scripted model.
type world struct {
	t      testing.TB
	origin string
	plane  *controlplanetest.Plane
	git    *githosttest.Host
	model  *providertest.Model
	key    string // the provider's
	tokens []string

	mu sync.Mutex
	// bodies are the request bodies that came in, by path.
	bodies map[string][]string
	// bearers are the credentials that the control plane was shown.
	bearers map[string]bool
	// before is called for each request, under no lock, before it is served.
	before func(http.ResponseWriter, *http.Request)
	steps  map[string]func(providertest.Conversation) providertest.Step // by job title
}

func newWorld(t testing.TB, qualified bool) *world {
	t.Helper()
	return newWorldBehind(t, qualified, func(next http.Handler) http.Handler { return next })
}

// newWorldBehind puts something between the daemon and everything it talks to.
func newWorldBehind(t testing.TB, qualified bool, wrap func(http.Handler) http.Handler) *world {
	t.Helper()
	w := &world{
		t: t, key: "sk-" + rand.Text(), bodies: map[string][]string{}, bearers: map[string]bool{},
		steps: map[string]func(providertest.Conversation) providertest.Step{}, git: githosttest.New(t.TempDir()),
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.origin = "http://" + listener.Addr().String()
	w.git.PublicURL = w.origin
	w.model = &providertest.Model{Key: w.key, Name: "scripted", Decide: w.decide}
	w.plane = controlplanetest.New(controlplanetest.Options{
		Origin: w.origin, GitHub: pullReader{w.git}, Qualified: qualified, RepoToken: w.token(githosttest.Write),
		ReadToken: w.token(githosttest.Read), Attempts: 1,
	})
	server := &http.Server{Handler: w.record(wrap(w.routes())), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return w
}

func (w *world) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(controlplanetest.Prefix, w.plane)
	mux.Handle(restRoot+"/", http.StripPrefix(restRoot, w.git))
	mux.Handle("/v1/", w.model)
	mux.Handle("/", w.git)
	return mux
}

// record keeps what arrives, so that a test can search and count it.
func (w *world) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, controlplanetest.Prefix) {
			body, _ := io.ReadAll(io.LimitReader(r.Body, 4<<20))
			r.Body = io.NopCloser(bytes.NewReader(body))
			w.mu.Lock()
			w.bodies[r.URL.Path] = append(w.bodies[r.URL.Path], string(body))
			w.bearers[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] = true
			w.mu.Unlock()
		}
		w.mu.Lock()
		before := w.before
		w.mu.Unlock()
		if before != nil {
			before(rw, r)
		}
		next.ServeHTTP(rw, r)
	})
}

// onRequest sets what happens before a request is served; it may end it with
// http.ErrAbortHandler.
func (w *world) onRequest(f func(http.ResponseWriter, *http.Request)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

// sent are the bodies that an endpoint was sent so far.
func (w *world) sent(e controlplanetest.Endpoint) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.bodies[controlplanetest.Prefix+string(e)+"/"]...)
}

// token issues credentials of one kind for a repository.
func (w *world) token(access githosttest.Access) func(string) (string, time.Time) {
	return func(repository string) (string, time.Time) {
		owner, name, _ := strings.Cut(repository, "/")
		token := "ghs_" + rand.Text() + rand.Text()
		w.git.Grant(owner, name, token, access)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.tokens = append(w.tokens, token)
		return token, time.Now().Add(time.Hour)
	}
}

// decide is the model: the qualification's answer, else the next step of the
// job whose title the prompt holds.
func (w *world) decide(c providertest.Conversation) providertest.Step {
	return providertest.Qualify("qualification/ready.txt", "VEYRA_AGENT_READY_V1\n", func(c providertest.Conversation) providertest.Step {
		w.mu.Lock()
		var best string
		for title := range w.steps {
			if strings.Contains(c.User, title) && len(title) > len(best) {
				best = title
			}
		}
		next := w.steps[best]
		w.mu.Unlock()
		if next == nil {
			return providertest.Step{Text: "There is no script for this."}
		}
		return next(c)
	})(c)
}

// project is a small Python repository whose one test fails.
func project() map[string]githosttest.File {
	return map[string]githosttest.File{
		"calc.py":            githosttest.Text("def add(a, b):\n    return a - b\n"),
		"old.py":             githosttest.Text("x = 1\n"),
		"run.sh":             githosttest.Text("#!/bin/sh\necho hi\n"),
		".gitignore":         githosttest.Text("__pycache__/\n"),
		"tests/__init__.py":  githosttest.Text(""),
		"tests/test_calc.py": githosttest.Text("import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"),
	}
}

// with returns the project with some files replaced or added.
func with(more map[string]string) map[string]githosttest.File {
	files := project()
	for name, text := range more {
		files[name] = githosttest.Text(text)
	}
	return files
}

// fix is the edit that makes the project's test pass.
func fix() providertest.Step {
	return providertest.Step{Edit: &providertest.Edit{Path: "calc.py", Old: "a - b", New: "a + b"}}
}

const unittest = "python -m unittest discover -s tests"

// job makes a repository, a script for the model and a funded job, and returns
// the job's number.
func (w *world) job(name, title string, files map[string]githosttest.File, change func(*controlplanetest.JobSpec), steps ...providertest.Step) int64 {
	w.t.Helper()
	if _, err := w.git.CreateRepo("acme", name, files); err != nil {
		w.t.Fatal(err)
	}
	w.script(title, providertest.Steps(steps...))
	spec := controlplanetest.JobSpec{
		Owner: "acme", Name: name, Private: true, Title: title, Description: "add(2, 3) must be 5",
		Criteria: []any{"add adds"}, RequiredCommands: []string{unittest}, RepairAttempts: 1,
	}
	if change != nil {
		change(&spec)
	}
	return w.plane.AddJob(spec)
}

func (w *world) script(title string, next func(providertest.Conversation) providertest.Step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps[title] = next
}

// patience bounds how long a test waits for what should happen: long enough for
// a busy machine, since nothing but a failing test ever waits that long.
const patience = 4 * time.Minute

// wait waits until cond holds of the control plane's view.
func (w *world) wait(what string, cond func(controlplanetest.View) bool) controlplanetest.View {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	view, err := w.plane.Wait(ctx, cond)
	if err != nil {
		w.t.Fatalf("waiting until %s: %v\n%s", what, err, pretty(view))
	}
	return view
}

// ended waits until a job has a result and returns it.
func (w *world) ended(id int64) controlplanetest.JobView {
	w.t.Helper()
	view := w.wait(fmt.Sprintf("job %d has its result", id), func(v controlplanetest.View) bool {
		j := jobOf(v, id)
		return j.Status == "ACCEPTED" || j.Status == "FAILED"
	})
	return jobOf(view, id)
}

// accepted waits until a job was accepted.
func (w *world) accepted(id int64) controlplanetest.JobView {
	w.t.Helper()
	j := w.ended(id)
	if j.Status != "ACCEPTED" {
		w.t.Fatalf("job %d ended %s: %s", id, j.Status, pretty(j))
	}
	return j
}

func jobOf(v controlplanetest.View, id int64) controlplanetest.JobView {
	for _, j := range v.Jobs {
		if j.JobID == id {
			return j
		}
	}
	return controlplanetest.JobView{}
}

func pretty(v any) string {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

// pulls counts the pull requests and the branches besides main of a repository.
func (w *world) pushed(name string) (pulls, branches int) {
	w.t.Helper()
	refs, err := w.git.Git("acme", name, "for-each-ref", "--format=%(refname)")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, ref := range strings.Fields(refs) {
		switch {
		case strings.HasPrefix(ref, "refs/pull/"):
			pulls++
		case ref != "refs/heads/main":
			branches++
		}
	}
	return pulls, branches
}

// pullReader lets the control plane read pull requests by the REST interface
// that runtimes use.
type pullReader struct{ git *githosttest.Host }

var _ controlplanetest.GitHub = pullReader{}

// PullRequest returns a pull request with its files.
func (p pullReader) PullRequest(_ context.Context, repository string, number int) (controlplanetest.PullRequest, error) {
	owner, name, _ := strings.Cut(repository, "/")
	token := "control-plane-" + rand.Text()
	p.git.Grant(owner, name, token, githosttest.Read)
	defer p.git.Grant(owner, name, token, githosttest.None)
	var pull struct {
		State      string
		HTMLURL    string `json:"html_url"`
		Head, Base struct{ Ref, SHA string }
	}
	var files []struct{ Filename string }
	root := fmt.Sprintf("/repos/%s/pulls/%d", repository, number)
	for path, into := range map[string]any{root: &pull, root + "/files?per_page=100": &files} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header = http.Header{"Authorization": {"Bearer " + token}, "User-Agent": {"control-plane"}}
		answer := httptest.NewRecorder()
		p.git.ServeHTTP(answer, r)
		if err := json.Unmarshal(answer.Body.Bytes(), into); err != nil || answer.Code != http.StatusOK {
			return controlplanetest.PullRequest{}, fmt.Errorf("status %d: %w", answer.Code, err)
		}
	}
	seen := controlplanetest.PullRequest{
		State: pull.State, HeadRef: pull.Head.Ref, HeadSHA: pull.Head.SHA, BaseRef: pull.Base.Ref, HTMLURL: pull.HTMLURL,
	}
	for _, f := range files {
		seen.Files = append(seen.Files, f.Filename)
	}
	return seen, nil
}

// keys are the names of a map, for messages.
func keys[V any](m map[string]V) []string {
	var all []string
	for name := range maps.Keys(m) {
		all = append(all, name)
	}
	return all
}
