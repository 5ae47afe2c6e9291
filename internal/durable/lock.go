package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked is matched by the error of Lock when another process holds it.
var ErrLocked = errors.New("already locked")

// HeldError says who holds a lock; errors.Is finds ErrLocked in it.
type HeldError struct {
	Path string
	// PID is the holder as it wrote itself down, 0 if it has not yet. It is for
	// people: only the lock itself says that somebody is there.
	PID int
}

// Error names the path and the holder.
func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("locking %q: held by another process", e.Path)
	}
	return fmt.Sprintf("locking %q: held by process %d", e.Path, e.PID)
}

// Unwrap returns ErrLocked.
func (e *HeldError) Unwrap() error { return ErrLocked }

// Flock is a lock that is held: an flock(2) on a file, which the kernel lets go
// when the process ends, however it ends. It is not inherited over exec.
type Flock struct {
	path string
	file *os.File
}

// Lock takes the lock at path without waiting, and writes this process's id
// into the file. The file is made with mode 0600 when missing. Errors match
// ErrLocked when somebody holds it, in this process or in another.
func Lock(path string) (*Flock, error) {
	for {
		l, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		// The holder before us may have unlinked the file between our open and
		// our lock; then others would lock a new one beside us.
		if l.current() {
			return l, l.sign()
		}
		_ = l.file.Close()
	}
}

// LockWait is Lock that tries again until ctx ends, and then returns the last
// error.
func LockWait(ctx context.Context, path string) (*Flock, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		l, err := Lock(path)
		if err == nil || !errors.Is(err, ErrLocked) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-ticker.C:
		}
	}
}

func tryLock(path string) (*Flock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return &Flock{path: path, file: f}, nil
	}
	defer func() { _ = f.Close() }()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &HeldError{Path: path, PID: readPID(f)}
	}
	return nil, fmt.Errorf("locking %q: %w", path, err)
}

func readPID(f *os.File) int {
	var buf [20]byte
	n, _ := f.ReadAt(buf[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// current tells whether the path still names the file that is locked.
func (l *Flock) current() bool {
	ours, err := l.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(l.path)
	return err == nil && os.SameFile(ours, named)
}

// sign writes the holder's id. Nothing is synced: after a crash nobody holds
// the lock, whatever the file says.
func (l *Flock) sign() error {
	err := l.file.Truncate(0)
	if err == nil {
		_, err = l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = l.file.Close()
		return fmt.Errorf("signing lock %q: %w", l.path, err)
	}
	return nil
}

// Unlock lets go and leaves the file. A second call does nothing.
func (l *Flock) Unlock() error {
	if err := l.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("unlocking %q: %w", l.path, err)
	}
	return nil
}

// Remove unlinks the file while the lock is held, then lets go. Whoever waits
// for the old file notices and takes a new one.
func (l *Flock) Remove() error {
	if !l.current() {
		return l.Unlock()
	}
	return errors.Join(os.Remove(l.path), l.Unlock())
}

// File returns the locked file, for handing its descriptor, and with it the
// lock, to a child. The Flock keeps owning it.
func (l *Flock) File() *os.File { return l.file }
