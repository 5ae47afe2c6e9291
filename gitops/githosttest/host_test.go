package githosttest_test

import (
	"bytes"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
)

type client struct {
	t   *testing.T
	url string // with the token, as git's command line takes it
	dir string
}

func newClient(t *testing.T, a githosttest.Access) (*githosttest.Host, client) {
	t.Helper()
	h := githosttest.New(t.TempDir())
	if _, err := h.CreateRepo("Acme", "shop", map[string]githosttest.File{"a": githosttest.Text("a\n"), "run": {Content: "x", Exec: true}}); err != nil {
		t.Fatal(err)
	}
	h.Grant("acme", "shop", "secret", a)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return h, client{t, strings.Replace(s.URL, "http://", "http://x-access-token:secret@", 1), t.TempDir()}
}

func (c client) git(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Env, cmd.Dir = githosttest.Environ(), c.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (c client) must(args ...string) string {
	c.t.Helper()
	out, err := c.git(args...)
	if err != nil {
		c.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return out
}

// Git's own client clones and pushes, also a pack above 1 MiB, which it sends
// in chunks.
func TestGitItselfClonesAndPushes(t *testing.T) {
	h, c := newClient(t, githosttest.Write)
	c.must("clone", "--quiet", c.url+"/acme/shop.git", "w")
	big := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(big)
	if err := os.WriteFile(filepath.Join(c.dir, "w", "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	c.must("-C", "w", "add", "big")
	c.must("-C", "w", "commit", "--quiet", "-m", "big")
	c.must("-C", "w", "push", "--quiet", "origin", "HEAD:refs/heads/new")
	want := strings.TrimSpace(c.must("-C", "w", "rev-parse", "HEAD"))
	if got, err := h.Git("acme", "shop", "rev-parse", "refs/heads/new"); err != nil || got != want {
		t.Errorf("branch at %q, %v; want %q", got, err, want)
	}
	h.Protect("refs/heads/main")
	if out, err := c.git("-C", "w", "push", "origin", "HEAD:main"); err == nil || !strings.Contains(out, "protected branch") {
		t.Errorf("push to a protected branch: %v, %s", err, out)
	}
}

func TestAccessIsChecked(t *testing.T) {
	h, c := newClient(t, githosttest.Read)
	c.must("clone", "--quiet", c.url+"/acme/shop.git", "w")
	c.must("-C", "w", "commit", "--quiet", "--allow-empty", "-m", "x")
	if out, err := c.git("-C", "w", "push", "origin", "HEAD:refs/heads/new"); err == nil {
		t.Errorf("a reader could push: %s", out)
	}
	h.Grant("acme", "shop", "secret", githosttest.None)
	if out, err := c.git("clone", c.url+"/acme/shop.git", "w2"); err == nil {
		t.Errorf("a stranger could clone: %s", out)
	}
	c.url = strings.Replace(c.url, "x-access-token:secret@", "", 1)
	if out, err := c.git("clone", c.url+"/acme/shop.git", "w3"); err == nil {
		t.Errorf("nobody could clone: %s", out)
	}
}
