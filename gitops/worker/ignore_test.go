package worker_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

func ignored(t failer, dir string, paths []string) []string {
	var in bytes.Buffer
	if err := gitops.WriteIgnoreRequest(&in, paths); err != nil {
		t.Fatalf("ignore request: %v", err)
	}
	out := run(t, func(w *gitops.ReplyWriter) error { return worker.Ignore(&in, w, worker.Places{Workspace: dir}) })
	got, err := gitops.ReadIgnoreReply(out, paths, gitops.DefaultLimits())
	if err != nil {
		t.Fatalf("ignore: %v", err)
	}
	return got
}

// checkIgnore asks git itself.
func checkIgnore(t failer, dir string, paths []string) []string {
	cmd := exec.Command("git", "-C", dir, "check-ignore", "--no-index", "--stdin", "-z")
	cmd.Env = githosttest.Environ()
	cmd.Stdin = strings.NewReader(strings.Join(paths, "\x00") + "\x00")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("check-ignore: %v", err)
	}
	return slices.DeleteFunc(strings.Split(string(out), "\x00"), func(s string) bool { return s == "" })
}

// Git and the worker agree on which paths a tree's .gitignore files ignore.
func TestIgnoredPathsAreGitsOwn(t *testing.T) {
	dir := t.TempDir()
	init := exec.Command("git", "-C", dir, "init", "--quiet")
	init.Env = githosttest.Environ()
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	for _, sub := range []string{"a/b", "b"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	token := rapid.SampledFrom([]string{
		"a", "b", "ab", "a.o", "*", "**", "?", "/", "/", "**/", "/**", "/**/", "!", "\\", "[ab]", "[!a]", "[a-c]", "[]a]", "[^b]",
		"*.o", " ", "#", "[[:alpha:]]", "[[:digit:]-b]", "\\*", "\\ ", "[a", "é", "\r",
	})
	line := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(token, 1, 5).Draw(t, "tokens"), "")
	})
	part := rapid.SampledFrom([]string{"a", "b", "ab", "a.o", "b.o", "c", "*", "a b", "é", "]", "-", "a\r", "#a"})
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/")
	}).Filter(func(s string) bool { return s != "a" && s != "b" && s != "a/b" }) // those are directories here
	rapid.Check(t, func(t *rapid.T) {
		for _, at := range []string{"", "a", "a/b"} {
			text := strings.Join(rapid.SliceOfN(line, 0, 4).Draw(t, "lines of "+at), "\n")
			if err := os.WriteFile(filepath.Join(dir, at, ".gitignore"), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		paths := rapid.SliceOfNDistinct(path, 1, 30, rapid.ID).Draw(t, "paths")
		got, want := ignored(t, dir, paths), checkIgnore(t, dir, paths)
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got, cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" && len(got)+len(want) > 0 {
			t.Fatalf("ignored (git -, worker +): %s", diff)
		}
	})
}

// A link in the place of .gitignore is not read (attack case E16's kin).
func TestLinkedIgnoreFileDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules"), []byte("*\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("rules", filepath.Join(dir, ".gitignore")); err != nil {
		t.Fatal(err)
	}
	if got := ignored(t, dir, []string{"a", "b/c"}); len(got) != 0 {
		t.Errorf("ignored %q", got)
	}
}

// What a job leaves in ignored directories may be asked for, though no commit
// could hold it.
func TestPathsThatNoCommitHoldsCanBeIgnored(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("/venv/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	paths := []string{"venv/src/.git/config", "venv/" + strings.Repeat("d/", 100) + "f", "src/.git/config"}
	if diff := cmp.Diff(paths[:2], ignored(t, dir, paths)); diff != "" {
		t.Error(diff)
	}
}

// A pattern that makes a naive matcher try every split ends at once.
func TestPatternOfManyStarsEnds(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("*a", 60) + "\n" + strings.Repeat("**/", 60) + "x\n"
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 200) + "b"
	deep := strings.TrimSuffix(strings.Repeat("a/", 60), "/")
	if got := ignored(t, dir, []string{long, deep}); len(got) != 0 {
		t.Errorf("ignored %q", got)
	}
}
