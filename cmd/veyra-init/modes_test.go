package main_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/internal/initwire/initwiretest"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// box runs init's modes where they belong: inside, as uid 1000.
type box struct {
	t *testing.T
	s *runner.Session
}

func open(t *testing.T) box {
	t.Helper()
	i := initwiretest.Start(t, initwiretest.Options{})
	s, _, err := runner.NewSession(t.Context(), i.Stdin, i.Stdout, policies.Limits{},
		func(context.Context) (sandbox.Counters, error) { return sandbox.Counters{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return box{t, s}
}

func (b box) run(stdin string, argv ...string) (int, string) {
	b.t.Helper()
	var out bytes.Buffer
	exit, err := b.s.Run(b.t.Context(), sandbox.Command{Argv: argv, Stdin: strings.NewReader(stdin), Stdout: &out})
	if err != nil {
		b.t.Fatalf("running %q: %v", argv, err)
	}
	return exit.Code, out.String()
}

func (b box) sh(script string) string {
	b.t.Helper()
	code, out := b.run("", "sh", "-c", script)
	if code != 0 {
		b.t.Fatalf("script %q: %d, %s", script, code, out)
	}
	return out
}

func (b box) mode(stdin string, args ...string) (int, string) {
	b.t.Helper()
	return b.run(stdin, append([]string{sandbox.InitPath}, args...)...)
}

func TestWriteAndRead(t *testing.T) {
	b := open(t)
	content := strings.Repeat("0123456789", 30_000)
	if code, out := b.mode(content, "write", "/workspace/a/b/c.txt"); code != 0 || out != "" {
		t.Fatalf("write: %d, %q", code, out)
	}
	if code, out := b.mode("", "read", "/workspace/a/b/c.txt", "300000"); code != 0 || out != content {
		t.Errorf("read: %d, %d bytes", code, len(out))
	}
	if out := b.sh("stat -c '%a %u:%g' a a/b a/b/c.txt"); out != "755 1000:1000\n755 1000:1000\n644 1000:1000\n" {
		t.Errorf("modes %q", out)
	}
	b.sh("chmod +x a/b/c.txt; ln a/b/c.txt hard")
	b.mode("new", "write", "/workspace/a/b/c.txt")
	if out := b.sh("stat -c %a a/b/c.txt; cat a/b/c.txt; wc -c < hard"); out != "755\nnew300000\n" {
		t.Errorf("after writing again: %q", out)
	}
}

func TestModesRefuse(t *testing.T) {
	b := open(t)
	b.sh("echo secret > target; ln -s target link; ln -s /workspace dirlink; mkdir dir; mkfifo fifo; echo 12345 > file; ln -s /etc etc")
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"no arguments", []string{"write"}, initwire.ModeUsage},
		{"unknown", []string{"exec", "/bin/sh"}, initwire.ModeUsage},
		{"bad limit", []string{"read", "/workspace/file", "-1"}, initwire.ModeUsage},
		{"read outside", []string{"read", "/etc/passwd"}, initwire.ModeRefused},
		{"read unclean", []string{"read", "/workspace/../etc/passwd"}, initwire.ModeRefused},
		{"read relative", []string{"read", "file"}, initwire.ModeRefused},
		{"read the place itself", []string{"read", "/workspace"}, initwire.ModeRefused},
		{"read link", []string{"read", "/workspace/link"}, initwire.ModeRefused},
		{"read through link", []string{"read", "/workspace/dirlink/file"}, initwire.ModeRefused},
		{"read out by link", []string{"read", "/workspace/etc/passwd"}, initwire.ModeRefused},
		{"read directory", []string{"read", "/workspace/dir"}, initwire.ModeRefused},
		{"read FIFO", []string{"read", "/workspace/fifo"}, initwire.ModeRefused},
		{"read missing", []string{"read", "/workspace/none"}, initwire.ModeNotFound},
		{"read large", []string{"read", "/workspace/file", "5"}, initwire.ModeTooLarge},
		{"write outside", []string{"write", "/etc/x"}, initwire.ModeRefused},
		{"write link", []string{"write", "/workspace/link"}, initwire.ModeRefused},
		{"write through link", []string{"write", "/workspace/dirlink/x"}, initwire.ModeRefused},
		{"write directory", []string{"write", "/workspace/dir"}, initwire.ModeRefused},
		{"write below file", []string{"write", "/workspace/file/x"}, initwire.ModeRefused},
		{"unpack outside", []string{"unpack", "/"}, initwire.ModeRefused},
		{"unpack through link", []string{"unpack", "/workspace/dirlink"}, initwire.ModeRefused},
		{"unpack rubbish", []string{"unpack", "/workspace/dir"}, initwire.ModeFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out := b.mode("rubbish", c.args...)
			if code != c.code || !strings.HasPrefix(out, "veyra-init: ") {
				t.Errorf("status %d, want %d: %q", code, c.code, out)
			}
		})
	}
	if out := b.sh("cat target; find dir -type f | wc -l"); out != "secret\n0\n" {
		t.Errorf("something was written: %q", out)
	}
}

func tree(t *testing.T, links bool, entries ...treestream.Entry) string {
	t.Helper()
	var out bytes.Buffer
	w := treestream.NewWriter(&out, treestream.Options{Links: links})
	for _, e := range entries {
		if err := w.Add(e, strings.NewReader(strings.Repeat("x", int(e.Size)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func file(path string, mode uint32, size int64) treestream.Entry {
	return treestream.Entry{Kind: treestream.File, Path: path, Mode: mode, Size: size}
}

func of(kind treestream.Kind, path string) treestream.Entry {
	return treestream.Entry{Kind: kind, Path: path}
}

const list = `find . -mindepth 1 -printf '%y %m %s %P %l\n' | sed 's/ *$//; s/^d \([0-9]*\) [0-9]*/d \1/' | LC_ALL=C sort -k4; `

func TestUnpackChangesATree(t *testing.T) {
	b := open(t)
	b.sh(`mkdir -p kept/deep opaque/old/er gone/a file.d; echo 1 > kept/one; echo 2 > kept/two; echo 3 > opaque/old/er/x
		echo 4 > gone/a/b; ln -s /etc linkdir; echo 5 > dirfile; ln -s kept/one filelink; echo 6 > file.d/x; chmod 500 gone/a`)
	ctx := tree(t, false,
		of(treestream.Dir, "dirfile"), file("dirfile/new", 0o644, 2),
		file("file.d", 0o6775, 3), file("filelink", 0o600, 4),
		of(treestream.Delete, "kept/none/below"), file("kept/two", 0o644, 70_000),
		of(treestream.Dir, "linkdir"), file("linkdir/passwd", 0o644, 0),
		of(treestream.Delete, "missing/x"), of(treestream.Opaque, "opaque"), file("opaque/new/x", 0o755, 1),
	)
	if code, out := b.mode(ctx, "unpack", "/workspace"); code != 0 {
		t.Fatalf("unpack: %d, %s", code, out)
	}
	want := strings.TrimLeft(`
d 755 dirfile
f 644 2 dirfile/new
f 755 3 file.d
f 644 4 filelink
d 755 gone
d 500 gone/a
f 644 2 gone/a/b
d 755 kept
d 755 kept/deep
f 644 2 kept/one
f 644 70000 kept/two
d 755 linkdir
f 644 0 linkdir/passwd
d 755 opaque
d 755 opaque/new
f 755 1 opaque/new/x
`, "\n")
	got := strings.Split(b.sh(list), "\n")
	if diff := cmp.Diff(sorted(want), sorted(strings.Join(got, "\n"))); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func sorted(text string) map[string]bool {
	set := map[string]bool{}
	for line := range strings.Lines(text + "\n") {
		if line = strings.TrimSpace(line); line != "" {
			set[line] = true
		}
	}
	return set
}

func TestUnpackDeletesBottomUp(t *testing.T) {
	b := open(t)
	b.sh("mkdir -p a/b/c d; echo > a/b/c/f; ln -s /etc a/b/l; ln -s / d/root")
	if code, out := b.mode(tree(t, false, of(treestream.Delete, "a"), of(treestream.Delete, "d/root/etc/hostname")), "unpack", "/workspace"); code != 0 {
		t.Fatalf("unpack: %d, %s", code, out)
	}
	if out := b.sh("ls -A; test -e /etc/hostname"); out != "d\n" {
		t.Errorf("left: %q", out)
	}
}

func TestUnpackKeepsTimes(t *testing.T) {
	b := open(t)
	old := file("old", 0o644, 1)
	old.MTime = 1_000_000_000_123_456_789
	b.mode(tree(t, false, file("new", 0o644, 1), old), "unpack", "/workspace/made/on/the/way")
	// File times come from the kernel's coarse clock, so "newer than the start of
	// the test" is no sure thing within one of its ticks.
	if out := b.sh("cd made/on/the/way; stat -c %.9Y old; find new -mmin -60"); out != "1000000000.123456789\nnew\n" {
		t.Errorf("times %q", out)
	}
}

func TestUnpackMakesLinksOnlyWhenAllowed(t *testing.T) {
	b := open(t)
	link := treestream.Entry{Kind: treestream.Symlink, Path: "l", Target: "../../etc/passwd"}
	if code, _ := b.mode(tree(t, false, link), "unpack", "/workspace"); code != initwire.ModeRefused {
		t.Errorf("status %d for a link that is not allowed", code)
	}
	if code, out := b.mode(tree(t, true, link), "unpack", "/workspace"); code != 0 {
		t.Errorf("status %d for a link that is allowed: %s", code, out)
	}
	if out := b.sh("readlink l"); out != "../../etc/passwd\n" {
		t.Errorf("target %q", out)
	}
	if code, _ := b.mode(tree(t, true, of(treestream.Special, "fifo")), "unpack", "/workspace"); code != initwire.ModeRefused {
		t.Errorf("status %d for a special file", code)
	}
	// A link that was there leads nowhere: E04.
	b.sh("ln -s /tmp out")
	if code, _ := b.mode(tree(t, true, file("out/x", 0o644, 1)), "unpack", "/workspace"); code != initwire.ModeRefused {
		t.Errorf("status %d for a file below a link", code)
	}
	if out := b.sh("ls /tmp"); out != "" {
		t.Errorf("written through the link: %q", out)
	}
}

func TestUnpackRefusesACutStream(t *testing.T) {
	b := open(t)
	whole := tree(t, false, file("a", 0o644, 1000))
	if code, _ := b.mode(whole[:len(whole)-1], "unpack", "/workspace"); code != initwire.ModeFailed {
		t.Errorf("status %d", code)
	}
}
