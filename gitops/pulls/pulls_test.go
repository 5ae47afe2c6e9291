package pulls_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	oldToken = "ghs_old_token_of_this_test"
	newToken = "ghs_new_token_of_this_test"
	branch   = "veyra/job-7-title-1"
)

// fixture is a host with acme/shop, its branch main and a pushed job branch.
type fixture struct {
	host   *githosttest.Host
	server *httptest.Server
	draft  pulls.Draft
	fresh  atomic.Int32
	slept  []time.Duration
	during func() // called in place of each sleep
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{host: githosttest.New(t.TempDir())}
	base := map[string]githosttest.File{"a": githosttest.Text(strings.Repeat("line\n", 20)), "b": githosttest.Text("b\n")}
	if _, err := f.host.CreateRepo("acme", "shop", base); err != nil {
		t.Fatal(err)
	}
	if _, err := f.host.Git("acme", "shop", "branch", branch, "main"); err != nil {
		t.Fatal(err)
	}
	now := map[string]githosttest.File{"c": base["a"], "b": githosttest.Text("changed\n")}
	id, err := f.host.Commit("acme", "shop", branch, now)
	if err != nil {
		t.Fatal(err)
	}
	f.draft = pulls.Draft{Branch: branch, Base: "main", Commit: gitops.ObjectID(id), Title: "Title", Body: "Body"}
	f.host.Grant("acme", "shop", oldToken, githosttest.Write)
	f.host.Grant("acme", "shop", newToken, githosttest.Write)
	f.server = httptest.NewServer(f.host)
	t.Cleanup(f.server.Close)
	return f
}

// changed is what the job branch changes: a is renamed to c, b modified.
var changed = []gitops.ChangedPath{
	{Path: "a", Status: gitops.PathDeleted}, {Path: "b", Status: gitops.PathModified}, {Path: "c", Status: gitops.PathAdded},
}

func (f *fixture) client(t *testing.T, change func(*pulls.Config)) *pulls.Client {
	t.Helper()
	cfg := pulls.Config{
		API: f.server.URL, Owner: "acme", Name: "shop", Transport: &http.Transport{}, UserAgent: "test",
		Token: func(_ context.Context, fresh bool) (protocol.RepoToken, error) {
			if fresh {
				f.fresh.Add(1)
				return newToken, nil
			}
			return oldToken, nil
		},
		Sleep: func(_ context.Context, d time.Duration) error {
			f.slept = append(f.slept, d)
			if f.during != nil {
				f.during()
			}
			return nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := pulls.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error = %v, want kind %v", err, kind)
	}
	if strings.Contains(err.Error(), oldToken) {
		t.Fatalf("error shows the token: %v", err)
	}
}

func (f *fixture) posts() (n int) {
	for _, r := range f.host.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

func TestOpenFirstPostsAtOnceAndOpensNoSecond(t *testing.T) {
	f := newFixture(t)
	c := f.client(t, nil)
	if none, err := c.None(t.Context(), f.draft); err != nil || !none {
		t.Fatalf("none: %t, error %v", none, err)
	}
	before := len(f.host.Requests())
	first, err := c.OpenFirst(t.Context(), f.draft)
	if err != nil || len(f.host.Requests())-before != 1 {
		t.Fatalf("error %v after %d requests", err, len(f.host.Requests())-before)
	}
	if none, err := c.None(t.Context(), f.draft); err != nil || none {
		t.Errorf("none beside number %d: %t, error %v", first.Number, none, err)
	}
	again, err := c.OpenFirst(t.Context(), f.draft)
	if err != nil || again.Number != first.Number {
		t.Errorf("number %d, then %d, error %v", first.Number, again.Number, err)
	}
}

func TestPullRequestIsOpenedOnceAndReadBack(t *testing.T) {
	f := newFixture(t)
	c := f.client(t, nil)
	var numbers []int64
	for range 2 {
		p, err := c.Open(t.Context(), f.draft)
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, p.Number)
	}
	if f.posts() != 1 || numbers[0] != numbers[1] {
		t.Errorf("%d posts for numbers %v", f.posts(), numbers)
	}
	p, files, err := c.Settle(t.Context(), numbers[0], f.draft, changed)
	if err != nil {
		t.Fatal(err)
	}
	if want := f.server.URL + "/acme/shop/pull/1"; p.URL != want {
		t.Errorf("URL = %q, want %q", p.URL, want)
	}
	if diff := cmp.Diff([]string{"b", "c"}, pulls.Names(files)); diff != "" {
		t.Error(diff)
	}
	if id, err := f.host.Git("acme", "shop", "rev-parse", "refs/pull/1/head"); err != nil || id != string(f.draft.Commit) {
		t.Errorf("refs/pull/1/head = %q, %v", id, err)
	}
}

// hit lets a fault take the nth request of a method.
func hit(method string, nth int, fault githosttest.Fault) func(*http.Request) githosttest.Fault {
	var mu sync.Mutex
	seen := 0
	return func(r *http.Request) githosttest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == method {
			if seen++; seen == nth || nth == 0 {
				return fault
			}
		}
		return githosttest.Pass()
	}
}

func TestLostAnswerOpensNoSecondPullRequest(t *testing.T) {
	for name, fault := range map[string]githosttest.Fault{"lost": githosttest.Lose(), "cut": githosttest.Cut(20), "failed": githosttest.Drop()} {
		f := newFixture(t)
		f.host.Fault = hit(http.MethodPost, 1, fault)
		c := f.client(t, nil)
		_, err := c.Open(t.Context(), f.draft)
		wantKind(t, err, pulls.ErrUnreachable)
		p, err := c.Open(t.Context(), f.draft)
		if err != nil || p.Number != 1 {
			t.Errorf("%s: number %d, %v", name, p.Number, err)
		}
		if list, err := f.host.Git("acme", "shop", "for-each-ref", "refs/pull"); err != nil || strings.Count(list, "\n") != 0 {
			t.Errorf("%s: pull requests %q, %v", name, list, err)
		}
	}
}

// The three meanings of 422.
func TestUnprocessableIsLookedUpWaitedForOrRefused(t *testing.T) {
	f := newFixture(t)
	c := f.client(t, nil)
	if _, err := c.Open(t.Context(), f.draft); err != nil {
		t.Fatal(err)
	}
	// It exists, but the first look does not see it.
	f.host.Fault = hit(http.MethodGet, 1, githosttest.Status(200, "[]"))
	if p, err := c.Open(t.Context(), f.draft); err != nil || p.Number != 1 {
		t.Errorf("existing: number %d, %v", p.Number, err)
	}
	// The host does not see the branch yet.
	f = newFixture(t)
	draft := f.draft
	draft.Branch = "late"
	f.during = func() {
		if len(f.slept) == 3 {
			if _, err := f.host.Git("acme", "shop", "branch", "late", branch); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := f.client(t, nil).Open(t.Context(), draft); err != nil || len(f.slept) != 3 {
		t.Errorf("late branch: %v after %d sleeps", err, len(f.slept))
	}
	// It never comes: a minute, then the end.
	f = newFixture(t)
	draft.Branch = "never"
	_, err := f.client(t, nil).Open(t.Context(), draft)
	wantKind(t, err, pulls.ErrRefused)
	total := time.Duration(0)
	for _, d := range f.slept {
		total += d
	}
	if total != time.Minute {
		t.Errorf("waited %v", total)
	}
	// Nothing between the two.
	f = newFixture(t)
	if _, err := f.host.Git("acme", "shop", "branch", "same", "main"); err != nil {
		t.Fatal(err)
	}
	draft.Branch = "same"
	_, err = f.client(t, nil).Open(t.Context(), draft)
	wantKind(t, err, pulls.ErrRefused)
	if len(f.slept) != 0 {
		t.Errorf("waited %v", f.slept)
	}
}

func TestPullRequestThatIsNotOursIsNoMatch(t *testing.T) {
	f := newFixture(t)
	if _, err := f.client(t, nil).Open(t.Context(), f.draft); err != nil {
		t.Fatal(err)
	}
	other := f.draft
	other.Base = "release"
	_, err := f.client(t, nil).Open(t.Context(), other)
	wantKind(t, err, pulls.ErrMismatch)
}

// A fork's branch of the same name is not ours.
func TestForeignHeadIsNotFound(t *testing.T) {
	f := newFixture(t)
	fork := fmt.Sprintf(`[{"number":9,"html_url":"x","state":"open","head":{"ref":%q,"sha":%q,"repo":{"full_name":"evil/shop"}},"base":{"ref":"main"}}]`,
		branch, f.draft.Commit)
	f.host.Fault = hit(http.MethodGet, 1, githosttest.Status(200, fork))
	if p, err := f.client(t, nil).Open(t.Context(), f.draft); err != nil || p.Number != 1 {
		t.Errorf("number %d, %v", p.Number, err)
	}
}

func TestLaggingHostIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	f.host.Lag = 3
	c := f.client(t, nil)
	p, err := c.Open(t.Context(), f.draft)
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err = c.Settle(t.Context(), p.Number, f.draft, changed); err != nil || p.Commit != string(f.draft.Commit) {
		t.Errorf("commit %q, %v", p.Commit, err)
	}
	if len(f.slept) != 3 {
		t.Errorf("slept %v", f.slept)
	}
}

// A host's reading half may not know yet what its writing half has just said.
func TestPullRequestNotThereYetIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	c := f.client(t, nil)
	p, err := c.Open(t.Context(), f.draft)
	if err != nil {
		t.Fatal(err)
	}
	f.host.Fault = hit(http.MethodGet, 0, githosttest.Status(404, `{"message":"Not Found"}`))
	f.during = func() { f.host.Fault = nil }
	if _, _, err := c.Settle(t.Context(), p.Number, f.draft, changed); err != nil || len(f.slept) != 1 {
		t.Errorf("slept %v, %v", f.slept, err)
	}
}

func TestWhatNeverMatchesEndsAfterAMinute(t *testing.T) {
	spoil := map[string]func(*fixture, *pulls.Draft) []gitops.ChangedPath{
		"head moved": func(f *fixture, d *pulls.Draft) []gitops.ChangedPath {
			if _, err := f.host.Commit("acme", "shop", branch, map[string]githosttest.File{"x": githosttest.Text("x")}); err != nil {
				panic(err)
			}
			return changed
		},
		"closed": func(f *fixture, _ *pulls.Draft) []gitops.ChangedPath {
			f.host.ClosePull("acme", "shop", 1)
			return changed
		},
		"file missing": func(*fixture, *pulls.Draft) []gitops.ChangedPath {
			return append(changed[:3:3], gitops.ChangedPath{Path: "z", Status: gitops.PathDeleted})
		},
		"file foreign": func(*fixture, *pulls.Draft) []gitops.ChangedPath { return changed[:2] },
	}
	for name, do := range spoil {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			c := f.client(t, nil)
			p, err := c.Open(t.Context(), f.draft)
			if err != nil {
				t.Fatal(err)
			}
			want := do(f, &f.draft)
			_, _, err = c.Settle(t.Context(), p.Number, f.draft, want)
			wantKind(t, err, pulls.ErrMismatch)
			if len(f.slept) == 0 {
				t.Error("it was not tried again")
			}
		})
	}
}

// Attack case F12 and the REST half of F08.
func TestRefusalsAndRedirects(t *testing.T) {
	foreign := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the foreign host was asked") }))
	defer foreign.Close()
	cases := map[string]struct {
		fault func(*http.Request) githosttest.Fault
		kind  error
	}{
		"401 once":          {hit(http.MethodGet, 1, githosttest.Status(401, "")), nil},
		"401 for good":      {hit(http.MethodGet, 0, githosttest.Status(401, "")), pulls.ErrRefused},
		"404 for good":      {hit(http.MethodGet, 0, githosttest.Status(404, "")), pulls.ErrRefused},
		"rate limit":        {hit(http.MethodGet, 0, githosttest.Status(403, "", "Retry-After", "5")), pulls.ErrUnreachable},
		"spent limit":       {hit(http.MethodGet, 0, githosttest.Status(403, "", "X-RateLimit-Remaining", "0")), pulls.ErrUnreachable},
		"bad gateway":       {hit(http.MethodGet, 0, githosttest.Status(502, "")), pulls.ErrUnreachable},
		"no JSON":           {hit(http.MethodGet, 0, githosttest.Status(200, "<html>")), pulls.ErrUnreachable},
		"renamed in case":   {hit(http.MethodGet, 1, githosttest.Redirect(301, "/repos/Acme/SHOP/pulls")), nil},
		"moved by number":   {hit(http.MethodGet, 1, githosttest.Redirect(301, "/repositories/17/pulls")), pulls.ErrMoved},
		"moved to a name":   {hit(http.MethodGet, 1, githosttest.Redirect(301, "/repos/acme/store/pulls")), pulls.ErrMoved},
		"moved to an owner": {hit(http.MethodGet, 1, githosttest.Redirect(301, "/repos/globex/shop/pulls")), pulls.ErrMoved},
		"moved to a host":   {hit(http.MethodGet, 1, githosttest.Redirect(302, foreign.URL+"/repos/acme/shop/pulls")), pulls.ErrMoved},
		"another scheme":    {hit(http.MethodGet, 1, githosttest.Redirect(302, "https://127.0.0.1/repos/acme/shop/pulls")), pulls.ErrUnreachable},
		"second hop":        {hit(http.MethodGet, 0, githosttest.Redirect(301, "/repos/Acme/shop/pulls")), pulls.ErrMoved},
		"redirected post":   {hit(http.MethodPost, 1, githosttest.Redirect(307, foreign.URL+"/repos/acme/shop/pulls")), pulls.ErrUnreachable},
		"bare 422 once":     {hit(http.MethodPost, 1, githosttest.Status(422, "")), nil},
		"bare 422 for good": {hit(http.MethodPost, 0, githosttest.Status(422, "")), pulls.ErrRefused},
		"422 with a reason": {hit(http.MethodPost, 1, githosttest.Status(422,
			`{"errors":[{"resource":"PullRequest","code":"custom","message":"No commits between main and x"}]}`)), pulls.ErrRefused},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.host.Fault = c.fault
			_, err := f.client(t, nil).Open(t.Context(), f.draft)
			if c.kind == nil && err != nil {
				t.Errorf("error = %v", err)
			}
			if c.kind != nil {
				wantKind(t, err, c.kind)
			}
			if f.fresh.Load() > 1 {
				t.Errorf("%d fresh credentials", f.fresh.Load())
			}
		})
	}
}

func TestFilesAreReadPageByPage(t *testing.T) {
	f := newFixture(t)
	files := map[string]githosttest.File{}
	var want []gitops.ChangedPath
	for i := range 250 {
		name := fmt.Sprintf("f%03d", i)
		files[name] = githosttest.Text(name)
		want = append(want, gitops.ChangedPath{Path: name, Status: gitops.PathAdded})
	}
	want = append(want, gitops.ChangedPath{Path: "a", Status: gitops.PathDeleted}, gitops.ChangedPath{Path: "b", Status: gitops.PathDeleted})
	id, err := f.host.Commit("acme", "shop", branch, files)
	if err != nil {
		t.Fatal(err)
	}
	f.draft.Commit = gitops.ObjectID(id)
	c := f.client(t, nil)
	p, err := c.Open(t.Context(), f.draft)
	if err != nil {
		t.Fatal(err)
	}
	if _, list, err := c.Settle(t.Context(), p.Number, f.draft, want); err != nil || len(list) != 252 {
		t.Errorf("%d files, %v", len(list), err)
	}
}

func TestHostWithoutPreviousNames(t *testing.T) {
	f := newFixture(t)
	f.host.NoPreviousName = true
	c := f.client(t, nil)
	p, err := c.Open(t.Context(), f.draft)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Settle(t.Context(), p.Number, f.draft, changed); err != nil {
		t.Error(err)
	}
}
