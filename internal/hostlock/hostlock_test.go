package hostlock_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
)

func TestSecondHolderIsRefused(t *testing.T) {
	root := hostlocktest.Root(t)
	first, err := hostlock.Take(root, "lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hostlock.Take(root, "lock"); !errors.Is(err, hostlock.ErrHeld) {
		t.Errorf("second holder: %v", err)
	}
	if err := first.Note([]byte("note")); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(root.Name(), "lock")); err != nil || string(raw) != "note" {
		t.Errorf("note reads %q, %v", raw, err)
	}
	first.Release()
	first.Release()
	if entries, err := os.ReadDir(root.Name()); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	again, err := hostlock.Take(root, "lock")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again.Release()
}

// TestNeverTwoHolders has many take, unlink and let go of one name.
func TestNeverTwoHolders(t *testing.T) {
	root := hostlocktest.Root(t)
	var holders, taken atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				lock, err := hostlock.Take(root, "lock")
				if errors.Is(err, hostlock.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				taken.Add(1)
				holders.Add(-1)
				lock.Release()
			}
		})
	}
	all.Wait()
	if taken.Load() == 0 {
		t.Error("nobody ever held the lock")
	}
}

// TestDirectoryThatOthersRemoveIsMadeAgain: whoever ends as the last removes an
// empty directory, while others are about to take a lock in it.
func TestDirectoryThatOthersRemoveIsMadeAgain(t *testing.T) {
	root := hostlocktest.Root(t)
	stop := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Remove(filepath.Join(root.Name(), "locks"))
			}
		}
	})
	for range 3000 {
		lock, err := hostlock.TakeIn(root, "locks", "one")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hostlock.TakeIn(root, "locks", "one"); !errors.Is(err, hostlock.ErrHeld) {
			t.Fatalf("second holder: %v", err)
		}
		lock.Release()
	}
	close(stop)
	remover.Wait()
}
