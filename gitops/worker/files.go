package worker

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// All work-tree access goes through directory descriptors and never follows a
// link: a base tree may hold links to anywhere.

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	makeFile = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// directory is an open directory.
type directory struct{ fd int }

func openRoot(path string) (directory, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{}, fmt.Errorf("opening work tree %q: %w", path, err)
	}
	return directory{fd}, nil
}

func (d directory) close() { _ = unix.Close(d.fd) }

func (d directory) open(name string) (directory, error) {
	fd, err := unix.Openat(d.fd, name, openDir, 0)
	if err != nil {
		return directory{}, fmt.Errorf("opening directory %q: %w", name, err)
	}
	return directory{fd}, nil
}

func (d directory) make(name string) (directory, error) {
	if err := unix.Mkdirat(d.fd, name, 0o755); err != nil {
		return directory{}, fmt.Errorf("making directory %q: %w", name, err)
	}
	return d.open(name)
}

// age gives the directory itself the base time. It comes last, since each
// entry made inside moves it.
func (d directory) age() error {
	t := []unix.Timespec{{Sec: gitops.BaseUnix}, {Sec: gitops.BaseUnix}}
	return unix.UtimesNanoAt(d.fd, ".", t, 0)
}

func (d directory) link(name, target string) error {
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return fmt.Errorf("making link %q: %w", name, err)
	}
	t := []unix.Timespec{{Sec: gitops.BaseUnix}, {Sec: gitops.BaseUnix}}
	return unix.UtimesNanoAt(d.fd, name, t, unix.AT_SYMLINK_NOFOLLOW)
}

// create writes a new file with the base time; the umask does not count.
func (d directory) create(name string, exec bool, write func(io.Writer) error) (err error) {
	perm := uint32(0o644)
	if exec {
		perm = 0o755
	}
	fd, err := unix.Openat(d.fd, name, makeFile, perm)
	if err != nil {
		return fmt.Errorf("making file %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := write(f); err != nil {
		return fmt.Errorf("writing file %q: %w", name, err)
	}
	if err := unix.Fchmod(fd, perm); err != nil {
		return fmt.Errorf("setting mode of %q: %w", name, err)
	}
	t := []unix.Timespec{{Sec: gitops.BaseUnix}, {Sec: gitops.BaseUnix}}
	return unix.UtimesNanoAt(d.fd, name, t, unix.AT_SYMLINK_NOFOLLOW)
}

// regular opens a regular file for reading; ok is false for any other type.
// The type is looked at after the open: O_NONBLOCK keeps a FIFO from blocking.
func (d directory) regular(name string) (f *os.File, st unix.Stat_t, ok bool, err error) {
	fd, err := unix.Openat(d.fd, name, openFile, 0)
	if err != nil {
		return nil, st, false, fmt.Errorf("opening file %q: %w", name, err)
	}
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, st, false, err
	}
	return os.NewFile(uintptr(fd), name), st, true, nil
}

// at walks down to the directory that holds path and gives the last name. The
// caller closes the directory.
func (d directory) at(path string) (directory, string, error) {
	fd, err := unix.Dup(d.fd)
	if err != nil {
		return directory{}, "", err
	}
	at := directory{fd}
	for {
		part, rest, more := strings.Cut(path, "/")
		if !more {
			return at, part, nil
		}
		next, err := at.open(part)
		at.close()
		if err != nil {
			return directory{}, "", err
		}
		at, path = next, rest
	}
}

// names lists a directory, in no order.
func (d directory) names() ([]string, error) {
	fd, err := unix.Openat(d.fd, ".", openDir, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return f.Readdirnames(-1)
}

// readLink gives a link's target, which Linux bounds to 4,095 bytes.
func (d directory) readLink(name string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Readlinkat(d.fd, name, buf)
	if err != nil {
		return "", fmt.Errorf("reading link %q: %w", name, err)
	}
	return string(buf[:n]), nil
}
