package treedir_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
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
	entries := limits.Entries
	if entries == 0 {
		entries = 1000
	}
	skipped, err := treedir.Read(root, treestream.NewWriter(&out, treestream.Options{Links: true, Limits: limits}), entries)
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

// TestE20MountsInside: what is mounted below the directory stays out, also a
// directory or a file of the same file system.
func TestE20MountsInside(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	dir, outside := makeTree(t), makeTree(t)
	for _, m := range []struct{ source, target, kind string }{
		{outside, "bound", ""}, {filepath.Join(outside, "a.txt"), "bound.txt", ""}, {"none", "memory", "tmpfs"},
	} {
		target := filepath.Join(dir, m.target)
		if filepath.Ext(target) == "" {
			if err := os.Mkdir(target, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(target, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		flags := uintptr(0)
		if m.kind == "" {
			flags = unix.MS_BIND
		}
		if err := unix.Mount(m.source, target, m.kind, flags, ""); err != nil {
			t.Fatalf("mounting %s: %v", m.target, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	}
	if err := os.WriteFile(filepath.Join(dir, "memory", "x"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	stream, skipped, err := read(t, dir, treestream.Limits{})
	if err != nil || !slices.Equal(skipped, []string{"bound", "bound.txt", "memory"}) {
		t.Errorf("skipped %q, %v", skipped, err)
	}
	if n := bytes.Count(stream, []byte("three")); n != 1 {
		t.Errorf("the directory's file is in the stream %d times", n)
	}
}

// TestE20SwapsWhileCopying exchanges a directory, or a file, with a link to one
// outside while it is copied, over and over.
func TestE20SwapsWhileCopying(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "x")
	if err := os.WriteFile(secret, []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"file": secret, "directory": outside} {
		dir := t.TempDir()
		inner, other := filepath.Join(dir, "d"), filepath.Join(dir, "other")
		if name == "directory" {
			if err := os.Mkdir(inner, 0o755); err != nil {
				t.Fatal(err)
			}
			inner = filepath.Join(inner, "x")
		}
		if err := errors.Join(os.WriteFile(inner, []byte("inner!"), 0o600), os.Symlink(target, other)); err != nil {
			t.Fatal(err)
		}
		stop, swapped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(swapped)
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "d"), unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
				}
			}
		}()
		whole := 0
		for range 3000 {
			stream, _, err := read(t, dir, treestream.Limits{})
			if bytes.Contains(stream, []byte("CANARY")) {
				t.Fatalf("%s: a byte from outside was copied", name)
			}
			if err == nil && bytes.Contains(stream, []byte("inner!")) {
				whole++
			}
		}
		close(stop)
		<-swapped
		if whole == 0 {
			t.Errorf("%s: nothing was ever copied whole: the check is blind", name)
		}
	}
}

// TestE20ManyNames: a directory of many names ends the copy by their number,
// not by the memory that they take.
func TestE20ManyNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 5000 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("n", 200)+fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := read(t, dir, treestream.Limits{Entries: 10})
	runtime.ReadMemStats(&after)
	if !errors.Is(err, treestream.ErrLimit) {
		t.Errorf("5,000 names at a limit of ten: %v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d bytes were allocated for it", used)
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
