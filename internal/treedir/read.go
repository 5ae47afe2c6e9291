// Package treedir copies between a directory of the host and a tree stream:
// an owner's directory into a sandbox, and what a sandbox changed back out. It
// works relative to one opened directory, follows no link, waits at no FIFO and
// is bounded. It knows nothing of sandboxes. Start reading at Read and Write.
package treedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

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
	place   place
	left    int64 // names that may still be read
	skipped []string
}

// Read streams the tree below root with its links as they are, and returns the
// paths that were left out: FIFOs, sockets, devices, and what lies on another
// mount. Limits of out apply, and no more than entries names are read, however
// many a directory has; a file that changes its size meanwhile is an error.
func Read(root *os.Root, out *treestream.Writer, entries int64) (skipped []string, err error) {
	top, err := root.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("reading directory: %w", err)
	}
	defer top.Close()
	at, err := placeOf(top)
	if err != nil {
		return nil, fmt.Errorf("reading directory: %w", err)
	}
	r := &reader{root: root, out: out, place: at, left: entries}
	if err := r.dir(".", top); err != nil {
		return nil, err
	}
	return r.skipped, out.Close()
}

// place is the mount that a file lies on. A directory of the same file system
// can be bound below another one, so the device alone says too little; kernels
// before 5.8 tell no more than that.
type place struct {
	major, minor uint32
	mount        uint64
}

func placeOf(file *os.File) (place, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_MNT_ID, &st); err != nil {
		return place{}, fmt.Errorf("looking at the mount: %w", err)
	}
	at := place{major: st.Dev_major, minor: st.Dev_minor}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		at.mount = st.Mnt_id
	}
	return at, nil
}

// dir visits the entries by name, depth first: the order of tree streams.
func (r *reader) dir(name string, file *os.File) error {
	names, err := r.names(file)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", name, err)
	}
	for _, entry := range names {
		if err := r.entry(path.Join(name, entry)); err != nil {
			return err
		}
	}
	return nil
}

// names reads a directory in parts, so that one with millions of names ends the
// copy before they are in memory.
func (r *reader) names(dir *os.File) ([]string, error) {
	var names []string
	for {
		some, err := dir.Readdirnames(1024)
		names = append(names, some...)
		if r.left -= int64(len(some)); r.left < 0 {
			return nil, fmt.Errorf("more entries than allowed: %w", treestream.ErrLimit)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (r *reader) entry(name string) error {
	info, err := r.root.Lstat(name)
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, err)
	}
	switch {
	case info.IsDir():
		return r.below(name)
	case info.Mode()&fs.ModeSymlink != 0:
		return r.link(name)
	case info.Mode().IsRegular():
		return r.file(name)
	}
	r.skip(name)
	return nil
}

func (r *reader) skip(name string) { r.skipped = append(r.skipped, name) }

// open looks at what was opened, not at what the name was a moment ago. here
// says whether it lies on the mount that is copied.
func (r *reader) open(name string, flags int) (file *os.File, here bool, err error) {
	file, err = r.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, false, fmt.Errorf("reading %q: %w", name, err)
	}
	at, err := placeOf(file)
	if err != nil {
		_ = file.Close()
		return nil, false, fmt.Errorf("reading %q: %w", name, err)
	}
	return file, at == r.place, nil
}

func (r *reader) below(name string) error {
	file, here, err := r.open(name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if !here {
		_ = file.Close()
		r.skip(name)
		return nil
	}
	if err := r.out.Add(treestream.Entry{Kind: treestream.Dir, Path: name, Mode: 0o755}, nil); err != nil {
		_ = file.Close()
		return err
	}
	return r.dir(name, file)
}

func (r *reader) link(name string) error {
	target, err := r.root.Readlink(name)
	if err != nil {
		return fmt.Errorf("reading link %q: %w", name, err)
	}
	return r.out.Add(treestream.Entry{Kind: treestream.Symlink, Path: name, Mode: 0o777, Target: target}, nil)
}

func (r *reader) file(name string) error {
	file, here, err := r.open(name, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if !here {
		r.skip(name)
		return nil
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, err)
	}
	if !info.Mode().IsRegular() {
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
