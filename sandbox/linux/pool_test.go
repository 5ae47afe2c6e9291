package linux

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestPoolIsFilledAtRest: not while starts are on their way, unless the next one would
// find nothing.
func TestPoolIsFilledAtRest(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		ready int
		since time.Duration // the last take
		rest  bool
	}{{0, 0, true}, {1, 0, false}, {1, RestAfter - 1, false}, {1, RestAfter, true}, {5, time.Hour, true}} {
		p := Pool{ready: make([]*Disk, c.ready), taken: now.Add(-c.since)}
		if got := p.untilRest(now) <= 0; got != c.rest {
			t.Errorf("%d ready, %s after a take: rest %t", c.ready, c.since, got)
		}
	}
}

// TestEmptyPoolIsFilledAtOnce: whoever waits for rest is woken by the last take.
func TestEmptyPoolIsFilledAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool("", "", 2, slog.New(slog.DiscardHandler))
		p.ready, p.taken = []*Disk{{}, {}}, time.Now()
		rested := make(chan time.Time, 1)
		began := time.Now()
		go func() { p.rest(); rested <- time.Now() }()
		for range 2 {
			time.Sleep(RestAfter / 10)
			if _, err := p.Take(t.Context(), Size{}); err != nil {
				t.Fatal(err)
			}
		}
		if took := (<-rested).Sub(began); took != RestAfter/5 {
			t.Errorf("woken after %s", took)
		}
	})
}

// TestCachedDisksAreToldOnce: with what to do about it.
func TestCachedDisksAreToldOnce(t *testing.T) {
	var said strings.Builder
	p := NewPool("", "", 0, slog.New(slog.NewTextHandler(&said, nil)))
	for _, cause := range []error{nil, unix.EINVAL, unix.EINVAL} {
		p.tellCached(cause)
	}
	if lines := strings.Count(said.String(), "\n"); lines != 1 || !strings.Contains(said.String(), "direct I/O") {
		t.Errorf("%d lines: %s", lines, said.String())
	}
}

// TestPooledDisksAreReadyToUse: with the overlay's directories, which belong to the
// job's ids once they are given to it. A closed pool leaves nothing.
func TestPooledDisksAreReadyToUse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	images, mounts := t.TempDir(), t.TempDir()
	pool := NewPool(images, mounts, 2, slog.New(slog.DiscardHandler))
	size := Size{Bytes: 64 << 20, Inodes: 2000}
	pool.Warm(size)
	filled := func() bool {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.ready) == 2
	}
	for range 2 {
		waittest.Until(t, "the pool is full", filled)
		disk, err := pool.Take(t.Context(), size)
		if err != nil {
			t.Fatal(err)
		}
		wantPlaces(t, disk)
		if dio, err := ReadInt(filepath.Join("/sys/block", disk.device, "loop/dio")); err != nil || dio != 1 {
			t.Errorf("what is written to %s is cached twice: %d, %v", disk.device, dio, err)
		}
		if err := disk.Release(); err != nil {
			t.Error(err)
		}
		pool.Fill()
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{images, mounts} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	if _, err := pool.Take(t.Context(), size); err == nil {
		t.Error("a closed pool gave a disk")
	}
}

// TestEndOfThePoolIsNoFault: whoever was about to make a disk when the pool was closed
// says nothing, since what the runner says may stand among the lines of an owner's own
// command. What can't be made while it is open is told.
func TestEndOfThePoolIsNoFault(t *testing.T) {
	for _, closed := range []bool{true, false} {
		var said strings.Builder
		p := NewPool(filepath.Join(t.TempDir(), "missing"), t.TempDir(), 2, slog.New(slog.NewTextHandler(&said, nil)))
		if closed {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		p.warm(Size{Bytes: 64 << 20, Inodes: 2000})
		p.add(Size{Bytes: 64 << 20, Inodes: 2000})
		want := map[bool]int{true: 0, false: 2}[closed]
		if got := strings.Count(said.String(), "\n"); got != want {
			t.Errorf("closed %t: %d lines, want %d:\n%s", closed, got, want, &said)
		}
	}
}

func wantPlaces(t *testing.T, disk *Disk) {
	t.Helper()
	const first = 1_879_048_192
	if err := ownUpper(disk.Path, first); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		mode  uint32
		owner uint32
	}{"wk": {0o755, 0}, "up": {0o755, 0}, "up/workspace": {0o755, sandbox.User}, "up/home/veyra": {0o755, sandbox.User}, "up/tmp": {0o1777, 0}, "up/var/tmp": {0o1777, 0}} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(disk.Path, path), &st); err != nil {
			t.Error(err)
			continue
		}
		if st.Mode != unix.S_IFDIR|want.mode || st.Uid != first+want.owner || st.Gid != first+want.owner {
			t.Errorf("%s: mode %o, owner %d:%d", path, st.Mode, st.Uid, st.Gid)
		}
	}
}
