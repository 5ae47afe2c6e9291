package main_test

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// sandboxed runs one command with `sandbox run` under strict, once the host has
// room for it: other tests book memory and disk at the same time.
func sandboxed(t *testing.T, stdin string, args ...string) (got said) {
	t.Helper()
	needSandboxes(t)
	args = append([]string{"sandbox", "run", "--policy", "strict", "--config", frugal(t)}, args...)
	until(t, "the host has room for a sandbox", func() bool {
		got = commandIn(t, nil, stdin, args...)
		return got.code != 125 || !strings.Contains(got.err, string(sandbox.KindNoRoom))
	})
	return got
}

// TestSandboxRunStatus: the command's own status, and ours where there is none.
func TestSandboxRunStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"success", []string{"--", "true"}, 0, ""},
		{"the command's own", []string{"--", "sh", "-c", "exit 7"}, 7, ""},
		{"not found", []string{"--", "no-such-program"}, 127, ""},
		{"not executable", []string{"--", "/etc/passwd"}, 126, ""},
		{"ended by a signal", []string{"--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"timed out", []string{"--timeout", "500ms", "--", "sleep", "1000"}, 124, "the command timed out"},
		{"no image", []string{"--image", "no-such-image", "--", "true"}, 125, "image"},
		{"no directory", []string{"-C", "/no/such/directory", "--", "true"}, 125, "/no/such/directory"},
		{"wrong usage", []string{"--no-such-flag", "--", "true"}, 2, "no-such-flag"},
		{"no command", nil, 2, "needs a command"},
		{"network", []string{"--network", "registries", "--", "true"}, 2, "--network"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := sandboxed(t, "", c.args...).want(t, c.code)
			if !strings.Contains(got.err, c.stderr) || strings.Count(got.err, "\n") > 1 {
				t.Errorf("stderr %q: want one line with %q", got.err, c.stderr)
			}
		})
	}
}

// TestSandboxRunLimits: each limit ends in its named outcome. It runs before the
// parallel tests, whose settings count on the disk that it fills for a while.
func TestSandboxRunLimits(t *testing.T) {
	const hog = "b=[]\nwhile True: b.append(bytes([1]) * (64<<20))"
	for _, c := range []struct {
		name, limit string
		code        int
		script      string
	}{
		{"memory", "oom", 137, "exec python3 -c '" + hog + "'"},
		{"memory of a child, command ends well", "oom", 0, "python3 -c '" + hog + "'; exit 0"},
		{"pids", "pids", 2, "for i in $(seq 600); do sleep 30 & done"},
		// It waits for init, which looks at the disk now and then, and for its turn on a busy host.
		{"disk", "disk", 3, "head -c 200G /dev/zero >/workspace/fill 2>/dev/null; sleep 3; rm -f /workspace/fill; exit 3"},
		{"inodes", "inodes", 4, "python3 -c '\nimport os\ntry:\n  for i in range(10**7): os.mknod(str(i))\nexcept OSError: pass'; sleep 0.4; exit 4"},
		{"output", "output", 137, "exec cat /dev/zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := limited(t, c.script)
			if got.code != c.code || !strings.Contains(got.err, "limit "+c.limit) {
				t.Errorf("exit status %d, want %d with the limit %s named; stderr: %.600s", got.code, c.code, c.limit, got.err)
			}
		})
	}
}

// limited drops a command's output, which may be large.
func limited(t *testing.T, script string) said {
	t.Helper()
	got := sandboxed(t, "", "--", "sh", "-c", script)
	got.out = fmt.Sprintf("%d bytes", len(got.out))
	return got
}

// TestSandboxRunStreams: bytes pass as they are, both ways, in two streams.
func TestSandboxRunStreams(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 1 << 18 {
		all.WriteByte(byte(i ^ i>>8))
	}
	got := sandboxed(t, all.String(), "--", "sh", "-c", "cat; printf 'to \\377 stderr' >&2").want(t, 0)
	if got.out != all.String() {
		t.Errorf("%d bytes came back of %d, or others", len(got.out), all.Len())
	}
	if got.err != "to \xff stderr" {
		t.Errorf("stderr %q", got.err)
	}
}

// TestE20SandboxRunDirectory: DIR is copied in and stays as it is; what the command
// changed can be had.
func TestE20SandboxRunDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "project")
	writeFile(t, filepath.Join(dir, "calc.py"), "def add(a, b):\n    return a + b\n", 0o644)
	writeFile(t, filepath.Join(dir, "gone.txt"), "gone\n", 0o644)
	writeFile(t, filepath.Join(dir, "secret.txt"), "only root reads this\n", 0o600)
	writeFile(t, filepath.Join(dir, "sub", "run.sh"), "#!/bin/sh\necho ran\n", 0o755)
	writeFile(t, filepath.Join(dir, "test_calc.py"), "import unittest, calc\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(calc.add(2, 3), 5)\n", 0o644)
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	before := listing(t, dir)

	sandboxed(t, "", "-C", dir, "--", "python3", "-m", "unittest").want(t, 0)
	changes := filepath.Join(t.TempDir(), "changes")
	got := sandboxed(t, "", "-C", dir, "--changes", changes, "--", "sh", "-c",
		"sub/run.sh && readlink link && echo changed >calc.py && rm gone.txt && mkdir new && echo new >new/file && ln -s /etc/passwd new/link && chmod +x new/file").want(t, 0)
	if got.out != "ran\n/etc/shadow\n" {
		t.Errorf("stdout %q", got.out)
	}
	if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
		t.Errorf("the directory was changed (-before +after):\n%s", diff)
	}
	want := map[string]string{"calc.py": "-rw-r--r-- changed\n", "new": "drwxr-xr-x ", "new/file": "-rwxr-xr-x new\n"}
	if diff := cmp.Diff(want, listing(t, changes)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	for _, listed := range []string{`"gone.txt"`, `"new/link"`} {
		if !strings.Contains(got.err, listed) {
			t.Errorf("stderr does not list %s: %s", listed, got.err)
		}
	}
	sandboxed(t, "", "-C", dir, "--changes", changes, "--", "true").want(t, 2)
	sandboxed(t, "", "-C", dir, "--changes", filepath.Join(dir, "inside"), "--", "true").want(t, 2)
}

// listing is a directory's content with modes.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case info.Mode().IsRegular():
			text = readFile(t, path)
		case info.Mode()&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
		}
		name, _ := filepath.Rel(dir, path)
		all[name] = info.Mode().String() + " " + text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestA14SandboxRunHasNoTerminal: on an operator's terminal a command gets pipes
// all the same, and can't type into what it never sees.
func TestA14SandboxRunHasNoTerminal(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	near, far := terminal(t)
	shown := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(near) // EIO once the far end is closed
		shown <- string(text)
	}()
	config := frugal(t)
	var said strings.Builder
	until(t, "the host has room for a sandbox", func() bool {
		said.Reset()
		cmd := exec.CommandContext(t.Context(), house.daemon, "sandbox", "run", "--policy", "strict", "--config", config, "--", "sh", "-c",
			"test -t 0 || test -t 1 || test -t 2 || echo none; (echo typed > /dev/tty) 2>/dev/null || echo closed; cat /proc/self/fdinfo/0 > /dev/null; readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2")
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ(), far, &said, far
		return cmd.Run() == nil
	})
	_ = far.Close()
	if on := <-shown; strings.Contains(on, "typed") {
		t.Errorf("a command wrote to the operator's terminal: %q", on)
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if len(lines) != 5 || lines[0] != "none" || lines[1] != "closed" {
		t.Fatalf("a command on a terminal sees %q", lines)
	}
	for _, link := range lines[2:] {
		if !strings.HasPrefix(link, "pipe:") && link != "/dev/null" {
			t.Errorf("a command on a terminal has %q", link)
		}
	}
}
