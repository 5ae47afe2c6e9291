package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func layers(t *testing.T, h Host) {
	cases(t, h, map[string]func(*testing.T, Host){
		"FrozenTreeIsSeenAbove":     frozenTree,
		"E21DepsBelowTheTree":       depsBelow,
		"E21DeletedStaysDeleted":    deletedStays,
		"E21PlantedFilesOutside":    planted,
		"E03LateWriterIsDead":       lateWriter,
		"PartsThatAreNoDirectories": oddParts,
		"PartsAreChecked":           partsChecked,
		"BareSandboxUnpacks":        bareUnpacks,
		"LayersAreNotWritable":      layersReadOnly,
	})
}

// unpack places files below the workspace of a bare sandbox.
func unpack(t testing.TB, b *Box, entries ...treestream.Entry) {
	t.Helper()
	var stream bytes.Buffer
	w := treestream.NewWriter(&stream, treestream.Options{})
	for _, e := range entries {
		var content io.Reader
		if e.Kind == treestream.File {
			content, e.Size = strings.NewReader(e.Target), int64(len(e.Target))
			e.Target = ""
		}
		if err := w.Add(e, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	exit, out := b.Cmd(sandbox.Command{Argv: []string{sandbox.InitPath, "unpack", sandbox.Workspace}, Stdin: &stream})
	if exit.Code != 0 {
		t.Fatalf("unpacking ended with %d: %s", exit.Code, out)
	}
}

// text is a file whose content stands in Target until unpack takes it.
func text(path, content string) treestream.Entry {
	return treestream.Entry{Kind: treestream.File, Path: path, Mode: 0o644, Target: content}
}

func gone(path string) treestream.Entry {
	return treestream.Entry{Kind: treestream.Delete, Path: path}
}

func frozenTree(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	first := h.Create(t, job, l)
	first.Must("mkdir -p a/b && echo 1 > a/b/c && chmod 755 a/b/c && ln -s c a/b/l && echo rc > ~/.rc && echo t > /tmp/t")
	layer := first.FreezePaths(sandbox.Workspace)
	second := h.Create(t, job, l, layer...)
	if out := second.Must("cat a/b/l; stat -c '%a %u %g' a/b/c a; ls -A ~ /tmp"); out != "1\n755 1000 1000\n755 1000 1000\n/home/veyra:\n\n/tmp:\n" {
		t.Errorf("the next sandbox sees %q", out)
	}
	second.Must("echo 2 > a/b/c && rm a/b/l && mkdir n && mv a/b/c n/")
	third := h.Create(t, job, l, layer...)
	if out := third.Must("cat a/b/c; ls"); out != "1\na\n" {
		t.Errorf("a neighbour's change is seen: %q", out)
	}
}

// depsBelow is the order of a validation: commit over base over deps.
func depsBelow(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	tree := h.Bare(t, job, l)
	unpack(t, tree, text("lib/tracked.py", "base\n"), text("test.py", "honest\n"))
	base := tree.FreezePaths(sandbox.Workspace)[0]

	setup := h.Create(t, job, l, base)
	setup.Must(`mkdir -p node_modules/m lib/out ~/.cache/pip && echo dep > node_modules/m/x && echo o > lib/out/o && echo c > ~/.cache/pip/c
echo forged > test.py && echo forged > lib/tracked.py && echo evil > conftest.py && echo evil > ~/.bashrc`)
	ids, err := setup.Freeze(ctxOf(t), []sandbox.Part{{Paths: []string{"/workspace/node_modules", "/workspace/lib/out", "/home/veyra/.cache"}}})
	if err != nil {
		t.Fatal(err)
	}

	change := h.Bare(t, job, l, base)
	unpack(t, change, text("lib/out/tracked", "commit\n"), text("lib/tracked.py", "changed\n"), text("node_modules/new", "n\n"))
	commit := change.FreezePaths(sandbox.Workspace)[0]

	view := h.Create(t, job, l, commit, base, ids[0])
	got := view.Must("cat test.py lib/tracked.py node_modules/m/x node_modules/new lib/out/o lib/out/tracked ~/.cache/pip/c; ls -A . ~")
	want := "honest\nchanged\ndep\nn\no\ncommit\nc\n.:\nlib\nnode_modules\ntest.py\n\n/home/veyra:\n.cache\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged view (-want +got):\n%s", diff)
	}
	view.Must("echo w > node_modules/m/y && echo w > lib/out/p && rm node_modules/m/x")
}

func deletedStays(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	tree := h.Bare(t, job, l)
	unpack(t, tree, text("d/one", "1"), text("d/two", "2"), text("f", "f"))
	base := tree.FreezePaths(sandbox.Workspace)[0]
	setup := h.Create(t, job, l, base)
	setup.Must("echo again > d/one; mkdir -p x; echo back > f")
	deps := setup.FreezePaths("/workspace/x", "/workspace/d")
	change := h.Bare(t, job, l, base)
	unpack(t, change, gone("d/one"), gone("f"))
	commit := change.FreezePaths(sandbox.Workspace)[0]
	view := h.Create(t, job, l, commit, base, deps[0], deps[1])
	if out := view.Must("find . -type f | sort"); out != "./d/two\n" {
		t.Errorf("deleted files came back: %q", out)
	}
}

// planted: what a taken-over bare sandbox writes outside of its workspace is in
// no later view.
func planted(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	tree := h.Create(t, job, l)
	tree.Must("mkdir -p usr/bin; echo evil > usr/bin/python3; echo evil > ~/.profile; mkdir -p /tmp/usr; (sleep 1; echo late > late) &")
	layer := tree.FreezePaths(sandbox.Workspace)
	view := h.Create(t, job, l, layer...)
	if out := view.Must("python3 -c 'print(1)'; ls -A ~ /tmp; ls"); out != "1\n/home/veyra:\n\n/tmp:\nusr\n" {
		t.Errorf("planted files: %q", out)
	}
}

func lateWriter(t *testing.T, h Host) {
	b := h.One(t)
	b.Must("(setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i > now; done' > /dev/null 2>&1 &) ; sleep 0.05")
	pid := h.newest(t)
	var first bytes.Buffer
	if err := b.Collect(ctxOf(t), &first); err != nil {
		t.Fatal(err)
	}
	if n, err := alive(pid); err != nil || n != 0 {
		t.Errorf("%d processes live on after a collection: %v", n, err)
	}
}

func oddParts(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	b := h.Create(t, job, l)
	b.Must("ln -s / link && ln -s / other && echo f > file && mkdir -p real/x && ln -s /etc real/etc")
	ids := b.FreezePaths("/workspace/link", "/workspace/file", "/workspace/missing", "/workspace/other/etc", "/workspace/real", "/home/veyra/.cache")
	view := h.Create(t, job, l, ids...)
	if out := view.Must("find . | sort"); out != ".\n./real\n./real/etc\n./real/x\n" {
		t.Errorf("layers hold %q", out)
	}
}

func partsChecked(t *testing.T, h Host) {
	l := h.Small()
	b := h.Bare(t, h.Job(t, l), l)
	for _, paths := range [][]string{
		{"/etc"},
		{"/"},
		{"workspace"},
		{"/workspace/.."},
		{"/workspace/../etc"},
		{"/tmp"},
		{""},
		{"/workspacex"},
		{"/workspace", "/workspace/a"},
		{"/workspace/a", "/workspace/a"},
		{"/workspace/a/b", "/workspace/a"},
		{"/workspace//a"},
	} {
		_, err := b.Freeze(ctxOf(t), []sandbox.Part{{Paths: paths}})
		if sandbox.KindOf(err) != sandbox.KindRefused {
			t.Errorf("parts %q gave %v", paths, err)
		}
	}
	b.FreezePaths(sandbox.Workspace) // a refusal has not ended the sandbox
}

func bareUnpacks(t *testing.T, h Host) {
	l := h.Small()
	b := h.Bare(t, h.Job(t, l), l)
	unpack(t, b, text("a", "hello"))
	exit, out := b.Cmd(sandbox.Command{Argv: []string{sandbox.InitPath, "read", "/workspace/a"}})
	if exit.Code != 0 || out != "hello" {
		t.Errorf("reading back gave %+v, %q", exit, out)
	}
}

func layersReadOnly(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	layer := h.Create(t, job, l)
	layer.Must("echo one > f")
	id := layer.FreezePaths(sandbox.Workspace)
	for i := range 2 {
		b := h.Create(t, job, l, id...)
		if out := b.Must(fmt.Sprintf("cat f; echo %d > f; chmod 777 f; touch new", i)); out != "one\n" {
			t.Errorf("sandbox %d sees %q", i, out)
		}
	}
}

func collecting(t *testing.T, h Host) {
	cases(t, h, merged(crossingCases(), map[string]func(*testing.T, Host){
		"KindsOfChange":         kindsOfChange,
		"E04LinksAreListed":     linksListed,
		"E05HardLinks":          hardLinks,
		"E06E07Specials":        specials,
		"E08ModesAndAttributes": modes,
		"B05TooManyEntries":     tooMany,
		"B07LogicalSize":        logicalSize,
		"B08TooDeep":            tooDeep,
		"ReaderGoesAway":        readerGoesAway,
	}))
}

// change is an entry with its content.
type change struct {
	Kind    treestream.Kind
	Path    string
	Mode    uint32
	Content string
}

// collect runs script over a base and returns what Collect streams.
func collect(t testing.TB, h Host, script string) []change {
	t.Helper()
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	tree := h.Bare(t, job, l)
	unpack(t, tree, text("dir/a", "a"), text("dir/b", "b"), text("keep", "k"), text("old/x", "x"), text("old/y", "y"))
	base := tree.FreezePaths(sandbox.Workspace)
	b := h.Create(t, job, l, base...)
	b.Must(script)
	var stream bytes.Buffer
	if err := b.Collect(ctxOf(t), &stream); err != nil {
		t.Fatalf("collecting: %v", err)
	}
	return read(t, &stream)
}

func read(t testing.TB, stream io.Reader) []change {
	t.Helper()
	r, err := treestream.NewReader(stream, treestream.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var all []change
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, change{e.Kind, e.Path, e.Mode, string(content) + e.Target})
	}
}

func wantChanges(t testing.TB, got []change, want ...change) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("collected (-want +got):\n%s", diff)
	}
}

func kindsOfChange(t *testing.T, h Host) {
	got := collect(t, h, `echo new > dir/new; rm dir/a; printf B > dir/b; chmod 755 keep; mkdir fresh; echo f > fresh/f
rm -r old; mkdir old; echo z > old/z; echo tmp > /tmp/x; echo home > ~/x; printf 'q' > "$(printf 'a\nb')"`)
	wantChanges(t, got,
		change{treestream.File, "a\nb", 0o644, "q"},
		change{treestream.Dir, "dir", 0o755, ""},
		change{treestream.Delete, "dir/a", 0, ""},
		change{treestream.File, "dir/b", 0o644, "B"},
		change{treestream.File, "dir/new", 0o644, "new\n"},
		change{treestream.Dir, "fresh", 0o755, ""},
		change{treestream.File, "fresh/f", 0o644, "f\n"},
		change{treestream.File, "keep", 0o755, "k"},
		change{treestream.Opaque, "old", 0o755, ""},
		change{treestream.File, "old/z", 0o644, "z\n"},
	)
}

func linksListed(t *testing.T, h Host) {
	got := collect(t, h, `ln -s /etc/shadow l1; ln -s ../.. l2; ln -s l3 l3; rm -r dir; ln -s /etc dir; rm keep; ln -s /proc/self/environ keep`)
	wantChanges(t, got,
		change{treestream.Symlink, "dir", 0o777, "/etc"},
		change{treestream.Symlink, "keep", 0o777, "/proc/self/environ"},
		change{treestream.Symlink, "l1", 0o777, "/etc/shadow"},
		change{treestream.Symlink, "l2", 0o777, "../.."},
		change{treestream.Symlink, "l3", 0o777, "l3"},
	)
}

func hardLinks(t *testing.T, h Host) {
	got := collect(t, h, `echo 1 > one; ln one two; ln keep again; echo out > ~/h; ln ~/h inside 2>/dev/null || cp ~/h inside; echo s > single`)
	for _, c := range got {
		switch c.Path {
		case "one", "two", "again", "keep":
			if c.Kind != treestream.Special || c.Content != "" {
				t.Errorf("a name of several was read: %+v", c)
			}
		case "single":
			if c.Kind != treestream.File {
				t.Errorf("%+v", c)
			}
		}
	}
}

func specials(t *testing.T, h Host) {
	got := collect(t, h, `mkfifo fifo; rm keep; mkfifo keep; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
echo s > secret; chmod 000 secret; mkdir closed; echo c > closed/c; chmod 000 closed; mknod null c 0 0 2>/dev/null; true`)
	if h.Class == GVisor { // FIFOs and sockets are its kernel's and reach no disk
		wantChanges(t, got,
			change{treestream.Dir, "closed", 0, ""},
			change{treestream.File, "closed/c", 0o644, "c\n"},
			change{treestream.Delete, "keep", 0, ""},
			change{treestream.File, "secret", 0, "s\n"},
		)
		return
	}
	wantChanges(t, got,
		change{treestream.Dir, "closed", 0, ""},
		change{treestream.File, "closed/c", 0o644, "c\n"},
		change{treestream.Special, "fifo", 0o644, ""},
		change{treestream.Special, "keep", 0o644, ""},
		change{treestream.File, "secret", 0, "s\n"},
		change{treestream.Special, "sock", 0o755, ""},
	)
}

func modes(t *testing.T, h Host) {
	got := collect(t, h, `echo s > s; chmod 6755 s; chmod 755 dir/a; touch dir/b; mv keep moved
python3 -c "import os; os.setxattr('s', 'user.note', b'1')"`)
	wantChanges(t, got,
		change{treestream.Dir, "dir", 0o755, ""},
		change{treestream.File, "dir/a", 0o755, "a"},
		change{treestream.File, "dir/b", 0o644, "b"},
		change{treestream.Delete, "keep", 0, ""},
		change{treestream.File, "moved", 0o644, "k"},
		change{treestream.File, "s", 0o6755, "s\n"},
	)
	b := h.One(t)
	if exit, _ := b.Py("import os; open('x', 'w'); os.setxattr('x', 'user.overlay.opaque', b'y')"); exit.Code != 0 {
		return // the kernel refuses it already
	}
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindRefused)
}

func tooMany(t *testing.T, h Host) {
	b := h.One(t)
	b.Python(`import os
for d in range(6):
    os.mkdir("d%d" % d)
    for i in range(8400): os.close(os.open("d%d/%d" % (d, i), os.O_CREAT))`)
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
}

func logicalSize(t *testing.T, h Host) {
	b := h.One(t)
	b.Must("truncate -s 1T hole")
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
}

func tooDeep(t *testing.T, h Host) {
	b := h.One(t)
	b.Python(`import os
for i in range(3000):
    os.mkdir("d" * 50); os.chdir("d" * 50)`)
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
}

// stingy fails after its first byte.
type stingy struct{ calls atomic.Int64 }

func (s *stingy) Write(p []byte) (int, error) {
	s.calls.Add(1)
	return 0, os.ErrClosed
}

func readerGoesAway(t *testing.T, h Host) {
	b := h.One(t)
	b.Must("head -c 8000000 /dev/zero > big")
	w := &stingy{}
	if err := b.Collect(ctxOf(t), w); !errors.Is(err, os.ErrClosed) {
		t.Errorf("collecting into a closed writer gave %v", err)
	}
}
