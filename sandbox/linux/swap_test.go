package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// swapTries is how often a collection meets what changes under it; VEYRA_SOAK=1
// makes it the hundred thousand of the attack list.
func swapTries() int {
	if os.Getenv("VEYRA_SOAK") == "" {
		return 10_000
	}
	return 100_000
}

// exchange swaps two names as fast as it can until the function that it returns
// is called, which tells how often.
func exchange(one, other string) (stop func() int) {
	end, ended := make(chan struct{}), make(chan int)
	go func() {
		for swaps := 0; ; {
			select {
			case <-end:
				ended <- swaps
				return
			default:
			}
			if unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
		}
	}()
	return func() int { close(end); return <-ended }
}

// outsideDir is a directory that no collection may read from.
func outsideDir(t *testing.T) (dir, secret string) {
	t.Helper()
	dir = t.TempDir()
	secret = filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, secret
}

// TestE02SwappedNamesAreNotFollowed exchanges a directory, or a file, with what
// leads outside, with a FIFO, or with another name of a file outside, while it
// is collected, over and over.
func TestE02SwappedNamesAreNotFollowed(t *testing.T) {
	outside, secret := outsideDir(t)
	for name, c := range map[string]struct {
		inner string // the file that may be read
		plant func(path string) error
	}{
		"directory, link": {"d/secret", func(path string) error { return os.Symlink(outside, path) }},
		"file, link":      {"d", func(path string) error { return os.Symlink(secret, path) }},
		"file, FIFO":      {"d", func(path string) error { return unix.Mkfifo(path, 0o644) }},
		"file, hard link": {"d", func(path string) error { return os.Link(secret, path) }},
	} {
		t.Run(name, func(t *testing.T) {
			upper := t.TempDir()
			inner, other := filepath.Join(upper, c.inner), filepath.Join(upper, "other")
			if err := errors.Join(os.MkdirAll(filepath.Dir(inner), 0o755), os.WriteFile(inner, []byte("inner!"), 0o600), c.plant(other)); err != nil {
				t.Fatal(err)
			}
			stop := exchange(filepath.Join(upper, "d"), other)
			read := 0
			for range swapTries() {
				var out bytes.Buffer
				// Whether it fails is up to the moment; what it reads is not.
				_ = Collect(context.Background(), upper, treestream.Limits{Entries: 100, Bytes: 1 << 20}, &out)
				if bytes.Contains(out.Bytes(), []byte("CANARY")) {
					t.Fatal("a byte from outside was collected")
				}
				if bytes.Contains(out.Bytes(), []byte("inner!")) {
					read++
				}
			}
			if swaps := stop(); swaps < 500 || read == 0 {
				t.Errorf("%d swaps, %d reads: the check is blind", swaps, read)
			}
		})
	}
}

// TestB05NamesAreBoundedInMemory: a directory with more names than may be read
// ends the collection before they are held, also where each is as long as can
// be.
func TestB05NamesAreBoundedInMemory(t *testing.T) {
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	if err := os.WriteFile(one, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range maxEntries + 2048 {
		// Names of one file cost no inodes.
		if err := os.Link(one, filepath.Join(dir, fmt.Sprintf("%0250d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := Collect(context.Background(), dir, CollectLimits(policies.Limits{Inodes: 1 << 20, ChangeBytes: 1 << 20}), io.Discard)
	runtime.ReadMemStats(&after)
	if sandbox.KindOf(err) != sandbox.KindTooLarge {
		t.Errorf("collecting gave %v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 50<<20 {
		t.Errorf("%d bytes were allocated for it", used)
	}
}
