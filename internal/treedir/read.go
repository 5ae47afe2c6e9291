// Package treedir copies between a directory of the host and a tree stream:
// an owner's directory into a sandbox, and what a sandbox changed back out. It
// works relative to one opened directory, follows no link, waits at no FIFO and
// is bounded. It knows nothing of sandboxes. Start reading at Read and Write.
package treedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
)

// Open opens a directory that is no link itself, for Read or Write.
func Open(dir string) (*os.Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "opening directory (which must be no link)", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd)) // this very directory, whatever its name leads to now
}

// reader walks a directory. One goroutine owns it.
type reader struct {
	root    *os.Root
	out     *treestream.Writer
	device  uint64
	skipped []string
}

// Read streams the tree below root with its links as they are, and returns the
// paths that were left out: FIFOs, sockets, devices, and what lies on another
// mount. Limits of out apply; a file that changes its size meanwhile is an
// error.
func Read(root *os.Root, out *treestream.Writer) (skipped []string, err error) {
	top, err := root.Stat(".")
	if err != nil {
		return nil, fmt.Errorf("reading directory: %w", err)
	}
	r := &reader{root: root, out: out, device: deviceOf(top)}
	if err := r.dir("."); err != nil {
		return nil, err
	}
	return r.skipped, out.Close()
}

func deviceOf(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Dev
	}
	return 0
}

// dir visits the entries by name, depth first: the order of tree streams.
func (r *reader) dir(name string) error {
	file, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", name, err)
	}
	entries, err := file.ReadDir(-1)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", name, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		if err := r.entry(path.Join(name, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) entry(name string) error {
	info, err := r.root.Lstat(name)
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, err)
	}
	switch {
	case deviceOf(info) != r.device:
		r.skipped = append(r.skipped, name)
		return nil
	case info.IsDir():
		if err := r.out.Add(treestream.Entry{Kind: treestream.Dir, Path: name, Mode: 0o755}, nil); err != nil {
			return err
		}
		return r.dir(name)
	case info.Mode()&fs.ModeSymlink != 0:
		return r.link(name)
	case info.Mode().IsRegular():
		return r.file(name)
	}
	r.skipped = append(r.skipped, name)
	return nil
}

func (r *reader) link(name string) error {
	target, err := r.root.Readlink(name)
	if err != nil {
		return fmt.Errorf("reading link %q: %w", name, err)
	}
	return r.out.Add(treestream.Entry{Kind: treestream.Symlink, Path: name, Mode: 0o777, Target: target}, nil)
}

// file looks at what was opened, not at what the name was a moment ago.
func (r *reader) file(name string) error {
	file, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, err)
	}
	if !info.Mode().IsRegular() || deviceOf(info) != r.device {
		return fmt.Errorf("reading %q: %w", name, errChanged)
	}
	mode := uint32(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	return r.out.Add(treestream.Entry{
		Kind: treestream.File, Path: name, Mode: mode, MTime: info.ModTime().Unix(), Size: info.Size(), Links: 1,
	}, file)
}

var errChanged = errors.New("it was replaced while it was copied")
