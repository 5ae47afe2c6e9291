package sandboxtest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// crossingCases are about what leaves a sandbox, and about what a job leaves
// for the next one.
func crossingCases() map[string]func(*testing.T, Host) {
	return map[string]func(*testing.T, Host){
		"E03NoWriterOutlivesIt":    writersEnd,
		"E04LinkAboveAFile":        linkAbove,
		"E05NamesOfOneFile":        namesOfOneFile,
		"E06FifosAreNotOpened":     fifos,
		"E07ForgedMarks":           forgedMarks,
		"E07ClosedDirectories":     closedDirectories,
		"E08AttributesStayBehind":  attributesStay,
		"E09NamesAreBytes":         namesAreBytes,
		"E19NextJobSeesNothing":    nextJob,
		"J14OutputThroughPipes":    throughPipes,
		"E01RepositoryIsListed":    repositoryListed,
		"UnchangedTreeIsEmpty":     unchanged,
		"E21DirectoryBecomesAFile": shapes,
	}
}

// writersEnd: stopped, mapped, daemonised, or holding a file open: none writes
// after the collection has begun.
func writersEnd(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	b.Python(`import mmap, os, signal, time
open("mapped", "wb").write(bytes(4096)); open("log", "w").close()
m = mmap.mmap(os.open("mapped", os.O_RDWR), 4096)
held = os.open("log", os.O_WRONLY | os.O_APPEND)
for kind in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2): os.close(fd)
            if kind == 1: os.kill(os.getpid(), signal.SIGSTOP)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True: m[0] = (m[0] + 1) % 256; os.write(held, b"x"); time.sleep(0.0005)
        os._exit(0)
for i in range(6000):
    if os.stat("log").st_size: break
    time.sleep(0.01)`)
	var stream bytes.Buffer
	if err := b.Collect(ctxOf(t), &stream); err != nil {
		t.Fatal(err)
	}
	if n, err := alive(pid); err != nil || n != 0 {
		t.Errorf("%d processes live on after a collection: %v", n, err)
	}
	for _, c := range read(t, &stream) {
		if c.Path == "log" && c.Content == "" {
			t.Error("no writer ever wrote: the check is blind")
		}
	}
}

// linkAbove: what lies below a link that took a directory's place is nowhere in
// the change.
func linkAbove(t *testing.T, h Host) {
	got := collect(t, h, `rm -r dir old; mkdir /tmp/t; echo secret > /tmp/t/a; ln -s /tmp/t dir; ln -s /workspace/dir/a old; ln -s .git/config g`)
	wantChanges(t, got,
		change{treestream.Symlink, "dir", 0o777, "/tmp/t"},
		change{treestream.Symlink, "g", 0o777, ".git/config"},
		change{treestream.Symlink, "old", 0o777, "/workspace/dir/a"},
	)
}

// namesOfOneFile: each name of a file that has several, in the workspace or out
// of it, of the job's or of a layer below, is told and never read.
func namesOfOneFile(t *testing.T, h Host) {
	got := collect(t, h, `echo CANARY > ~/h; echo CANARY > /tmp/h; echo CANARY > one; echo single > single
ln one two; mkdir n; ln one n/three; ln keep again; ln dir/a dir/c
for far in ~/h /tmp/h /var/tmp/h /etc/passwd /dev/shm/x; do ln "$far" far 2>/dev/null && echo "linked $far"; done
ln one ~/out 2>/dev/null && echo linked out; mkdir moved; mv ~/h moved/h; true`)
	kinds := map[string]treestream.Kind{}
	for _, c := range got {
		kinds[c.Path] = c.Kind
		if c.Path != "moved/h" && strings.Contains(c.Content, "CANARY") {
			t.Errorf("a name of several was read: %+v", c)
		}
	}
	want := map[string]treestream.Kind{
		"again": treestream.Special, "dir": treestream.Dir, "dir/a": treestream.Special, "dir/c": treestream.Special,
		"keep": treestream.Special, "moved": treestream.Dir, "moved/h": treestream.File, "n": treestream.Dir,
		"n/three": treestream.Special, "one": treestream.Special, "single": treestream.File, "two": treestream.Special,
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// fifos: nobody waits for a writer, also where a FIFO took a file's place or
// somebody had one open.
func fifos(t *testing.T, h Host) {
	got := collect(t, h, `rm keep dir/a; mkfifo keep dir/a; for i in $(seq 50); do mkfifo p$i; done
(setsid sleep 600 > p1 &) ; (setsid sleep 600 < p2 > /dev/null &) ; sleep 0.05`)
	seen := 0
	for _, c := range got {
		if c.Path == "dir" {
			continue
		}
		if seen++; c.Kind != treestream.Special && h.Class == Kernel {
			t.Errorf("a FIFO is %+v", c)
		}
	}
	if h.Class == Kernel && seen != 52 {
		t.Errorf("%d FIFOs of 52 are told", seen)
	}
}

// forgedMarks: what an overlay reads as "gone" or "opaque" is the kernel's to
// write. A job that tries deletes nothing.
func forgedMarks(t *testing.T, h Host) {
	got := collect(t, h, `python3 - <<'END'
import os, stat
def tries(name, f):
    try: f()
    except OSError as e: print(name, e.errno)
    else: print(name, "ok")
for mark in ("opaque", "whiteout", "redirect", "metacopy", "origin"):
    tries(mark, lambda: os.setxattr("dir", "trusted.overlay." + mark, b"y"))
tries("node", lambda: os.mknod("keep2", stat.S_IFCHR | 0o600, 0))
open(".wh.keep", "w").close(); open("dir/.wh..wh..opq", "w").close()
END`)
	for _, c := range got {
		if c.Kind == treestream.Delete || c.Kind == treestream.Opaque {
			t.Errorf("a job's own mark counts: %+v", c)
		}
	}
	if !slices.ContainsFunc(got, func(c change) bool { return c.Path == ".wh.keep" && c.Kind == treestream.File }) {
		t.Errorf("a file that is called like a mark is no file: %+v", got)
	}
}

// closedDirectories: mode 000 hides nothing from the collection and stops no
// clean-up.
func closedDirectories(t *testing.T, h Host) {
	got := collect(t, h, `mkdir -p c/d; echo f > c/d/f; chmod 000 c/d/f c/d c; chmod 000 dir; chmod 111 old`)
	wantChanges(t, got,
		change{treestream.Dir, "c", 0, ""},
		change{treestream.Dir, "c/d", 0, ""},
		change{treestream.File, "c/d/f", 0, "f\n"},
		change{treestream.Dir, "dir", 0, ""},
		change{treestream.Dir, "old", 0o111, ""},
	)
}

// attributesStay: an access list and a note on a file are not part of a change,
// and don't stop one; what is only renamed comes whole.
func attributesStay(t *testing.T, h Host) {
	got := collect(t, h, `mv dir/a dir/renamed; chmod 1777 old; echo f > f; chmod 2755 f; python3 - <<'END'
import os, struct
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in ((1, 6, 0xffffffff), (2, 7, 1000), (4, 4, 0xffffffff), (16, 7, 0xffffffff), (32, 4, 0xffffffff)))
for name, value in (("user.note", b"1"), ("system.posix_acl_access", acl), ("security.capability", b"\1\0\0\2" + bytes(16))):
    try: os.setxattr("f", name, value)
    except OSError: pass
END`)
	var paths []string
	for _, c := range got {
		paths = append(paths, fmt.Sprintf("%d %s %s", c.Kind, c.Path, c.Content))
	}
	want := []string{
		fmt.Sprintf("%d dir ", treestream.Dir), fmt.Sprintf("%d dir/a ", treestream.Delete), fmt.Sprintf("%d dir/renamed a", treestream.File),
		fmt.Sprintf("%d f f\n", treestream.File), fmt.Sprintf("%d old ", treestream.Dir),
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("collected (-want +got):\n%s", diff)
	}
}

// oddNames are what a file system takes and a person would not expect.
var oddNames = []string{
	"a\nb", "a\rb", "a\tb", "a\x1b[2Jb", " edge", "edge ", `back\slash`, "\xff\xfe", "case", "CASE", "-rf", "--", "'\"", "a\u202eb",
	"*", "$(id)", "a;b", strings.Repeat("n", 255), "\u00e9", "e\u0301", "..x", "...", "#", "con", "a:b",
}

// namesAreBytes: names cross as they are, whatever is made of them later.
func namesAreBytes(t *testing.T, h Host) {
	var made strings.Builder
	for _, name := range oddNames {
		fmt.Fprintf(&made, "open(bytes.fromhex('%x'), 'w').close()\n", name)
	}
	got := collect(t, h, "python3 - <<'END'\n"+made.String()+"END")
	var names []string
	for _, c := range got {
		names = append(names, c.Path)
	}
	want := slices.Sorted(slices.Values(oddNames))
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// nextJob: whatever one job writes, wherever it may, the next one has a fresh
// disk and the image as it was.
func nextJob(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	const places = "/workspace /home/veyra /tmp /var/tmp /dev/shm"
	// The sum of the image's programs, to be the same for both.
	const sums = `for d in ` + places + `; do ls -A $d; done; cat /usr/bin/* 2>/dev/null | sha256sum; df --output=used,iused /workspace | tail -1`
	first := h.Job(t, l)
	b := h.Create(t, first, l)
	before := b.Must(sums)
	b.Must(`for d in ` + places + `; do mkdir -p $d/.cache/pip $d/usr/bin; echo POISON > $d/.cache/pip/x; echo POISON > $d/.bashrc; echo '#!/bin/sh' > $d/usr/bin/python3; done
for f in /usr/bin/python3 /usr/bin/git /etc/passwd /usr/lib/x; do echo POISON > $f; done 2>/dev/null
python3 -c "open('fill', 'wb').write(b'POISON' * 4000000)"`)
	layer := b.FreezePaths(sandbox.Workspace)
	h.Create(t, first, l, layer...).Must("grep -q POISON .bashrc")
	if err := first.Close(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
	second := h.Create(t, h.Job(t, l), l)
	if diff := cmp.Diff(before, second.Must(sums)); diff != "" {
		t.Errorf("the next job's sandbox differs (-first +second):\n%s", diff)
	}
	if out := second.Must(`cd /; env | grep -i poison; grep -rl POISON ` + places + ` 2>/dev/null; python3 -c 'print(1)'`); out != "1\n" {
		t.Errorf("the next job sees %q", out)
	}
}

// throughPipes: PID 1's streams are pipes, so that nothing written is lost or
// written over, however it is mixed.
func throughPipes(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	for fd := range 3 {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		if err != nil || (!strings.HasPrefix(target, "pipe:") && h.Class == Kernel) || strings.HasPrefix(target, "/") && target != "/dev/null" {
			t.Errorf("descriptor %d of the sandbox is %q, %v", fd, target, err)
		}
	}
	var stdout, stderr bytes.Buffer
	want := sha256.New()
	for i := range 20_000 {
		fmt.Fprintf(want, "%059d\n", i)
	}
	program := `import os
for i in range(20000):
    line = b"%059d\n" % i
    os.write(1, line); os.write(2, line)`
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{"python3", "-c", program}, Stdout: &stdout, Stderr: &stderr})
	if exit.Code != 0 || sha256.Sum256(stdout.Bytes()) != [32]byte(want.Sum(nil)) || sha256.Sum256(stderr.Bytes()) != [32]byte(want.Sum(nil)) {
		t.Errorf("%+v: %d and %d bytes came of %d each, or others", exit, stdout.Len(), stderr.Len(), 60*20_000)
	}
	for i := range 3 {
		// A program that seeks or truncates its output writes over nothing.
		out := b.Must(fmt.Sprintf("echo begin %d; python3 -c 'import os\ntry: os.ftruncate(1, 0)\nexcept OSError: pass\ntry: os.lseek(1, 0, 0)\nexcept OSError: pass\nos.write(1, b\"end\\n\")'", i))
		if want := fmt.Sprintf("begin %d\nend\n", i); out != want {
			t.Errorf("output is %q, want %q", out, want)
		}
	}
}

// repositoryListed: a .git is an entry like others here; it is the supervisor
// who drops it, and nothing reads it on the way.
func repositoryListed(t *testing.T, h Host) {
	got := collect(t, h, `mkdir -p .git/hooks dir/.git; echo '[core] fsmonitor = "touch /workspace/RAN"' > .git/config
printf '#!/bin/sh\ntouch /workspace/RAN\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout; echo 'gitdir: /' > dir/.git/x`)
	for _, c := range got {
		if strings.Contains(c.Path, "RAN") || c.Path != "dir" && !strings.Contains(c.Path, ".git") {
			t.Errorf("collected %+v", c)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d entries: %+v", len(got), got)
	}
}

// unchanged: a job that changed nothing has an empty change, whatever it did
// elsewhere.
func unchanged(t *testing.T, h Host) {
	got := collect(t, h, "cat dir/* keep > /tmp/all; echo x > n; rm n; mkdir m; rmdir m; (cd /tmp && mkfifo f && ln -s / l)")
	wantChanges(t, got)
}

// shapes: a directory in a file's place and the reverse, over a layer below.
func shapes(t *testing.T, h Host) {
	got := collect(t, h, "rm keep; mkdir keep; echo in > keep/in; rm -r dir; echo file > dir; rm old/x; mkdir old/x")
	wantChanges(t, got,
		change{treestream.File, "dir", 0o644, "file\n"},
		change{treestream.Opaque, "keep", 0o755, ""},
		change{treestream.File, "keep/in", 0o644, "in\n"},
		change{treestream.Dir, "old", 0o755, ""},
		change{treestream.Opaque, "old/x", 0o755, ""},
	)
}
