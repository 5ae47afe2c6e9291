package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// holdEnv makes this test binary a process that holds a lock.
const holdEnv = "DURABLE_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdEnv); path != "" {
		hold(path)
		return
	}
	os.Exit(m.Run())
}

// hold takes the lock, says so, and keeps it until its stdin ends.
func hold(path string) {
	if _, err := durable.Lock(path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestWriteFileReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := durable.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := durable.ReadFile(path, 100)
		if err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	checkNames(t, dir, "state")
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func checkNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestWriteFileIgnoresUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "f")
	if err := durable.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestWriteFileFailsClean has a directory where the file should go: the rename
// fails and nothing may be left behind.
func TestWriteFileFailsClean(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "state"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	checkNames(t, dir, "state")
	err := durable.WriteFile(filepath.Join(dir, "none", "f"), nil, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v", err)
	}
}

// TestWriteFileConcurrently checks that readers see one of the texts, whole.
func TestWriteFileConcurrently(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	texts := []string{strings.Repeat("a", 5000), strings.Repeat("b", 9000)}
	var writers sync.WaitGroup
	for _, text := range texts {
		writers.Go(func() {
			for range 20 {
				if err := durable.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	got, err := durable.ReadFile(path, 1<<20)
	if err != nil || string(got) != texts[0] && string(got) != texts[1] {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	checkNames(t, dir, "f")
}

func TestSweepRemovesTemporariesOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".durable-123", ".other", "state"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := durable.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, ".other", "state")
}

func TestReadFileRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(file, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := map[string]error{
		file: durable.ErrTooLarge, link: syscall.ELOOP, fifo: fs.ErrInvalid, dir: fs.ErrInvalid,
		filepath.Join(dir, "none"): fs.ErrNotExist,
	}
	for path, want := range tests {
		if _, err := durable.ReadFile(path, 4); !errors.Is(err, want) {
			t.Errorf("%s: error = %v, want %v", filepath.Base(path), err, want)
		}
	}
	if got, err := durable.ReadFile(file, 5); err != nil || string(got) != "12345" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for range 2 {
		if err := durable.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("mode %v, %v", info, err)
	}
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, below := range []string{file, filepath.Join(file, "d")} {
		if err := durable.MkdirAll(below, 0o700); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: error = %v", below, err)
		}
	}
}

func TestRemoveTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReserveFileAllocates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reserve")
	const size = 1 << 20
	for range 2 {
		if err := durable.ReserveFile(path, size); err != nil {
			t.Fatal(err)
		}
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Size != size || stat.Blocks*512 < size {
			t.Errorf("size %d, %d allocated", stat.Size, stat.Blocks*512)
		}
	}
}

func TestReserveFileFailsClean(t *testing.T) {
	dir := t.TempDir()
	if err := durable.ReserveFile(filepath.Join(dir, "reserve"), 1<<60); err == nil {
		t.Error("an exbibyte was reserved")
	}
	checkNames(t, dir)
}

func TestLockExcludesAndNamesHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = durable.Lock(path)
	var other *durable.HeldError
	if !errors.Is(err, durable.ErrLocked) || !errors.As(err, &other) || other.PID != os.Getpid() {
		t.Errorf("second lock: %v", err)
	}
	for range 2 {
		if err := held.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	again, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file is still there: %v", err)
	}
}

// TestLockEndsWithItsProcess kills a holder and expects the lock at once.
func TestLockEndsWithItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), holdEnv+"="+path)
	in, err1 := child.StdinPipe()
	out, err2 := child.StdoutPipe()
	if err := errors.Join(err1, err2, child.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	line := make([]byte, 5)
	if _, err := out.Read(line); err != nil || !bytes.Equal(line, []byte("held\n")) {
		t.Fatalf("child says %q, %v", line, err)
	}
	_, err = durable.Lock(path)
	var held *durable.HeldError
	if !errors.As(err, &held) || held.PID != child.Process.Pid {
		t.Errorf("error = %v, want held by %d", err, child.Process.Pid)
	}
	if want := fmt.Sprintf("held by process %d", child.Process.Pid); !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	lock, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Unlock()
}

// TestLockIsNotThroughALink: a link in a shared directory must not make us
// write our process id somewhere else.
func TestLockIsNotThroughALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "lock")
	if err := errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Lock(link); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("error = %v", err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "kept" {
		t.Errorf("target holds %q, %v", got, err)
	}
}

// TestLockTravelsWithItsDescriptor: the lock is the file's, so a duplicate keeps
// it when the first descriptor is closed.
func TestLockTravelsWithItsDescriptor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := syscall.Dup(int(lock.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Lock(path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("error = %v", err)
	}
	if err := syscall.Close(copied); err != nil {
		t.Fatal(err)
	}
	again, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Unlock()
}

func TestLockWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := durable.LockWait(ended, path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("error = %v", err)
	}
	got := make(chan error)
	go func() {
		l, err := durable.LockWait(t.Context(), path)
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	// The holder unlinks the file: the waiter must take the new one.
	if err := held.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestLockHasOneHolder lets many take, use and unlink one lock.
func TestLockHasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	inside := make(chan struct{}, 1)
	var takers sync.WaitGroup
	for range 8 {
		takers.Go(func() {
			for range 50 {
				l, err := durable.Lock(path)
				if errors.Is(err, durable.ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case inside <- struct{}{}:
					<-inside
				default:
					t.Error("two holders")
				}
				if err := l.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	takers.Wait()
}
