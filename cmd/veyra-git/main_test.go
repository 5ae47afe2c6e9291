package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
)

// The test binary plays veyra-git when it is told to.
func TestMain(m *testing.M) {
	if os.Getenv("VEYRA_GIT_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

func veyraGit(t *testing.T, in []byte, args ...string) (out []byte, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{"VEYRA_GIT_TEST_MAIN=1", "GOMEMLIMIT=1GiB"}
	cmd.Stdin = bytes.NewReader(in)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	_ = cmd.Run()
	return stdout.Bytes(), cmd.ProcessState.ExitCode()
}

func TestProgramAnswersOnItsPipes(t *testing.T) {
	host := githosttest.New(t.TempDir())
	commit, err := host.CreateRepo("o", "n", map[string]githosttest.File{"d/f": githosttest.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	pack := exec.Command("git", "--git-dir="+host.Bare("o", "n"), "pack-objects", "--all", "--stdout", "--quiet")
	pack.Env = githosttest.Environ()
	pack.Stdin = bytes.NewReader(nil)
	bytesOfPack, err := pack.Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, id := t.TempDir(), gitops.ObjectID(commit)
	objects := filepath.Join(dir, "objects")
	ws := filepath.Join(dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	out, code := veyraGit(t, bytesOfPack, "index", "--objects", objects, "--workspace", ws, "--commit", commit)
	m, err := gitops.ReadIndexReply(bytes.NewReader(out), id, gitops.DefaultLimits())
	if err != nil || code != 0 || len(m.Entries) != 1 {
		t.Fatalf("index: code %d, %d entries, %v", code, len(m.Entries), err)
	}
	var request bytes.Buffer
	if err := gitops.WriteHashRequest(&request, gitops.NewHashRequest(m, nil, false)); err != nil {
		t.Fatal(err)
	}
	out, code = veyraGit(t, request.Bytes(), "hash", "--workspace", ws)
	seen, err := gitops.ReadHashReply(bytes.NewReader(out), gitops.DefaultLimits())
	if err != nil || code != 0 || seen.Tree != m.Tree {
		t.Fatalf("hash: code %d, tree %s, %v; want %s", code, seen.Tree, err, m.Tree)
	}
}

func TestProgramFailsByFrameAndStatus(t *testing.T) {
	dir := t.TempDir()
	commit := "75b63ac7b64c3fca9b1bd217402f26d739aae07b"
	out, code := veyraGit(t, []byte("no pack at all"), "index", "--objects", dir+"/o", "--workspace", dir, "--commit", commit)
	_, err := gitops.ReadIndexReply(bytes.NewReader(out), gitops.ObjectID(commit), gitops.DefaultLimits())
	if gitops.KindOf(err) != gitops.KindUnsupported || code != 1 {
		t.Errorf("code %d, error %v", code, err)
	}
	for _, args := range [][]string{{}, {"clone"}, {"index", "--commit", "HEAD"}, {"index", "--upload-pack=id"}, {"hash", "--workspace"}} {
		if out, code := veyraGit(t, nil, args...); code != 2 || len(out) != 0 {
			t.Errorf("%q: code %d, output %q", args, code, out)
		}
	}
}
