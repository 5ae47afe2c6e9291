package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// errOutside refuses a path that is not below the sandbox's writable places.
var errOutside = errors.New("path is outside the sandbox's own places")

// errNotRegular refuses links, directories and special files.
var errNotRegular = errors.New("not a regular file")

// stepDir opens name in the directory parent, and only a directory: no link is
// followed. Component by component instead of openat2, which gVisor lacks.
func stepDir(parent int, name string) (int, error) {
	return unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// openDir opens the directory at the absolute, clean path p.
func openDir(p string) (int, error) { return walk(p, stepDir) }

// makeDirs opens it too and makes what is missing on the way.
func makeDirs(p string) (int, error) { return walk(p, stepOrMakeDir) }

func walk(p string, step func(int, string) (int, error)) (int, error) {
	dir, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		if name == "" {
			continue // p is "/"
		}
		next, err := step(dir, name)
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// stepOrMakeDir makes the directory where it belongs. One that is renamed into
// place would hide what a lower layer has under its name.
func stepOrMakeDir(parent int, name string) (int, error) {
	fd, err := stepDir(parent, name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(parent, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return stepDir(parent, name)
}

// openParent opens the directory of the file at p with open and returns the
// file's name in it. p itself may not be one of the places.
func openParent(p string, open func(string) (int, error)) (dir int, name string, err error) {
	if !initwire.Inside(p) || !initwire.Inside(path.Dir(p)) {
		return -1, "", fmt.Errorf("%q: %w", p, errOutside)
	}
	dir, err = open(path.Dir(p))
	if err != nil {
		return -1, "", fmt.Errorf("opening directory of %q: %w", p, err)
	}
	return dir, path.Base(p), nil
}

// createAt makes a new regular file of that name; what has the name is removed
// first, a link as a link.
func createAt(dir int, name string, mode uint32) (*os.File, error) {
	if err := removeAt(dir, name); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// removeAt removes name, a directory with all that is in it, bottom up. Nothing
// of that name is fine.
func removeAt(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	sub, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := emptyDir(sub); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// emptyDir removes what is in the directory and closes it.
func emptyDir(fd int) error {
	dir := os.NewFile(uintptr(fd), "directory")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := removeAt(fd, name); err != nil {
			return err
		}
	}
	return nil
}
