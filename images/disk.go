package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// lock takes the store's only write lock and sweeps what a crash left. waiting
// is called once, when another holds it. The kernel frees the lock with the
// process, so it is never stale.
func (s *Store) lock(ctx context.Context, waiting func()) (*durable.Flock, error) {
	path := filepath.Join(s.dir, "lock")
	held, err := durable.Lock(path)
	if errors.Is(err, durable.ErrLocked) {
		waiting()
		held, err = durable.LockWait(ctx, path)
	}
	if err != nil {
		return nil, fmt.Errorf("taking the image store: %w", errors.Join(err, context.Cause(ctx)))
	}
	if err := s.sweep(); err != nil {
		return nil, errors.Join(err, held.Unlock())
	}
	return held, nil
}

// sweep removes the work of builds that did not live to do it: whoever holds
// the lock is the only one with work there.
func (s *Store) sweep() error {
	if err := os.RemoveAll(s.tmpDir()); err != nil {
		return fmt.Errorf("sweeping image store: %w", err)
	}
	if err := durable.Sweep(s.dir); err != nil {
		return fmt.Errorf("sweeping image store: %w", err)
	}
	return nil
}

func (s *Store) tmpDir() string { return filepath.Join(s.dir, "tmp") }

// workDir makes a directory for one build. Others may pass through it, but not
// look around: apt gives up root for its downloads and has to get in.
func (s *Store) workDir(name string) (string, error) {
	if err := os.MkdirAll(s.tmpDir(), 0o711); err != nil {
		return "", fmt.Errorf("making work directory: %w", err)
	}
	work, err := os.MkdirTemp(s.tmpDir(), name+"-")
	if err != nil {
		return "", fmt.Errorf("making work directory: %w", err)
	}
	if err := os.Chmod(work, 0o711); err != nil {
		return "", fmt.Errorf("making work directory: %w", err)
	}
	return work, nil
}

// place moves a finished image directory to its name. A crash before the rename
// leaves work for sweep, one after it an image without an index entry, which
// the next build takes over or GC removes.
func (s *Store) place(from string, d Digest) error {
	parent := filepath.Dir(s.imageDir(d))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("placing image %s: %w", d, err)
	}
	if _, err := os.Lstat(s.imageDir(d)); err == nil {
		if checkRoot(filepath.Join(s.imageDir(d), rootName)) == nil {
			return nil // the same bytes are there; a job may be using them
		}
		// Somebody has tampered with it: out of the way, for sweep to remove.
		if err := os.Rename(s.imageDir(d), from+"-broken"); err != nil {
			return fmt.Errorf("placing image %s: %w", d, err)
		}
	}
	if err := syncFileSystem(from); err != nil {
		return fmt.Errorf("placing image %s: %w", d, err)
	}
	if err := os.Rename(from, s.imageDir(d)); err != nil {
		return fmt.Errorf("placing image %s: %w", d, err)
	}
	if err := errors.Join(durable.SyncDir(parent), durable.SyncDir(s.dir)); err != nil {
		return fmt.Errorf("placing image %s: %w", d, err)
	}
	return nil
}

// syncFileSystem is one call for ten thousand files.
func syncFileSystem(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: path, Err: err}
	}
	return nil
}

// diskUsage adds up the blocks below dir, each inode once.
func diskUsage(dir string) (int64, error) {
	var total int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		found, err := entry.Info()
		if err != nil {
			return err
		}
		status, ok := found.Sys().(*syscall.Stat_t)
		if !ok || seen[status.Ino] {
			return nil
		}
		if status.Nlink > 1 && !entry.IsDir() {
			seen[status.Ino] = true
		}
		total += status.Blocks * 512
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measuring %s: %w", dir, err)
	}
	return total, nil
}
