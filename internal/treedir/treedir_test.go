package treedir_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treedir"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
)

func makeTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a.txt": "one", "a/b.sh": "two", "a-b": "three"} {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "a/b.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir string, limits treestream.Limits) ([]byte, []string, error) {
	t.Helper()
	root, err := treedir.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	var out bytes.Buffer
	skipped, err := treedir.Read(root, treestream.NewWriter(&out, treestream.Options{Links: true, Limits: limits}))
	return out.Bytes(), skipped, err
}

// TestRoundTrip: what Read streams, Write makes again; a FIFO stops neither.
func TestRoundTrip(t *testing.T) {
	dir := makeTree(t)
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	stream, skipped, err := read(t, dir, treestream.Limits{})
	if err != nil || !slices.Equal(skipped, []string{"fifo"}) {
		t.Fatalf("skipped %q, %v", skipped, err)
	}
	if bytes.Contains(stream, []byte("root:")) {
		t.Error("a link was followed")
	}
	out := t.TempDir()
	left := write(t, out, stream)
	if !slices.Equal(left, []treedir.Left{{Kind: "link", Path: "link"}}) {
		t.Errorf("left %v", left)
	}
	for name, want := range map[string]string{"a.txt": "one", "a/b.sh": "two", "a-b": "three"} {
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || string(got) != want {
			t.Errorf("%s = %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(out, "a/b.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode of a/b.sh: %v %v", info, err)
	}
}

func write(t *testing.T, dir string, stream []byte) []treedir.Left {
	t.Helper()
	root, err := treedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	in, err := treestream.NewReader(bytes.NewReader(stream), treestream.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	left, err := treedir.Write(root, in)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// TestE20BoundsAndLinks: DIR itself a link, too many entries, a huge sparse
// file.
func TestE20BoundsAndLinks(t *testing.T) {
	dir := makeTree(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(t, link, treestream.Limits{}); err == nil {
		t.Error("a directory that is a link was read")
	}
	if _, _, err := read(t, dir, treestream.Limits{Entries: 3}); !errors.Is(err, treestream.ErrLimit) {
		t.Errorf("four entries at a limit of three: %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, "a.txt"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(t, dir, treestream.Limits{Bytes: 1 << 30}); !errors.Is(err, treestream.ErrLimit) {
		t.Errorf("a sparse terabyte: %v", err)
	}
}

// TestWriteFollowsNoLink: a link in the target, planted before or between, is
// neither followed nor replaced.
func TestWriteFollowsNoLink(t *testing.T) {
	var stream bytes.Buffer
	w := treestream.NewWriter(&stream, treestream.Options{})
	if err := w.Add(treestream.Entry{Kind: treestream.File, Path: "d/x", Mode: 0o644, Size: 3, Links: 1}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	outside, out := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(out, "d")); err != nil {
		t.Fatal(err)
	}
	root, err := treedir.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	in, err := treestream.NewReader(&stream, treestream.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := treedir.Write(root, in); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("writing through a link: %v", err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("a file was written outside: %v", entries)
	}
}
