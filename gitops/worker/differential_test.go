package worker_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// file is one path of a generated tree.
type file struct {
	text string
	mode gitops.Mode
}

type tree map[string]file

// names that meet git's sorting rules, quoting rules and what only Linux takes.
var names = []string{"a", "a.b", "a0", "a-", "b", "B", "con", "aux.txt", "x y", "t\tab", "n\nl", "\xff\xfe", "é", "-o", `q"`, "c\\d"}

func genPath() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "parts")
		return strings.Join(parts, "/")
	})
}

func genFile(links bool) *rapid.Generator[file] {
	modes := []gitops.Mode{gitops.ModeFile, gitops.ModeExec}
	if links {
		modes = append(modes, gitops.ModeLink)
	}
	return rapid.Custom(func(t *rapid.T) file {
		f := file{mode: rapid.SampledFrom(modes).Draw(t, "mode")}
		f.text = rapid.SampledFrom([]string{"1", "2\r\n", "\x00bin", "longer text\n"}).Draw(t, "text")
		if f.mode == gitops.ModeLink {
			f.text = rapid.SampledFrom([]string{"a", "../x", "/etc/passwd", "nowhere"}).Draw(t, "target")
		}
		return f
	})
}

// put sets a path and takes away what cannot stand beside it.
func (tr tree) put(path string, f file) {
	for old := range tr {
		if strings.HasPrefix(old, path+"/") || strings.HasPrefix(path, old+"/") {
			delete(tr, old)
		}
	}
	tr[path] = f
}

func (tr tree) paths() []string {
	out := make([]string, 0, len(tr))
	for p := range tr {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

func genTree(t *rapid.T) tree {
	tr := tree{}
	for range rapid.IntRange(1, 12).Draw(t, "files") {
		tr.put(genPath().Draw(t, "path"), genFile(true).Draw(t, "file"))
	}
	return tr
}

// mutate writes, deletes and replaces. Links are deleted or replaced only.
func mutate(t *rapid.T, base tree) tree {
	now := tree{}
	for p, f := range base {
		now[p] = f
	}
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		paths := now.paths()
		switch step := rapid.IntRange(0, 3).Draw(t, "step"); {
		case step == 0 && len(paths) > 0:
			delete(now, rapid.SampledFrom(paths).Draw(t, "gone"))
		case step == 1 && len(paths) > 0:
			now.put(rapid.SampledFrom(paths).Draw(t, "changed"), genFile(false).Draw(t, "file"))
		case step == 2 && len(paths) > 0: // below or in the place of what is there
			now.put(rapid.SampledFrom(paths).Draw(t, "above")+"/"+rapid.SampledFrom(names).Draw(t, "name"), genFile(false).Draw(t, "file"))
		default:
			now.put(genPath().Draw(t, "new"), genFile(false).Draw(t, "file"))
		}
	}
	return now
}

func changesOf(base, now tree) (out []gitops.Change) {
	for p, f := range now {
		if base[p] != f {
			out = append(out, gitops.Change{Path: p, Kind: gitops.ChangeWrite, Exec: f.mode == gitops.ModeExec})
		}
	}
	for p := range base {
		if _, kept := now[p]; !kept {
			out = append(out, gitops.Change{Path: p, Kind: gitops.ChangeDelete})
		}
	}
	return out
}

// cli is a bare repository worked on by the git command.
type cli struct{ dir string }

func newCLI(t *testing.T) cli {
	t.Helper()
	c := cli{t.TempDir()}
	c.git(t, nil, "init", "--quiet", "--bare", c.dir)
	return c
}

type failer interface{ Fatalf(string, ...any) }

func (c cli) git(t failer, in []byte, args ...string) string {
	cmd := exec.Command("git", append([]string{"--git-dir=" + c.dir}, args...)...)
	cmd.Env = githosttest.Environ()
	cmd.Stdin = bytes.NewReader(in)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, errs.String())
	}
	return string(out)
}

func quote(path string) string {
	var b strings.Builder
	for i := range len(path) {
		fmt.Fprintf(&b, "\\%03o", path[i])
	}
	return `"` + b.String() + `"`
}

// commit makes a commit with fast-import and gives its id. A nil change list
// means the whole tree.
func (c cli) commit(t failer, tr tree, changes []gitops.Change, parent, message string, date int64) string {
	var b bytes.Buffer
	who := fmt.Sprintf("Veyra Agent <agent@veyra.local> %d +0000", date)
	fmt.Fprintf(&b, "commit refs/heads/x\nmark :1\nauthor %s\ncommitter %s\ndata %d\n%s\n", who, who, len(message), message)
	if parent != "" {
		fmt.Fprintf(&b, "from %s\n", parent)
	}
	if changes == nil {
		changes = changesOf(tree{}, tr)
	}
	for _, ch := range changes { // deletions first, as a work tree needs it
		if ch.Kind == gitops.ChangeDelete {
			fmt.Fprintf(&b, "D %s\n", quote(ch.Path))
		}
	}
	for _, ch := range changes {
		if f := tr[ch.Path]; ch.Kind == gitops.ChangeWrite {
			fmt.Fprintf(&b, "M %o inline %s\ndata %d\n%s\n", f.mode, quote(ch.Path), len(f.text), f.text)
		}
	}
	b.WriteString("get-mark :1\ndone\n")
	out := c.git(t, b.Bytes(), "fast-import", "--quiet", "--force", "--done", "--cat-blob-fd=1")
	return strings.TrimSpace(out)
}

func (c cli) pack(t failer, commit string) []byte {
	in := commit + "\n"
	return []byte(c.git(t, []byte(in), "pack-objects", "--quiet", "--revs", "--stdout", "--delta-base-offset"))
}

// run gives one mode's answer.
func run(t failer, mode func(out *gitops.ReplyWriter) error) *bytes.Buffer {
	var out bytes.Buffer
	w := gitops.NewReplyWriter(&out)
	if err := mode(w); err != nil {
		w.Fail(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatalf("flushing answer: %v", err)
	}
	return &out
}

func index(t failer, pack []byte, p worker.Places, commit string) gitops.Manifest {
	id := gitops.ObjectID(commit)
	out := run(t, func(w *gitops.ReplyWriter) error {
		return worker.Index(bytes.NewReader(pack), w, p, id, gitops.DefaultLimits())
	})
	m, err := gitops.ReadIndexReply(out, id, gitops.DefaultLimits())
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	return m
}

// apply writes a change set into a work tree, as unpacking does: whiteouts
// first, emptied directories stay.
func apply(t failer, dir string, now tree, changes []gitops.Change) {
	must := func(err error) {
		if err != nil {
			t.Fatalf("applying changes: %v", err)
		}
	}
	for _, c := range changes {
		if c.Kind == gitops.ChangeDelete {
			must(os.Remove(filepath.Join(dir, c.Path)))
		}
	}
	for _, c := range changes {
		if c.Kind != gitops.ChangeWrite {
			continue
		}
		path := filepath.Join(dir, c.Path)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.RemoveAll(path)) // a link, a file or an emptied directory
		must(os.WriteFile(path, []byte(now[c.Path].text), 0o644))
		if c.Exec {
			must(os.Chmod(path, 0o755))
		}
	}
}

// checkManifest compares a manifest with the tree it should be.
func checkManifest(t failer, m gitops.Manifest, want tree) {
	got := tree{}
	for _, e := range m.Entries {
		f := want[e.Path]
		if e.SHA256 != sha256.Sum256([]byte(f.text)) || e.Size != int64(len(f.text)) {
			t.Fatalf("entry %+v does not fit %+v", e, f)
		}
		got[e.Path] = file{f.text, e.Mode}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(file{})); diff != "" {
		t.Fatalf("manifest: %s", diff)
	}
}

func (c cli) changed(t failer, from, to string) (out []gitops.ChangedPath) {
	fields := strings.Split(c.git(t, nil, "diff-tree", "-r", "-z", "--no-renames", "--name-status", from, to), "\x00")
	status := map[string]gitops.PathStatus{"A": gitops.PathAdded, "M": gitops.PathModified, "T": gitops.PathModified, "D": gitops.PathDeleted}
	for i := 0; i+1 < len(fields); i += 2 {
		out = append(out, gitops.ChangedPath{Path: fields[i+1], Status: status[fields[i]]})
	}
	slices.SortFunc(out, func(a, b gitops.ChangedPath) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Git and the worker make the same commit of the same change, whatever the
// names and however files and directories change places; the work tree alone
// gives the same tree id; and the supervisor computes the same commit id.
func TestCommitsAreGitsOwn(t *testing.T) {
	c := newCLI(t)
	rapid.Check(t, func(t *rapid.T) {
		const date, message = 1_750_000_000, "Veyra job 7: title\n"
		base := genTree(t)
		now := mutate(t, base)
		changes := changesOf(base, now)
		parent := c.commit(t, base, nil, "", "base\n", 1)

		dir, err := os.MkdirTemp("", "worker-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		p := worker.Places{Objects: filepath.Join(dir, "objects"), Workspace: filepath.Join(dir, "ws")}
		if err := os.Mkdir(p.Workspace, 0o755); err != nil {
			t.Fatal(err)
		}
		manifest := index(t, c.pack(t, parent), p, parent)
		checkManifest(t, manifest, base)
		if len(changes) == 0 {
			return
		}
		apply(t, p.Workspace, now, changes)

		req := gitops.CommitRequest{Parent: gitops.ObjectID(parent), Date: time.Unix(date, 0), Message: message, Changes: changes}
		reply, pack := commit(t, p, req)
		want := c.commit(t, now, changes, parent, message, date)
		if string(reply.Commit) != want {
			t.Fatalf("commit %s, git made %s", reply.Commit, want)
		}
		if diff := cmp.Diff(c.changed(t, parent, want), reply.Changed); diff != "" {
			t.Fatalf("changed paths: %s", diff)
		}
		if err := gitops.CheckReply(manifest, req, reply); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(pack[:4], []byte("PACK")); n != 1 {
			t.Fatalf("pack begins with %q", pack[:4])
		}
		checkManifest(t, hash(t, p, gitops.NewHashRequest(manifest, changes, true), reply.Tree), now)
	})
}

func commit(t failer, p worker.Places, req gitops.CommitRequest) (gitops.CommitReply, []byte) {
	var in, pack bytes.Buffer
	if err := gitops.WriteCommitRequest(&in, req); err != nil {
		t.Fatalf("commit request: %v", err)
	}
	out := run(t, func(w *gitops.ReplyWriter) error { return worker.Commit(&in, w, p, gitops.DefaultLimits()) })
	reply, err := gitops.ReadCommitReply(out, &pack, gitops.DefaultLimits())
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return reply, pack.Bytes()
}

func hash(t failer, p worker.Places, req gitops.HashRequest, want gitops.ObjectID) gitops.Manifest {
	var in bytes.Buffer
	if err := gitops.WriteHashRequest(&in, req); err != nil {
		t.Fatalf("hash request: %v", err)
	}
	out := run(t, func(w *gitops.ReplyWriter) error { return worker.Hash(&in, w, p, gitops.DefaultLimits()) })
	m, err := gitops.ReadHashReply(out, gitops.DefaultLimits())
	if err != nil {
		t.Fatalf("hash: %v", err)
	}
	if m.Tree != want {
		t.Fatalf("work tree hashes to %s, want %s", m.Tree, want)
	}
	return m
}
