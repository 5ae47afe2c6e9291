package sandboxtest

import (
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// storageCases are about the disk of a sandbox and what a job leaves on it.
func storageCases() map[string]func(*testing.T, Host) {
	return map[string]func(*testing.T, Host){
		"B04InodesOfEveryPlace":  inodesOfEveryPlace,
		"B04AnotherJobWritesOn":  anotherJobWrites,
		"B04FullDiskIsFrozen":    fullFrozen,
		"B05ManyNamesOfEachKind": manyNames,
		"B07HolesAreNotRead":     holes,
		"B08DeepTreeIsRemoved":   deepRemoved,
		"B09LinksInCircles":      circles,
		"B14DiskLoadEnds":        diskLoadEnds,
	}
}

// inodesOfEveryPlace: empty files end in their own limit, wherever they lie,
// and cost the host none of its own.
func inodesOfEveryPlace(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.DiskBytes, l.Inodes = 64<<20, 4096
	b := h.Create(t, h.Job(t, l), l)
	before := hostInodes(t)
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp", "/var/tmp"} {
		exit, out := noticed(t, sandbox.LimitInodes, func(seconds string) (sandbox.Exit, string) {
			return b.Py(`import os, shutil, time
os.mkdir("` + dir + `/d"); os.chdir("` + dir + `/d")
try:
    for i in range(100000): os.close(os.open("f%d" % i, os.O_CREAT))
except OSError as e: print(e.errno, flush=True)
time.sleep(` + seconds + `)
os.chdir("/"); shutil.rmtree("` + dir + `/d")`)
		})
		if exit.Code != 0 || out != strconv.Itoa(int(unix.ENOSPC))+"\n" {
			t.Errorf("files without end in %s: %+v %s", dir, exit, out)
		}
	}
	// Others work on this host, too; a job's own would be 16,000.
	if used := before - hostInodes(t); used > 3*l.Inodes {
		t.Errorf("the host lost %d inodes to a sandbox with %d", used, l.Inodes)
	}
}

func hostInodes(t testing.TB) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Ffree)
}

// anotherJobWrites: a full disk is its job's alone.
func anotherJobWrites(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.DiskBytes, l.Inodes = 64<<20, 4096
	full, other := h.Create(t, h.Job(t, l), l), h.Create(t, h.Job(t, l), l)
	if exit, _ := full.Sh("dd if=/dev/zero of=big bs=1M count=200 2>/dev/null"); exit.Code == 0 {
		t.Error("the disk has no end")
	}
	exit, out := other.Sh("dd if=/dev/zero of=big bs=1M count=30 conv=fsync 2>&1")
	if exit.Code != 0 || len(exit.Limits) != 0 {
		t.Errorf("another job's disk: %+v %s", exit, out)
	}
}

// fullFrozen: what a job wrote up to the last byte or file can still become
// layers.
func fullFrozen(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.DiskBytes, l.Inodes = 64<<20, 4096
	job := h.Job(t, l)
	for what, fill := range map[string]string{
		"bytes": `f = open("fill", "wb", 0)
    while True: f.write(bytes(4096))`,
		"files": `n = 0
    while True: os.close(os.open("f%d" % n, os.O_CREAT)); n += 1`,
	} {
		b := h.Create(t, job, l)
		b.Must("mkdir -p ~/.cache/tool/deep/er && echo kept > ~/.cache/tool/deep/er/file && echo mark > mark")
		if out := b.Python("import os\ntry:\n    " + fill + "\nexcept OSError as e: print(e.errno)"); out != "28\n" {
			t.Errorf("%s without end: %q", what, out)
		}
		layers := b.FreezePaths(sandbox.Workspace, "/home/veyra/.cache/tool/deep")
		if out := h.Create(t, job, l, layers...).Must("cat mark ~/.cache/tool/deep/er/file"); out != "mark\nkept\n" {
			t.Errorf("the next sandbox sees %q of a disk without %s", out, what)
		}
	}
}

// manyNames: a directory of 60,000 ends the collection by its cap, whatever the
// names are for; in memory they end at the tmpfs's own limits.
func manyNames(t *testing.T, h Host) {
	for name, each := range map[string]string{
		"files":      `os.close(os.open(n, os.O_CREAT))`,
		"hard links": `os.link("one", n)`,
		"links":      `os.symlink("/dev/zero", n)`,
	} {
		program := func(dir string) string {
			return `import os
os.chdir("` + dir + `"); open("one", "w").close()
try:
    for i in range(60000):
        n = "n%d" % i
        ` + each + `
except OSError as e: print("errno", e.errno, i)
else: print("all")`
		}
		if name != "hard links" && !soaking() {
			continue // B05TooManyEntries has files
		}
		b := h.One(t)
		exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", program("/dev/shm")}, Timeout: patience})
		if h.Class == Kernel && (err != nil || exit.Code != 0) {
			t.Errorf("60,000 %s in memory: %+v %q, %v", name, exit, out, err)
		}
		b.Python(program("/workspace"))
		wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
	}
}

// holes: 512 MB of which one byte a megabyte is there. What counts is the size
// that a reader would see.
func holes(t *testing.T, h Host) {
	b := h.One(t)
	b.Python(`f = open("holes", "wb")
for i in range(512): f.seek(i << 20); f.write(b"x")
f.truncate(512 << 20)`)
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
}

// deepRemoved: what can't be collected can still be taken away.
func deepRemoved(t *testing.T, h Host) {
	h.needImage(t)
	if h.Left == nil {
		t.Skip("not applicable: the backend's test can't look from the host")
	}
	before := h.leftAtRest(t)
	l := h.Small()
	job := h.Job(t, l)
	b := h.Create(t, job, l)
	for _, dir := range []string{sandbox.Workspace, sandbox.Home, "/tmp"} {
		b.Python(`import os
os.chdir("` + dir + `")
for i in range(3000): os.mkdir("d" * 50); os.chdir("d" * 50)
open("end", "w").close()`)
	}
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindTooLarge)
	if err := job.Close(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "everything of it is gone", func() bool { return len(h.Left()) <= len(before) })
}

// circles: links are told by their text, and nothing is read through one.
func circles(t *testing.T, h Host) {
	got := collect(t, h, `ln -s b a; ln -s a b; ln -s . self; ln -s /proc/self/cwd cwd; ln -s /dev/zero zero
mkdir chain; python3 -c 'import os; [os.symlink(str(i + 1), "chain/%d" % i) for i in range(1000)]'
rm -r dir; ln -s /proc/self/cwd dir; ln -s dir/keep through`)
	targets := map[string]string{
		"a": "b", "b": "a", "self": ".", "cwd": "/proc/self/cwd", "zero": "/dev/zero", "dir": "/proc/self/cwd", "through": "dir/keep",
	}
	links := 0
	for _, c := range got {
		want, named := targets[c.Path]
		switch {
		case named && (c.Kind != treestream.Symlink || c.Content != want):
			t.Errorf("%+v, want a link to %s", c, want)
		case c.Kind == treestream.Symlink:
			links++
		case c.Path != "chain":
			t.Errorf("collected %+v", c)
		}
	}
	if links != 1000+len(targets) {
		t.Errorf("%d links of %d", links, 1000+len(targets))
	}
}

// diskLoadEnds: what waits for the disk all the time, by sync or past the cache,
// is ended by its deadline all the same, and its disk can be read out.
func diskLoadEnds(t *testing.T, h Host) {
	b := h.One(t)
	load := sandbox.Command{Argv: []string{"python3", "-c", `import mmap, os, random
block = mmap.mmap(-1, 4096)
if os.fork():
    f = os.open("syncs", os.O_CREAT | os.O_WRONLY)
    while True: os.pwrite(f, b"x" * 4096, 0); os.fsync(f)
f = os.open("direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
while True: os.pwritev(f, [block], random.randrange(2048) * 4096)`}}
	// On a slow machine a deadline can come before the load is up.
	wrote := ""
	for load.Timeout = time.Second; wrote != "direct\nsyncs\n"; load.Timeout *= 4 {
		exit, _ := b.Cmd(load)
		if wrote = b.Must("ls"); exit.Ended != sandbox.LimitTimeout || exit.Gone || load.Timeout > patience {
			t.Fatalf("a disk load of %s: %+v, it wrote %q", load.Timeout, exit, wrote)
		}
	}
	if err := b.Collect(ctxOf(t), io.Discard); err != nil {
		t.Errorf("collecting after it: %v", err)
	}
}
