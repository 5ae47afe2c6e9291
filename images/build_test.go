package images_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// TestPythonImage builds the real image when the host's store lacks it, which
// later builds, tests and the demo then share.
func TestPythonImage(t *testing.T) {
	needRoot(t)
	store, err := images.Open(filepath.Join(cmp.Or(os.Getenv("VEYRA_CACHE_DIR"), "/var/cache/veyra-sandboxd"), "images"))
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Ensure(t.Context(), "python", func(line string) { t.Log(line) })
	if errors.Is(err, images.ErrToolMissing) {
		t.Skipf("not applicable: no image in the store and no way to build one: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.Root(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/python3", "usr/bin/python", "usr/bin/pytest", "usr/bin/pip", "usr/bin/git", "home/veyra", "workspace", "etc/ssl/certs/ca-certificates.crt"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("in the image: %v", err)
		}
	}
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(passwd), "\nveyra:x:1000:1000::/home/veyra:") {
		t.Errorf("passwd without a line for uid 1000: %v", err)
	}
	if image.Suite == "" || image.Suite == "stable" || image.Tools["python3"] == "" || image.Toolchain != "python" {
		t.Errorf("record: %+v", image)
	}
	expectPlainTree(t, root)
}

// expectPlainTree wants nothing that could act for another user, and byte code
// for the library that holds whatever the mtime of its source: a read-only root
// never gets any, and compiling takes longer than a small project's tests.
func expectPlainTree(t *testing.T, root string) {
	t.Helper()
	compiled := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode()
		if mode&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 || mode.IsRegular() && mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v", path, mode)
		}
		if strings.HasSuffix(path, ".pyc") {
			compiled++
			expectUnchecked(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if compiled < 500 {
		t.Errorf("%d compiled files", compiled)
	}
}

// expectUnchecked reads byte code's head (PEP 552): four bytes that name the
// version, then flags, of which 1 alone means "by hash, never checked".
func expectUnchecked(t *testing.T, path string) {
	t.Helper()
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(code) < 8 || binary.LittleEndian.Uint32(code[4:]) != 1 {
		t.Errorf("%s goes by its source's mtime; if the image is older than its recipe, build it anew", path)
	}
}

func TestMissingProgramSaysWhatToDo(t *testing.T) {
	_, err := images.FindProgram("no-such-program")
	if !errors.Is(err, images.ErrToolMissing) || !strings.Contains(err.Error(), "make setup") {
		t.Errorf("finding: %v", err)
	}
}

// script stands in for mmdebstrap.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchiveOfABuildLosesItsDevices(t *testing.T) {
	needRoot(t)
	work := t.TempDir()
	stream := archive(t, base(special("./dev/null", 'c'), dir("./dev/pts"), file("./etc/more", "content")))
	if err := os.WriteFile(filepath.Join(work, "made.tar"), stream, 0o600); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(work, "layer.tar.gz")
	program := script(t, `cat "$VEYRA_WORK/made.tar"`)
	if err := images.RunMmdebstrap(t.Context(), program, work, nil, layer); err != nil {
		t.Fatal(err)
	}
	digest, err := images.WriteLayoutTar(filepath.Join(work, "layout"), layer)
	if err != nil {
		t.Fatal(err)
	}
	store := openOnly(t)
	if _, err := store.Import(t.Context(), filepath.Join(work, "layout"), "test", digest); err != nil {
		t.Fatal(err)
	}
	root, err := store.Root(digest)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for name := range tree(t, root) {
		if strings.HasPrefix(name, "dev") || strings.HasPrefix(name, "etc/") {
			found[name] = true
		}
	}
	want := map[string]bool{"dev": true, "etc/name": true, "etc/more": true}
	if diff := gocmp.Diff(want, found); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestFailedBuildSaysWhatTheProgramSaid(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct{ script, want string }{
		"fails at once":      {`echo "E: no mirror" >&2; exit 3`, "E: no mirror"},
		"fails in between":   {`head -c 700 /dev/zero | tr '\0' x; echo "E: later" >&2; exit 1`, "packing layer"},
		"fails at the end":   {`cat "$VEYRA_WORK/made.tar"; echo "E: at last" >&2; exit 1`, "E: at last"},
		"is cut off":         {`head -c 1700 "$VEYRA_WORK/made.tar"; echo "E: cut" >&2; exit 1`, "E: cut"},
		"is cut off quietly": {`head -c 1700 "$VEYRA_WORK/made.tar"`, "cut off"},
		"says too much":      {`yes E: long | head -c 100000 >&2; echo "E: last" >&2; exit 1`, "E: last"},
	} {
		t.Run(name, func(t *testing.T) {
			work := t.TempDir()
			if err := os.WriteFile(filepath.Join(work, "made.tar"), archive(t, base()), 0o600); err != nil {
				t.Fatal(err)
			}
			err := images.RunMmdebstrap(t.Context(), script(t, c.script), work, nil, filepath.Join(work, "layer"))
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 5000 {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// A build that is called off ends with all that it started: the FIFO ends when
// its last writer does.
func TestCancelledBuildEndsItsProcesses(t *testing.T) {
	needRoot(t)
	work := t.TempDir()
	alive := filepath.Join(work, "alive")
	if err := unix.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		fifo, err := os.Open(alive)
		if err == nil {
			_, err = io.ReadFull(fifo, make([]byte, len("ready\n")))
		}
		cancel()
		if err == nil {
			_, err = io.Copy(io.Discard, fifo)
		}
		ended <- err
	}()
	program := script(t, `(echo ready; exec sleep 600) >"$VEYRA_WORK/alive" & wait`)
	err := images.RunMmdebstrap(ctx, program, work, nil, filepath.Join(work, "layer"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled build: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("watching the processes: %v", err)
	}
}

// What a build mounts is not seen on the host, or a killed one would leave it.
func TestMountsOfABuildStayInside(t *testing.T) {
	needRoot(t)
	work := t.TempDir()
	stand := script(t, `mount -t tmpfs none "$VEYRA_WORK" && grep -c "$VEYRA_WORK" /proc/self/mounts >&2; exit 1`)
	err := images.RunMmdebstrap(t.Context(), stand, work, nil, filepath.Join(work, "layer"))
	if err == nil || !strings.Contains(err.Error(), `"1"`) {
		t.Errorf("mounting inside: %v", err)
	}
	if strings.Contains(mounts(t), work) {
		t.Error("the mount is seen on the host")
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFactsAreReadAsWritten(t *testing.T) {
	if got := images.Codename("NAME=x\nVERSION_CODENAME=\"trixie\"\n"); got != "trixie" {
		t.Errorf("code name %q", got)
	}
	for _, bad := range []string{"", "VERSION_CODENAME=\n", "VERSION_CODENAME=../../x\n", "VERSION_CODENAME=a b\n"} {
		if got := images.Codename(bad); got != "" {
			t.Errorf("code name of %q: %q", bad, got)
		}
	}
	got, err := images.Versions("git 1:2.47.3-0+deb13u1\npython3 3.13.5-1\nevil 1\x1b[0m\n", []string{"git", "python3"})
	if diff := gocmp.Diff(map[string]string{"git": "1:2.47.3-0+deb13u1", "python3": "3.13.5-1"}, got); diff != "" || err != nil {
		t.Errorf("versions %v (-want +got):\n%s", err, diff)
	}
	for _, wanted := range []string{"absent", "evil"} {
		if _, err := images.Versions("evil 1\x1b[0m\n", []string{wanted}); err == nil {
			t.Errorf("versions of %s: no error", wanted)
		}
	}
}
