package wire_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

const jobBranch = "veyra/job-7-title-1"

// made is a commit on top of the fixture's tip, as the worker builds it.
type made struct {
	id   gitops.ObjectID
	pack []byte
	gitops.CommitReply
}

func (f *fixture) makeCommit(t *testing.T, text string) made {
	t.Helper()
	var fetched, in, out, pack bytes.Buffer
	if err := f.remote(t, nil).FetchPack(t.Context(), f.tip, &fetched); err != nil {
		t.Fatal(err)
	}
	base, places := checkout(t, fetched.Bytes(), f.tip)
	if err := os.WriteFile(filepath.Join(places.Workspace, "src/a.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	req := gitops.CommitRequest{
		Parent: f.tip, Date: time.Unix(1_750_000_000, 0), Message: gitops.Message(7, "a title"),
		Changes: []gitops.Change{{Path: "src/a.py", Kind: gitops.ChangeWrite}, {Path: "bin/run", Kind: gitops.ChangeDelete}},
	}
	if err := gitops.WriteCommitRequest(&in, req); err != nil {
		t.Fatal(err)
	}
	w := gitops.NewReplyWriter(&out)
	if err := worker.Commit(&in, w, places, gitops.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	reply, err := gitops.ReadCommitReply(&out, &pack, gitops.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if err := gitops.CheckReply(base, req, reply); err != nil {
		t.Fatal(err)
	}
	return made{reply.Commit, pack.Bytes(), reply}
}

func (f *fixture) push(t *testing.T, r *wire.Remote, m made) error {
	t.Helper()
	return r.Push(t.Context(), jobBranch, m.id, bytes.NewReader(m.pack), int64(len(m.pack)))
}

// pushFrom pushes after a look at the branch as it is now, and between.
func (f *fixture) pushFrom(t *testing.T, r *wire.Remote, m made, between func()) error {
	t.Helper()
	seen, err := r.Preview(t.Context(), jobBranch)
	if err != nil {
		t.Fatal(err)
	}
	between()
	return r.PushFrom(t.Context(), seen, m.id, bytes.NewReader(m.pack), int64(len(m.pack)))
}

// tipOf gives a branch's commit, "" without the branch.
func (f *fixture) tipOf(branch string) gitops.ObjectID {
	id, err := f.host.Git("acme", "shop", "rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	if err != nil {
		return ""
	}
	return gitops.ObjectID(id)
}

func (f *fixture) posts(service string) (n int) {
	for _, r := range f.host.Requests() {
		if r.Method == http.MethodPost && strings.HasSuffix(r.Path, service) {
			n++
		}
	}
	return n
}

func TestPushMakesExactlyTheBranch(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	if err := f.push(t, f.remote(t, nil), m); err != nil {
		t.Fatal(err)
	}
	refs, err := f.host.Git("acme", "shop", "for-each-ref", "--format=%(refname) %(objectname)")
	if err != nil {
		t.Fatal(err)
	}
	want := "refs/heads/main " + string(f.tip) + "\nrefs/heads/" + jobBranch + " " + string(m.id)
	if diff := cmp.Diff(want, refs); diff != "" {
		t.Error(diff)
	}
	if out, err := f.host.Git("acme", "shop", "fsck", "--strict", "--full"); err != nil {
		t.Errorf("fsck: %v: %s", err, out)
	}
	log, err := f.host.Git("acme", "shop", "log", "-1", "--format=%an <%ae> %at %cn <%ce> %ct|%B", jobBranch)
	if err != nil {
		t.Fatal(err)
	}
	who := "Veyra Agent <agent@veyra.local> 1750000000"
	if diff := cmp.Diff(who+" "+who+"|Veyra job 7: a title\n", log); diff != "" {
		t.Error(diff)
	}
}

func TestSecondPushOfTheSameCommitSendsNothing(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	for range 2 {
		if err := f.push(t, f.remote(t, nil), m); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.posts("git-receive-pack"); n != 1 {
		t.Errorf("%d pushes were sent", n)
	}
}

// Each way in which the one request may fail, with and without effect.
func TestPushWithoutAnswerEndsInWhatTheBranchHolds(t *testing.T) {
	cases := map[string]struct {
		fault githosttest.Fault
		kind  error // nil: the branch is there
	}{
		"done, answer lost":    {githosttest.Lose(), nil},
		"done, answer cut":     {githosttest.Cut(9), nil},
		"failed, no answer":    {githosttest.Drop(), wire.ErrUnreachable},
		"failed, bad gateway":  {githosttest.Status(502, ""), wire.ErrUnreachable},
		"redirected":           {githosttest.Redirect(307, "/acme/shop.git/git-receive-pack"), wire.ErrUnreachable},
		"too long for the way": {githosttest.Status(413, ""), wire.ErrPushRefused},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			m := f.makeCommit(t, "print('b')\n")
			f.host.Fault = on(1, func(r *http.Request) bool {
				return isPost(r) && strings.HasSuffix(r.URL.Path, "receive-pack")
			}, c.fault)
			err := f.push(t, f.remote(t, nil), m)
			if c.kind == nil {
				if err != nil || f.tipOf(jobBranch) != m.id {
					t.Errorf("branch at %q, error %v", f.tipOf(jobBranch), err)
				}
				return
			}
			wantKind(t, err, c.kind)
			if at := f.tipOf(jobBranch); at != "" {
				t.Errorf("branch at %q", at)
			}
			if err := f.push(t, f.remote(t, nil), m); err != nil || f.tipOf(jobBranch) != m.id {
				t.Errorf("next try: branch at %q, error %v", f.tipOf(jobBranch), err)
			}
		})
	}
}

// A push that has looked before asks nothing again, and ends as any other where
// the branch has changed since, or the answer is missing.
func TestPushFromAPreview(t *testing.T) {
	f := newFixture(t)
	ours, theirs := f.makeCommit(t, "print('b')\n"), f.makeCommit(t, "print('c')\n")
	asked := 0
	if err := f.pushFrom(t, f.remote(t, nil), ours, func() { asked = len(f.host.Requests()) }); err != nil {
		t.Fatal(err)
	}
	if n := len(f.host.Requests()) - asked; n != 1 || f.tipOf(jobBranch) != ours.id {
		t.Errorf("%d requests after the look, branch at %q", n, f.tipOf(jobBranch))
	}
	if err := f.pushFrom(t, f.remote(t, nil), ours, func() {}); err != nil || f.posts("git-receive-pack") != 1 {
		t.Errorf("the same commit: error %v, %d pushes were sent", err, f.posts("git-receive-pack"))
	}
	wantKind(t, f.pushFrom(t, f.remote(t, nil), theirs, func() {}), wire.ErrDiverged)
}

func TestPushFromAnOldPreview(t *testing.T) {
	f := newFixture(t)
	ours, theirs := f.makeCommit(t, "print('b')\n"), f.makeCommit(t, "print('c')\n")
	push := func(m made) func() {
		return func() {
			if err := f.push(t, f.remote(t, nil), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantKind(t, f.pushFrom(t, f.remote(t, nil), ours, push(theirs)), wire.ErrDiverged)
	if f.tipOf(jobBranch) != theirs.id {
		t.Error("the branch moved")
	}
	f = newFixture(t)
	ours = f.makeCommit(t, "print('b')\n")
	if err := f.pushFrom(t, f.remote(t, nil), ours, push(ours)); err != nil {
		t.Errorf("the same commit: %v", err)
	}
	f = newFixture(t)
	ours = f.makeCommit(t, "print('b')\n")
	protect := func() { f.host.Protect("refs/heads/" + jobBranch) }
	wantKind(t, f.pushFrom(t, f.remote(t, nil), ours, protect), wire.ErrPushRefused)
}

func TestPushFromAPreviewThatLosesItsAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		fault githosttest.Fault
		kind  error
	}{
		"done, answer lost": {githosttest.Lose(), nil},
		"failed, no answer": {githosttest.Drop(), wire.ErrUnreachable},
	} {
		f := newFixture(t)
		m := f.makeCommit(t, "print('b')\n")
		f.host.Fault = on(1, isPost, c.fault)
		err := f.pushFrom(t, f.remote(t, nil), m, func() {})
		if c.kind == nil && (err != nil || f.tipOf(jobBranch) != m.id) {
			t.Errorf("%s: branch at %q, error %v", name, f.tipOf(jobBranch), err)
		}
		if c.kind != nil {
			wantKind(t, err, c.kind)
		}
	}
}

// Attack case F07.
func TestPushNeverMovesABranch(t *testing.T) {
	f := newFixture(t)
	ours, theirs := f.makeCommit(t, "print('b')\n"), f.makeCommit(t, "print('c')\n")
	if err := f.push(t, f.remote(t, nil), theirs); err != nil {
		t.Fatal(err)
	}
	wantKind(t, f.push(t, f.remote(t, nil), ours), wire.ErrDiverged)
	if f.tipOf(jobBranch) != theirs.id {
		t.Error("the branch moved")
	}
}

// The branch appears between our look and our push.
func TestPushThatLosesARaceSaysWhoWon(t *testing.T) {
	for name, same := range map[string]bool{"same commit": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			ours := f.makeCommit(t, "print('b')\n")
			first := ours
			if !same {
				first = f.makeCommit(t, "print('c')\n")
			}
			other := f.remote(t, nil)
			racing := false
			f.host.Fault = func(r *http.Request) githosttest.Fault {
				if isPost(r) && !racing {
					racing = true
					if err := f.push(t, other, first); err != nil {
						t.Error(err)
					}
				}
				return githosttest.Pass()
			}
			err := f.push(t, f.remote(t, nil), ours)
			if same && err != nil {
				t.Errorf("error = %v", err)
			}
			if !same {
				wantKind(t, err, wire.ErrDiverged)
			}
			if f.tipOf(jobBranch) != first.id {
				t.Error("the winner's branch moved")
			}
		})
	}
}

func TestRefusedPushIsFinal(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	f.host.Protect("refs/heads/" + jobBranch)
	err := f.push(t, f.remote(t, nil), m)
	wantKind(t, err, wire.ErrPushRefused)
	if strings.ContainsRune(err.Error(), 0x1b) {
		t.Error("error holds an escape sequence")
	}
	// A pack without its objects is refused by git itself.
	f = newFixture(t)
	m = f.makeCommit(t, "print('b')\n")
	m.id = gitops.ObjectID(strings.Repeat("2", 40))
	wantKind(t, f.push(t, f.remote(t, nil), m), wire.ErrPushRefused)
}

// Attack case F08: the credential ends between fetch and push.
func TestPushTakesOneFreshCredential(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	f.host.Grant("acme", "shop", oldToken, githosttest.None)
	if err := f.push(t, f.remote(t, nil), m); err != nil {
		t.Fatal(err)
	}
	f = newFixture(t)
	m = f.makeCommit(t, "print('b')\n")
	f.host.Fault = on(1, func(r *http.Request) bool { return isPost(r) }, githosttest.Status(401, ""))
	if err := f.push(t, f.remote(t, nil), m); err != nil {
		t.Fatal(err)
	}
	if f.tipOf(jobBranch) != m.id || f.asked.Load() != 1 {
		t.Errorf("branch at %q after %d fresh credentials", f.tipOf(jobBranch), f.asked.Load())
	}
}

func TestReadOnlyCredentialCannotPush(t *testing.T) {
	f := newFixture(t)
	m := f.makeCommit(t, "print('b')\n")
	f.host.Grant("acme", "shop", oldToken, githosttest.Read)
	f.host.Grant("acme", "shop", newToken, githosttest.Read)
	wantKind(t, f.push(t, f.remote(t, nil), m), wire.ErrRefused)
}

func TestOddBranchNamesAreNeverSent(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{
		"", "-x", "a..b", "a b", "a\nb", "a\x00b", "a~1", "a^", "a:b", "a?", "a*", "a[", `a\b`, "a.lock", "x.lock/a",
		".a", "a/.b", "a//b", "/a", "a/", "a.", "@", "a@{b", "\xff", strings.Repeat("a", 64<<10),
	} {
		err := f.remote(t, nil).Push(t.Context(), name, f.tip, strings.NewReader(""), 0)
		wantKind(t, err, wire.ErrInvalid)
	}
	if n := len(f.host.Requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}
