package worker_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// rawTree is a tree object of entries "<mode> <name>" in the given order.
func rawTree(entries ...[2]string) []byte {
	var b []byte
	for _, e := range entries {
		b = append(b, e[0]...)
		b = append(b, 0)
		b, _ = hex.AppendDecode(b, []byte(e[1]))
	}
	return b
}

// object stores an object that git itself would not make.
func (c cli) object(t failer, kind string, content []byte) string {
	return strings.TrimSpace(c.git(t, content, "hash-object", "-t", kind, "-w", "--stdin", "--literally"))
}

// rawCommit stores a commit of a tree and packs everything.
func (c cli) rawCommit(t failer, tree string) (commit string, pack []byte) {
	text := fmt.Sprintf("tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nm\n", tree)
	commit = c.object(t, "commit", []byte(text))
	all := c.git(t, nil, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
	return commit, []byte(c.git(t, []byte(all), "pack-objects", "--quiet", "--stdout"))
}

func places(t *testing.T) worker.Places {
	t.Helper()
	return worker.Places{Objects: filepath.Join(t.TempDir(), "o"), Workspace: t.TempDir()}
}

func indexError(t *testing.T, pack []byte, commit string, lim gitops.Limits) error {
	t.Helper()
	var out bytes.Buffer
	return worker.Index(bytes.NewReader(pack), gitops.NewReplyWriter(&out), places(t), gitops.ObjectID(commit), lim)
}

// Attack case E10.
func TestTreesThatNoWorkTreeMayHold(t *testing.T) {
	c := newCLI(t)
	blob := c.object(t, "blob", []byte("x"))
	link := c.object(t, "blob", []byte("a\x00b"))
	sub := c.object(t, "tree", rawTree([2]string{"100644 f", blob}))
	empty := c.object(t, "tree", nil)
	names := []string{
		".git", ".GIT", ".gIt", "git~1", "GIT~1", ".git.", ".git ", ".git. .", ".git::$INDEX_ALLOCATION", ".git:x", ".g\u200cit",
		".git\u200d", "\ufeff.git", "\uff0egit", ".\uff47\uff49\uff54", ".git\\x", ".", "..", "", "a/b", "/", "../x",
		strings.Repeat("n", 256),
	}
	cases := map[string][]byte{
		"a name twice":            rawTree([2]string{"100644 a", blob}, [2]string{"100644 a", blob}),
		"file and directory":      rawTree([2]string{"100644 a", blob}, [2]string{"100644 a.b", blob}, [2]string{"40000 a", sub}),
		"out of order":            rawTree([2]string{"100644 b", blob}, [2]string{"100644 a", blob}),
		"directory out of order":  rawTree([2]string{"40000 a", sub}, [2]string{"100644 a.b", blob}),
		"modules file as link":    rawTree([2]string{"120000 .gitmodules", blob}),
		"modules file, disguised": rawTree([2]string{"120000 .GITmodules", blob}),
		"mode with leading zero":  rawTree([2]string{"040000 d", sub}),
		"mode of no kind":         rawTree([2]string{"110644 a", blob}),
		"empty directory":         rawTree([2]string{"40000 d", empty}),
		"directory is a blob":     rawTree([2]string{"40000 d", blob}),
		"file is a tree":          rawTree([2]string{"100644 f", sub}),
		"blob missing":            rawTree([2]string{"100644 f", strings.Repeat("12", 20)}),
		"link with NUL":           rawTree([2]string{"120000 l", link}),
		"cut":                     rawTree([2]string{"100644 f", blob})[:20],
	}
	for _, name := range names {
		cases[fmt.Sprintf("name %q", name)] = rawTree([2]string{"100644 " + name, blob})
		cases[fmt.Sprintf("directory %q", name)] = rawTree([2]string{"40000 " + name, sub})
	}
	for name, raw := range cases {
		t.Run(name, func(t *testing.T) {
			commit, pack := c.rawCommit(t, c.object(t, "tree", raw))
			err := indexError(t, pack, commit, gitops.DefaultLimits())
			if gitops.KindOf(err) != gitops.KindUnsupported {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// A few kilobytes of trees that name each other can stand for any number of
// files; so can one blob at many paths.
func TestTreesThatMultiplyAreTooLarge(t *testing.T) {
	c := newCLI(t)
	many := func(mode, id string) string {
		var entries [][2]string
		for i := range 100 {
			entries = append(entries, [2]string{fmt.Sprintf("%s %03d", mode, i), id})
		}
		return c.object(t, "tree", rawTree(entries...))
	}
	level := many("100644", c.object(t, "blob", bytes.Repeat([]byte("x"), 1000)))
	files := level
	for range 6 {
		level = many("40000", level)
	}
	deep := c.object(t, "tree", rawTree([2]string{"100644 f", c.object(t, "blob", nil)}))
	for range 70 {
		deep = c.object(t, "tree", rawTree([2]string{"40000 d", deep}))
	}
	entries, bytesOfFiles := gitops.DefaultLimits(), gitops.DefaultLimits()
	entries.Entries, bytesOfFiles.Inflated = 5000, 80_000 // the pack alone is smaller
	for name, c2 := range map[string]struct {
		root string
		lim  gitops.Limits
	}{"trees": {level, entries}, "files": {files, bytesOfFiles}, "depth": {deep, gitops.DefaultLimits()}} {
		commit, pack := c.rawCommit(t, c2.root)
		if err := indexError(t, pack, commit, c2.lim); gitops.KindOf(err) != gitops.KindTooLarge {
			t.Errorf("%s: error = %v", name, err)
		}
	}
}

// Old modes and submodules survive a commit next to them, and the work tree's
// own id agrees (attack cases E11 and E14).
func TestOldModesAndSubmodulesAreKept(t *testing.T) {
	c := newCLI(t)
	blob := c.object(t, "blob", []byte("x"))
	sub := strings.Repeat("ab", 20)
	root := c.object(t, "tree", rawTree(
		[2]string{"100644 a", blob}, [2]string{"100664 old", blob}, [2]string{"100775 older", blob}, [2]string{"160000 vendored", sub}))
	parent, pack := c.rawCommit(t, root)
	p := places(t)
	base := index(t, pack, p, parent)
	want := []gitops.Mode{0o100644, 0o100664, 0o100775, 0o160000}
	var modes []gitops.Mode
	for _, e := range base.Entries {
		modes = append(modes, e.Mode)
	}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Fatal(diff)
	}
	if names, err := os.ReadDir(filepath.Join(p.Workspace, "vendored")); err != nil || len(names) != 0 {
		t.Fatalf("submodule directory: %v, %v", names, err)
	}
	changes := []gitops.Change{{Path: "a", Kind: gitops.ChangeWrite}}
	apply(t, p.Workspace, tree{"a": {text: "y"}}, changes)
	req := gitops.CommitRequest{Parent: gitops.ObjectID(parent), Date: time.Unix(1, 0), Message: "m\n", Changes: changes}
	reply, _ := commit(t, p, req)
	expected := c.object(t, "tree", rawTree(
		[2]string{"100644 a", c.object(t, "blob", []byte("y"))}, [2]string{"100664 old", blob},
		[2]string{"100775 older", blob}, [2]string{"160000 vendored", sub}))
	if string(reply.Tree) != expected {
		t.Errorf("tree %s, want %s", reply.Tree, expected)
	}
	hash(t, p, gitops.NewHashRequest(base, changes, false), reply.Tree)
}

func TestChangesThatAreNone(t *testing.T) {
	c := newCLI(t)
	base := tree{"d/f": {"1", gitops.ModeFile}, "g": {"2", gitops.ModeFile}}
	parent := c.commit(t, base, nil, "", "base\n", 1)
	pack := c.pack(t, parent)
	write := func(path string) gitops.Change { return gitops.Change{Path: path, Kind: gitops.ChangeWrite} }
	gone := func(path string) gitops.Change { return gitops.Change{Path: path, Kind: gitops.ChangeDelete} }
	cases := map[string][]gitops.Change{
		"deletes what is not there":   {gone("x")},
		"deletes a directory":         {gone("d")},
		"writes over a directory":     {write("d")},
		"writes below a file":         {write("g/x")},
		"writes what is not there":    {write("new")},
		"writes a FIFO":               {write("fifo")},
		"writes a link":               {write("link")},
		"writes through a link":       {write("linked/f")},
		"writes what is a directory":  {write("made")},
		"writes below what was there": {gone("g"), write("g/x/y")},
	}
	for name, changes := range cases {
		t.Run(name, func(t *testing.T) {
			p := places(t)
			index(t, pack, p, parent)
			for _, err := range []error{
				syscall.Mkfifo(filepath.Join(p.Workspace, "fifo"), 0o644),
				os.Symlink("/etc/passwd", filepath.Join(p.Workspace, "link")),
				os.Symlink("d", filepath.Join(p.Workspace, "linked")),
				os.Mkdir(filepath.Join(p.Workspace, "made"), 0o755),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			var in, out, pack bytes.Buffer
			req := gitops.CommitRequest{Parent: gitops.ObjectID(parent), Date: time.Unix(1, 0), Message: "m\n", Changes: changes}
			if err := gitops.WriteCommitRequest(&in, req); err != nil {
				t.Fatal(err)
			}
			w := gitops.NewReplyWriter(&out)
			w.Fail(worker.Commit(&in, w, p, gitops.DefaultLimits()))
			_ = w.Flush()
			_, err := gitops.ReadCommitReply(&out, &pack, gitops.DefaultLimits())
			if gitops.KindOf(err) != gitops.KindChange {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// Attack case F11: a pointer to a large file stays one.
func TestPointerIsReplacedByAPointerOnly(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:"
	c := newCLI(t)
	parent := c.commit(t, tree{"big": {pointer + "1\n", gitops.ModeFile}}, nil, "", "base\n", 1)
	pack := c.pack(t, parent)
	changes := []gitops.Change{{Path: "big", Kind: gitops.ChangeWrite}}
	for text, kind := range map[string]gitops.Kind{pointer + "2\n": 0, "real bytes": gitops.KindChange, "": gitops.KindChange} {
		p := places(t)
		index(t, pack, p, parent)
		apply(t, p.Workspace, tree{"big": {text: text}}, changes)
		var in, out bytes.Buffer
		req := gitops.CommitRequest{Parent: gitops.ObjectID(parent), Date: time.Unix(1, 0), Message: "m\n", Changes: changes}
		if err := gitops.WriteCommitRequest(&in, req); err != nil {
			t.Fatal(err)
		}
		err := worker.Commit(&in, gitops.NewReplyWriter(&out), p, gitops.DefaultLimits())
		if gitops.KindOf(err) != kind {
			t.Errorf("%.20q: error = %v", text, err)
		}
	}
}

// A server's packs hold deltas, by distance or by id.
func TestDeltasOfARealPackAreResolved(t *testing.T) {
	c := newCLI(t)
	base := tree{}
	for i := range 40 {
		base[fmt.Sprintf("f%02d", i)] = file{strings.Repeat("a line of some length\n", 200) + strings.Repeat("x", i), gitops.ModeFile}
	}
	parent := c.commit(t, base, nil, "", "base\n", 1)
	for _, options := range [][]string{{"--delta-base-offset"}, nil} {
		args := append([]string{"pack-objects", "--quiet", "--revs", "--stdout", "--no-reuse-delta", "--depth=50"}, options...)
		pack := c.git(t, []byte(parent+"\n"), args...)
		if len(pack) > 10_000 {
			t.Fatalf("%d bytes: no deltas in it", len(pack))
		}
		checkManifest(t, index(t, []byte(pack), places(t), parent), base)
	}
}

// Every file and directory has the one old time, links too.
func TestBaseLayerHasOneTime(t *testing.T) {
	c := newCLI(t)
	base := tree{"d/e/f": {"1", gitops.ModeExec}, "g": {"2", gitops.ModeFile}, "l": {"/nowhere", gitops.ModeLink}}
	parent := c.commit(t, base, nil, "", "base\n", 1)
	p := places(t)
	old := syscall.Umask(0o077)
	index(t, c.pack(t, parent), p, parent)
	syscall.Umask(old)
	want := map[string]os.FileMode{"d": 0o755 | os.ModeDir, "d/e": 0o755 | os.ModeDir, "d/e/f": 0o755, "g": 0o644, "l": 0o777 | os.ModeSymlink}
	for path, mode := range want {
		st, err := os.Lstat(filepath.Join(p.Workspace, path))
		if err != nil {
			t.Fatal(err)
		}
		if !st.ModTime().Equal(gitops.BaseTime()) || path != "d" && path != "d/e" && st.Mode() != mode {
			t.Errorf("%s: time %v, mode %v", path, st.ModTime(), st.Mode())
		}
	}
}

func TestWorkTreeWithOtherThanFilesHasNoTree(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"FIFO":             func(dir string) error { return syscall.Mkfifo(dir+"/x", 0o644) },
		"git further down": func(dir string) error { return os.MkdirAll(dir+"/a/.git", 0o755) },
	} {
		p := places(t)
		if err := make(p.Workspace); err != nil {
			t.Fatal(err)
		}
		var in bytes.Buffer
		if err := gitops.WriteHashRequest(&in, gitops.HashRequest{}); err != nil {
			t.Fatal(err)
		}
		out := run(t, func(w *gitops.ReplyWriter) error { return worker.Hash(&in, w, p, gitops.DefaultLimits()) })
		if _, err := gitops.ReadHashReply(out, gitops.DefaultLimits()); gitops.KindOf(err) != gitops.KindChange {
			t.Errorf("%s: error = %v", name, err)
		}
	}
}
