package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
)

// serveWorld serves a world over real HTTP, as serve does.
func serveWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("not applicable: git is missing")
	}
	server := httptest.NewUnstartedServer(nil)
	o.Origin, o.Dir, o.Model = "http://"+server.Listener.Addr().String(), t.TempDir(), "scripted"
	w := newWorld(o)
	server.Config.Handler = w
	server.Start()
	t.Cleanup(server.Close)
	return w
}

// ask makes a request and returns its status and its answer.
func ask(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// gitRun runs git as a client without settings of this machine.
func gitRun(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = githosttest.Environ()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := gitRun(dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// withToken puts a token into a clone address.
func withToken(origin, token, path string) string {
	return strings.Replace(origin, "http://", "http://x-access-token:"+token+"@", 1) + "/" + path
}

// A runtime that does by hand what a real one does gets a job through: pairing,
// credential, push, pull request, result.
func TestJobGoesFromLinkToAcceptedResult(t *testing.T) {
	w := serveWorld(t, worldOptions{Qualified: true})
	r := newHandRuntime(t)
	if status, text := ask(t, "POST", w.origin+"/devplane/link", `{"link":"`+r.link()+`"}`); status != http.StatusOK {
		t.Fatalf("pairing: %d %s", status, text)
	}
	if status, text := ask(t, "POST", w.origin+"/devplane/jobs", ""); status != http.StatusCreated || text != "{\"job_id\":1}\n" {
		t.Fatalf("placing the sample: %d %s", status, text)
	}
	url := r.work(w)
	status, text := ask(t, "GET", w.origin+"/devplane/wait?for=accepted&timeout=5s", "")
	var state planeState
	if err := json.Unmarshal([]byte(text), &state); err != nil || status != http.StatusOK {
		t.Fatalf("waiting: %d %v %s", status, err, text)
	}
	if got := state.Jobs[0]; got.Status != "ACCEPTED" || got.PullRequest != url || got.Evidence["outcome"] != "SUCCEEDED" {
		t.Errorf("state of the job: %+v", got)
	}
}

// work does the sample job of the next beat and returns its pull request.
func (r *handRuntime) work(w *world) string {
	t := r.t
	t.Helper()
	task := r.beat(w.origin)
	token := r.credential(w.origin, task)
	clone := filepath.Join(t.TempDir(), "clone")
	mustGit(t, "/", "clone", "-q", withToken(w.origin, token, task.Repository.FullName+".git"), clone)
	playSample(t, clone)
	mustGit(t, clone, "add", "--all")
	mustGit(t, clone, "commit", "-qm", "change")
	mustGit(t, clone, "push", "-q", "origin", "HEAD:refs/heads/"+task.Delivery.Branch)
	number, url := r.openPull(w.origin, token, task)
	r.submit(w.origin, task, map[string]any{
		"base_commit_sha": mustGit(t, clone, "rev-parse", "HEAD~1"), "commit_sha": mustGit(t, clone, "rev-parse", "HEAD"),
		"pull_request_number": number, "pull_request_url": url,
		"changed_files": []any{"calc/legacy.py", "calc/ops.py", "calc/scale.py", "scripts/show.sh"},
	})
	return url
}

// The control plane reads head, branches and every page of files from the real
// repository.
func TestControlPlaneReadsTheRealPullRequest(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	git(t, w, "octo", "many", manyFiles(0))
	head := side(t, w, "octo", "many", manyFiles(230))
	token, _ := w.passes.issue("octo/many")
	status, text := ask(t, "POST", w.origin+restRoot+"/repos/octo/many/pulls",
		`{"title":"t","head":"side","base":"main","body":"b"}`, "Authorization", "Bearer "+token)
	if status != http.StatusCreated {
		t.Fatalf("opening: %d %s", status, text)
	}
	got, err := pullReader{w.git, w.passes}.PullRequest(t.Context(), "octo/many", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got.HeadSHA != head || got.State != "open" || got.HeadRef != "side" || got.BaseRef != "main" ||
		got.HTMLURL != w.origin+"/octo/many/pull/1" {
		t.Errorf("pull request %+v", got)
	}
	if len(got.Files) != 230 {
		t.Errorf("%d files over three pages, want 230", len(got.Files))
	}
}

// The list of files tells renames as GitHub does, a page at a time.
func TestFilesTellRenamesOfTheRealRepository(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	body := strings.Repeat("a line that stays\n", 40)
	git(t, w, "octo", "moved", map[string]githosttest.File{"old.txt": githosttest.Text(body), "gone.txt": githosttest.Text("x\n")})
	side(t, w, "octo", "moved", map[string]githosttest.File{"new.txt": githosttest.Text(body), "add.txt": githosttest.Text("y\n")})
	token, _ := w.passes.issue("octo/moved")
	root := w.origin + restRoot + "/repos/octo/moved/pulls"
	if status, text := ask(t, "POST", root, `{"title":"t","head":"side","base":"main"}`, "Authorization", "Bearer "+token); status != http.StatusCreated {
		t.Fatalf("opening: %d %s", status, text)
	}
	var all []map[string]string
	for _, page := range []string{"1", "2", "3"} {
		_, text := ask(t, "GET", root+"/1/files?per_page=2&page="+page, "", "Authorization", "Bearer "+token)
		var some []map[string]string
		if err := json.Unmarshal([]byte(text), &some); err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	want := []map[string]string{
		{"filename": "add.txt", "status": "added"},
		{"filename": "gone.txt", "status": "removed"},
		{"filename": "new.txt", "status": "renamed", "previous_filename": "old.txt"},
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
}

// A second pull request for the same branches, one without commits and one for
// a branch that is not there are each a 422 that says so.
func TestPullRequestsThatCannotBeOpened(t *testing.T) {
	w := serveWorld(t, worldOptions{})
	git(t, w, "octo", "calc", map[string]githosttest.File{"a": githosttest.Text("1\n")})
	side(t, w, "octo", "calc", map[string]githosttest.File{"a": githosttest.Text("2\n")})
	mustGit(t, "/", "--git-dir="+w.git.Bare("octo", "calc"), "branch", "same", "main")
	token, _ := w.passes.issue("octo/calc")
	for _, c := range []struct {
		head   string
		status int
		say    string
	}{
		{"side", http.StatusCreated, `"number":1`},
		{"side", http.StatusUnprocessableEntity, "already exists"},
		{"same", http.StatusUnprocessableEntity, "No commits between"},
		{"none", http.StatusUnprocessableEntity, `"field":"head"`},
	} {
		status, text := ask(t, "POST", w.origin+restRoot+"/repos/octo/calc/pulls",
			`{"title":"t","head":"`+c.head+`","base":"main"}`, "Authorization", "Bearer "+token)
		if status != c.status || !strings.Contains(text, c.say) {
			t.Errorf("head %s: %d %s, want %d with %q", c.head, status, text, c.status, c.say)
		}
	}
}

func git(t *testing.T, w *world, owner, name string, files map[string]githosttest.File) {
	t.Helper()
	if _, err := w.git.CreateRepo(owner, name, files); err != nil {
		t.Fatal(err)
	}
}

// side commits files on a branch that begins at main.
func side(t *testing.T, w *world, owner, name string, files map[string]githosttest.File) string {
	t.Helper()
	mustGit(t, "/", "--git-dir="+w.git.Bare(owner, name), "branch", "side", "main")
	head, err := w.git.Commit(owner, name, "side", files)
	if err != nil {
		t.Fatal(err)
	}
	return head
}

func manyFiles(n int) map[string]githosttest.File {
	files := map[string]githosttest.File{"first.txt": githosttest.Text("x\n")}
	for i := range n {
		files[fmt.Sprintf("dir/%d/%d.txt", i%7, i)] = githosttest.Text(fmt.Sprintln("text", i))
	}
	return files
}

// playSample carries the sample's steps out on a work tree.
func playSample(t *testing.T, dir string) {
	t.Helper()
	for _, s := range sampleSteps() {
		switch {
		case s.Shell != "" && !strings.Contains(s.Shell, "unittest"):
			cmd := exec.Command("sh", "-c", s.Shell)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v %s", s.Shell, err, out)
			}
		case s.Edit != nil:
			name := filepath.Join(dir, s.Edit.Path)
			old, _ := os.ReadFile(name)
			if s.Edit.Old != "" && bytes.Count(old, []byte(s.Edit.Old)) != 1 {
				t.Fatalf("%q occurs not once in %s", s.Edit.Old, s.Edit.Path)
			}
			text := strings.Replace(string(old), s.Edit.Old, s.Edit.New, 1)
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The sample's tests fail before the steps and pass after them.
func TestSampleStepsMakeItsTestsPass(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("not applicable: python3 is missing")
	}
	dir := t.TempDir()
	for name, f := range sampleTree() {
		mode := os.FileMode(0o644)
		if f.Exec {
			mode = 0o755
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.Content), mode); err != nil {
			t.Fatal(err)
		}
	}
	test := func() error {
		cmd := exec.Command("sh", "-c", sampleCommand)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		return cmd.Run()
	}
	if test() == nil {
		t.Error("the sample's tests pass before anything is done")
	}
	playSample(t, dir)
	if err := test(); err != nil {
		t.Errorf("the sample's tests after its steps: %v", err)
	}
}
