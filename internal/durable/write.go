// Package durable makes files that survive a crash: a file is there whole or
// not at all, and once a function returned nil it is on the disk. It also holds
// the locks by which one process owns a directory. It knows nothing of what the
// files mean. Start reading at WriteFile.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteFile replaces the file at path by one with the given bytes and mode:
//
//	open(dot name, O_EXCL) chmod write fsync rename fsync(directory)
//
// A crash leaves the old file or the new one, and perhaps a temporary beside it
// whose name begins with a dot; Sweep removes those. The one case that is not
// covered is a disk that acknowledges fsync and loses the bytes. Two writers of
// one path at once are safe, the later rename wins.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	err := writeFile(path, data, mode)
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return nil
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, temporaryPrefix+"*")
	if err != nil {
		return err
	}
	err = errors.Join(fill(f, data, mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(dir)
}

// fill writes and syncs. The mode is set on the descriptor, so that no umask
// narrows it and no moment exists in which the file is wider.
func fill(f *os.File, data []byte, mode fs.FileMode) error {
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

// temporaryPrefix begins the name of a file that is not whole yet.
const temporaryPrefix = ".durable-"

// Sweep removes the temporaries that crashed writers left in dir. It must not
// run beside a writer: call it at start, under the directory's lock.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, temporaryPrefix+"*"))
	if err != nil {
		return fmt.Errorf("sweeping %q: %w", dir, err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sweeping %q: %w", dir, err)
		}
	}
	return nil
}

// SyncDir makes the names in a directory durable: what was renamed, made or
// removed in it is so after a crash.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing directory %q: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing directory %q: %w", dir, err)
	}
	return nil
}

// MkdirAll makes path and what is missing above it with the given mode, each
// synced into its parent, from the top down. A directory that exists keeps its
// mode.
func MkdirAll(path string, mode fs.FileMode) error {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("making directory %q: %w", path, unix.ENOTDIR)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("making directory %q: %w", path, err)
	}
	parent := filepath.Dir(path)
	if err := MkdirAll(parent, mode); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making directory: %w", err)
	}
	return SyncDir(parent)
}

// Remove unlinks a file for good. One that does not exist is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing: %w", err)
	}
	return SyncDir(filepath.Dir(path))
}

// ErrTooLarge is wrapped by ReadFile's error for a file over the limit.
var ErrTooLarge = errors.New("file too large")

// ReadFile returns the bytes of a regular file of at most limit bytes. It
// follows no link in the last element and does not wait at a FIFO.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading file: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %q: not a regular file: %w", path, fs.ErrInvalid)
	}
	// One byte more tells a file that grew meanwhile.
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading file: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("reading %q, over %d bytes: %w", path, limit, ErrTooLarge)
	}
	return data, nil
}

// ReserveFile makes sure that path holds at least size bytes of allocated disk.
// When the disk is full, Remove of that file leaves room to seal a finished
// result; the next start reserves again. A second call changes nothing.
func ReserveFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("reserving disk: %w", err)
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		// A file system without fallocate gets written zeros instead.
		_, err = io.CopyN(f, zeros{}, size)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("reserving %d bytes in %q: %w", size, path, err), os.Remove(path))
	}
	return SyncDir(filepath.Dir(path))
}

// zeros is an endless stream of them.
type zeros struct{}

// Read fills p with zeros.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
