// Package hostlock takes locks that end with their holder, on files that leave
// nothing behind. It knows nothing of what is locked. Start reading at Take.
package hostlock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another process, or another Lock of this one, holds it.
var ErrHeld = errors.New("lock is held")

// Lock is a held flock(2). It ends with Release or with the process.
type Lock struct {
	root *os.Root
	name string
	file *os.File
}

// Take locks the file name below root without waiting and makes it where it is
// missing (0600). Holders unlink the file before they let go, so a lock on an
// inode that lost its name is worth nothing: then the name is opened again. Two
// holders can't exist.
func Take(root *os.Root, name string) (*Lock, error) {
	for range 16 {
		f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening lock %s: %w", name, err)
		}
		err = lock(root, name, f)
		if err == nil {
			return &Lock{root, name, f}, nil
		}
		_ = f.Close()
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("taking lock %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("taking lock %s: %w", name, ErrHeld)
}

// TakeIn is Take of name in the directory dir, which it makes (0700). Whoever ends
// as the last may find that directory empty and remove it at any moment; then it
// is made again.
func TakeIn(root *os.Root, dir, name string) (*Lock, error) {
	for range 1000 {
		if err := root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making the directory of locks %s: %w", dir, err)
		}
		l, err := Take(root, dir+"/"+name)
		if !errors.Is(err, fs.ErrNotExist) {
			return l, err
		}
	}
	return nil, fmt.Errorf("taking lock %s/%s, whose directory goes again and again: %w", dir, name, ErrHeld)
}

// lock returns fs.ErrNotExist when f is not what the name refers to any more.
func lock(root *os.Root, name string, f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrHeld
		}
		return err
	}
	held, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := root.Stat(name)
	if err != nil {
		return err
	}
	if !os.SameFile(held, named) {
		return fs.ErrNotExist
	}
	return nil
}

// Note replaces the file's content, for others to read while the lock is held.
func (l *Lock) Note(text []byte) error {
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("writing into lock %s: %w", l.name, err)
	}
	if _, err := l.file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("writing into lock %s: %w", l.name, err)
	}
	return nil
}

// Release removes the file and lets go of the lock. A second call does nothing.
func (l *Lock) Release() {
	if l.file == nil {
		return
	}
	_ = l.root.Remove(l.name) // still locked: nobody can hold another inode yet
	_ = l.file.Close()
	l.file = nil
}
