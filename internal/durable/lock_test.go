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

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

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
			for range 300 {
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
					// Opening and closing files gives others their turn.
					for range 20 {
						_, _ = os.ReadDir(filepath.Dir(path))
					}
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

// TestRemoveLeavesASuccessorsFile: whoever lost the name must not unlink the
// file of the next holder.
func TestRemoveLeavesASuccessorsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Lock(path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("the second lock is lost: %v", err)
	}
	if err := second.Remove(); err != nil {
		t.Fatal(err)
	}
}
