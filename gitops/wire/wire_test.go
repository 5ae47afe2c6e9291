package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	oldToken = "ghs_old_token_of_this_test"
	newToken = "ghs_new_token_of_this_test"
)

// fixture is a host with one repository acme/shop.
type fixture struct {
	host   *githosttest.Host
	server *httptest.Server
	tip    gitops.ObjectID
	asked  atomic.Int32 // fresh credentials asked for
}

var shopFiles = map[string]githosttest.File{
	"README.md":     githosttest.Text("# shop\n"),
	"src/a.py":      githosttest.Text("print('a')\n"),
	"bin/run":       {Content: "#!/bin/sh\n", Exec: true},
	"src/link":      {Link: "../README.md"},
	"odd\tname\xff": githosttest.Text("bytes"),
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{host: githosttest.New(t.TempDir())}
	tip, err := f.host.CreateRepo("acme", "shop", shopFiles)
	if err != nil {
		t.Fatal(err)
	}
	f.tip = gitops.ObjectID(tip)
	f.host.Grant("acme", "shop", oldToken, githosttest.Write)
	f.host.Grant("acme", "shop", newToken, githosttest.Write)
	f.server = httptest.NewServer(f.host)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fixture) remote(t *testing.T, change func(*wire.Config)) *wire.Remote {
	t.Helper()
	cfg := wire.Config{
		Origin: f.server.URL, Owner: "acme", Name: "shop", Transport: wire.NewTransport(nil),
		Token: func(_ context.Context, fresh bool) (protocol.RepoToken, error) {
			if fresh {
				f.asked.Add(1)
				return newToken, nil
			}
			return oldToken, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	r, err := wire.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error = %v, want kind %v", err, kind)
	}
	if strings.Contains(err.Error(), oldToken) || strings.Contains(err.Error(), newToken) {
		t.Fatalf("error shows the token: %v", err)
	}
}

// checkout runs a fetched pack through the worker.
func checkout(t *testing.T, pack []byte, id gitops.ObjectID) (gitops.Manifest, worker.Places) {
	t.Helper()
	p := worker.Places{Objects: t.TempDir(), Workspace: t.TempDir()}
	var out bytes.Buffer
	w := gitops.NewReplyWriter(&out)
	if err := worker.Index(bytes.NewReader(pack), w, p, id, gitops.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := gitops.ReadIndexReply(&out, id, gitops.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m, p
}

func TestFetchGivesTheWholeTreeWithBothProtocols(t *testing.T) {
	for name, old := range map[string]bool{"version 2": false, "version 0": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.host.OldProtocol = old
			r := f.remote(t, nil)
			id, err := r.Branch(t.Context(), "main")
			if err != nil || id != f.tip {
				t.Fatalf("Branch = %q, %v; want %q", id, err, f.tip)
			}
			var pack bytes.Buffer
			if err := r.FetchPack(t.Context(), id, &pack); err != nil {
				t.Fatal(err)
			}
			m, _ := checkout(t, pack.Bytes(), id)
			var got []string
			for _, e := range m.Entries {
				got = append(got, e.Path)
			}
			want := []string{"README.md", "bin/run", "odd\tname\xff", "src/a.py", "src/link"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Attack case F03: only the exact ref counts.
func TestPrefixTwinIsNotTheBranch(t *testing.T) {
	f := newFixture(t)
	if _, err := f.host.Git("acme", "shop", "update-ref", "refs/heads/release2", string(f.tip)); err != nil {
		t.Fatal(err)
	}
	_, err := f.remote(t, nil).Branch(t.Context(), "release")
	wantKind(t, err, wire.ErrBranchMissing)
	refs, err := f.remote(t, nil).ListRefs(t.Context(), "refs/heads/release", "refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]gitops.ObjectID{"refs/heads/main": f.tip}, refs); diff != "" {
		t.Error(diff)
	}
}

func TestFetchTakesAnOlderCommitAfterTheBranchMoved(t *testing.T) {
	for name, old := range map[string]bool{"version 2": false, "version 0": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.host.OldProtocol = old
			if _, err := f.host.Commit("acme", "shop", "main", map[string]githosttest.File{"b": githosttest.Text("b")}); err != nil {
				t.Fatal(err)
			}
			var pack bytes.Buffer
			if err := f.remote(t, nil).FetchPack(t.Context(), f.tip, &pack); err != nil {
				t.Fatal(err)
			}
			if m, _ := checkout(t, pack.Bytes(), f.tip); len(m.Entries) != len(shopFiles) {
				t.Errorf("%d entries, want %d", len(m.Entries), len(shopFiles))
			}
		})
	}
}

// A repository of many refs, with both protocols; the old one lists them all.
func TestManyRefsAreNoBurden(t *testing.T) {
	f := newFixture(t)
	var refs strings.Builder
	refs.WriteString("# pack-refs with: peeled fully-peeled sorted\n")
	for i := range 35_000 {
		fmt.Fprintf(&refs, "%s refs/pull/%06d/head\n", f.tip, i)
	}
	if err := os.WriteFile(filepath.Join(f.host.Bare("acme", "shop"), "packed-refs"), []byte(refs.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, old := range []bool{false, true} {
		f.host.OldProtocol = old
		r := f.remote(t, nil)
		if id, err := r.Branch(t.Context(), "main"); err != nil || id != f.tip {
			t.Errorf("old %t: branch at %q, %v", old, id, err)
		}
		if err := r.FetchPack(t.Context(), f.tip, io.Discard); err != nil {
			t.Errorf("old %t: %v", old, err)
		}
	}
}

func TestFetchOfAnUnknownCommitIsMissing(t *testing.T) {
	f := newFixture(t)
	err := f.remote(t, nil).FetchPack(t.Context(), gitops.ObjectID(strings.Repeat("1", 40)), &bytes.Buffer{})
	wantKind(t, err, wire.ErrBranchMissing)
}

// A server in trouble answers in the place where it would refuse a commit: that
// is no missing branch, which would be final.
func TestServerInTroubleIsNoMissingBranch(t *testing.T) {
	f := newFixture(t)
	busy := "ERR upload-pack: temporarily overloaded\n"
	f.host.Fault = on(2, func(r *http.Request) bool {
		return strings.Contains(r.URL.Path, "git-upload-pack") || r.Method == http.MethodGet
	},
		githosttest.Status(200, fmt.Sprintf("%04x%s", len(busy)+4, busy), "Content-Type", "application/x-git-upload-pack-result"))
	wantKind(t, f.remote(t, nil).FetchPack(t.Context(), f.tip, &bytes.Buffer{}), wire.ErrUnreachable)
}

// on lets a fault hit the nth request that the rule matches.
func on(nth int, match func(*http.Request) bool, fault githosttest.Fault) func(*http.Request) githosttest.Fault {
	var mu sync.Mutex
	seen := 0
	return func(r *http.Request) githosttest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if match(r) {
			if seen++; seen == nth || nth == 0 {
				return fault
			}
		}
		return githosttest.Pass()
	}
}

func isGet(r *http.Request) bool  { return r.Method == http.MethodGet }
func isPost(r *http.Request) bool { return r.Method == http.MethodPost }

// Attack case F08.
func TestRefusedCredentialIsReplacedOnce(t *testing.T) {
	for _, code := range []int{401, 403, 404} {
		f := newFixture(t)
		f.host.Fault = on(1, isGet, githosttest.Status(code, ""))
		if _, err := f.remote(t, nil).Branch(t.Context(), "main"); err != nil {
			t.Errorf("status %d once: %v", code, err)
		}
		if f.asked.Load() != 1 {
			t.Errorf("status %d: %d fresh credentials", code, f.asked.Load())
		}
		f.host.Fault = on(0, isGet, githosttest.Status(code, ""))
		_, err := f.remote(t, nil).Branch(t.Context(), "main")
		wantKind(t, err, wire.ErrRefused)
	}
}

func TestRateLimitCarriesItsPause(t *testing.T) {
	for _, code := range []int{429, 403, 503} {
		f := newFixture(t)
		f.host.Fault = on(0, isGet, githosttest.Status(code, "", "Retry-After", "17"))
		_, err := f.remote(t, nil).Branch(t.Context(), "main")
		wantKind(t, err, wire.ErrUnreachable)
		if gitops.RetryAfter(err) != 17*time.Second {
			t.Errorf("status %d: pause %v", code, gitops.RetryAfter(err))
		}
		if n := len(f.host.Requests()); n != 1 {
			t.Errorf("status %d: %d requests", code, n)
		}
	}
}

func TestBrokenAnswersOfAFetchAreUnreachable(t *testing.T) {
	html := githosttest.Status(200, "<html>log in</html>", "Content-Type", "text/html", "Refresh", "0; url=http://127.0.0.1/")
	cases := map[string]func(*http.Request) githosttest.Fault{
		"login page":      on(0, isGet, html),
		"server error":    on(0, isGet, githosttest.Status(500, "")),
		"dropped":         on(0, isGet, githosttest.Drop()),
		"empty answer":    on(2, isPost, githosttest.Status(200, "", "Content-Type", "application/x-git-upload-pack-result")),
		"cut pack":        on(2, isPost, githosttest.Cut(120)),
		"redirected post": on(2, isPost, githosttest.Redirect(307, "/acme/shop.git/git-upload-pack")),
		"wrong type":      on(2, isPost, githosttest.Status(200, "0000", "Content-Type", "text/plain")),
	}
	for name, fault := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.host.Fault = fault
			r := f.remote(t, nil)
			id, err := r.Branch(t.Context(), "main")
			if err == nil {
				err = r.FetchPack(t.Context(), id, &bytes.Buffer{})
			}
			wantKind(t, err, wire.ErrUnreachable)
		})
	}
}

func TestPackOverItsBoundIsTooLarge(t *testing.T) {
	f := newFixture(t)
	var pack bytes.Buffer
	err := f.remote(t, func(c *wire.Config) { c.MaxPack = 100 }).FetchPack(t.Context(), f.tip, &pack)
	wantKind(t, err, wire.ErrTooLarge)
	if pack.Len() > 100 {
		t.Errorf("%d bytes passed on", pack.Len())
	}
}

type brokenPipe struct{}

var errPipe = errors.New("pipe is gone")

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestReceiverOfThePackIsNamedWhenItFails(t *testing.T) {
	f := newFixture(t)
	err := f.remote(t, nil).FetchPack(t.Context(), f.tip, brokenPipe{})
	wantKind(t, err, wire.ErrReceiver)
	wantKind(t, err, errPipe)
}

// Attack case F09: a server that sends next to nothing.
func TestStalledServerIsLeft(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = w.Write([]byte("0"))
		_ = http.NewResponseController(w).Flush()
		<-release
	}))
	defer server.Close()
	defer close(release)
	f := &fixture{server: server}
	r := f.remote(t, func(c *wire.Config) { c.Window = 5 * time.Millisecond })
	_, err := r.Branch(t.Context(), "main")
	wantKind(t, err, wire.ErrUnreachable)
}

func TestCancelledContextIsNotAFaultOfTheHost(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.remote(t, nil).Branch(ctx, "main")
	if !errors.Is(err, context.Canceled) || errors.Is(err, wire.ErrUnreachable) {
		t.Errorf("error = %v", err)
	}
}

// Attack case F05.
func TestRemoteIsBuiltFromCheckedNamesOnly(t *testing.T) {
	bad := []func(*wire.Config){
		func(c *wire.Config) { c.Origin = "ext::sh -c id" },
		func(c *wire.Config) { c.Origin = "file:///etc" },
		func(c *wire.Config) { c.Origin = "ssh://-oProxyCommand=x/" },
		func(c *wire.Config) { c.Origin = "git://example.org" },
		func(c *wire.Config) { c.Origin = "http://example.org" },
		func(c *wire.Config) { c.Origin = "https://user@example.org" },
		func(c *wire.Config) { c.Origin = "https://example.org/path" },
		func(c *wire.Config) { c.Owner = ".." },
		func(c *wire.Config) { c.Owner = "-u" },
		func(c *wire.Config) { c.Name = "a/b" },
		func(c *wire.Config) { c.Name = "a%2fb" },
		func(c *wire.Config) { c.Name = "a\nb" },
		func(c *wire.Config) { c.Name = "g\u0456thub" },
	}
	for i, change := range bad {
		cfg := wire.Config{
			Origin: "https://example.org", Owner: "o", Name: "n", Transport: http.DefaultTransport,
			Token: func(context.Context, bool) (protocol.RepoToken, error) { return "x", nil },
		}
		if _, err := wire.New(cfg); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if _, err := wire.New(cfg); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("case %d: error = %v", i, err)
		}
	}
}
