package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
)

// unpacker places the entries of one stream below a directory. Since a stream
// goes through a tree in order, the directories from the root of it to the
// place of the last entry stay open.
type unpacker struct {
	tree  *treestream.Reader
	names []string // names[i] is the directory fds[i+1]
	fds   []int    // fds[0] is the root
}

// unpack applies the stream in to the directory at root, which is made when it
// is missing. The limits are those of the sandbox's disk: who sent the stream
// had its own.
func unpack(root string, in io.Reader) error {
	if !initwire.Inside(root) {
		return fmt.Errorf("%q: %w", root, errOutside)
	}
	fd, err := makeDirs(root)
	if err != nil {
		return fmt.Errorf("opening %q: %w", root, err)
	}
	defer unix.Close(fd)
	tree, err := treestream.NewReader(in, treestream.Limits{})
	if err != nil {
		return err
	}
	u := &unpacker{tree: tree, fds: []int{fd}}
	defer u.leave(0)
	for {
		e, err := tree.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = u.place(e)
		}
		if err != nil {
			return fmt.Errorf("unpacking below %q: %w", root, err)
		}
	}
}

// leave closes all directories that are deeper than depth.
func (u *unpacker) leave(depth int) {
	for len(u.names) > depth {
		_ = unix.Close(u.fds[len(u.fds)-1])
		u.fds, u.names = u.fds[:len(u.fds)-1], u.names[:len(u.names)-1]
	}
}

// enter opens the directory dir, relative to the root, with step for what is
// not open yet.
func (u *unpacker) enter(dir string, step func(int, string) (int, error)) (int, error) {
	var want []string
	if dir != "." {
		want = strings.Split(dir, "/")
	}
	// What the last entry had in common with this one stays open: a stream in
	// order opens each directory once.
	same := 0
	for same < len(want) && same < len(u.names) && want[same] == u.names[same] {
		same++
	}
	u.leave(same)
	for _, name := range want[same:] {
		fd, err := step(u.fds[len(u.fds)-1], name)
		if err != nil {
			return -1, fmt.Errorf("opening directory %q in %q: %w", name, dir, err)
		}
		u.fds, u.names = append(u.fds, fd), append(u.names, name)
	}
	return u.fds[len(u.fds)-1], nil
}

// place applies one entry.
func (u *unpacker) place(e treestream.Entry) error {
	// Devices and FIFOs are never made; links only for the owner's own trees.
	if e.Kind == treestream.Special || e.Kind == treestream.Symlink && !u.tree.Links() {
		return fmt.Errorf("entry %q of kind %d: %w", e.Path, e.Kind, errNotRegular)
	}
	if e.Kind == treestream.Delete {
		return u.remove(e.Path)
	}
	dir, err := u.enter(path.Dir(e.Path), stepOrMakeDir)
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	switch e.Kind {
	case treestream.File:
		err = u.file(dir, name, e)
	case treestream.Symlink:
		if err = removeAt(dir, name); err == nil {
			err = unix.Symlinkat(e.Target, dir, name)
		}
	case treestream.Dir:
		err = directory(dir, name, false)
	case treestream.Opaque:
		err = directory(dir, name, true)
	}
	if err != nil {
		return fmt.Errorf("placing %q: %w", e.Path, err)
	}
	return nil
}

// remove deletes what is at p. A directory on the way that isn't there, or is
// none, means that there is nothing to delete.
func (u *unpacker) remove(p string) error {
	dir, err := u.enter(path.Dir(p), stepDir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err == nil {
		err = removeAt(dir, path.Base(p))
	}
	if err != nil {
		return fmt.Errorf("deleting %q: %w", p, err)
	}
	return nil
}

// file makes the file with one of two modes and fills it.
func (u *unpacker) file(dir int, name string, e treestream.Entry) error {
	perm := uint32(0o644)
	if e.Mode&0o100 != 0 {
		perm = 0o755
	}
	file, err := createAt(dir, name, perm)
	if err != nil {
		return err
	}
	// The reader stops at the content's end and reports a cut as an error.
	w := bufio.NewWriterSize(file, int(min(e.Size+1, 64<<10)))
	_, err = io.Copy(w, u.tree)
	if err == nil {
		err = w.Flush()
	}
	if err == nil && e.MTime != 0 {
		t := unix.NsecToTimespec(e.MTime)
		err = unix.UtimesNanoAt(dir, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	}
	return errors.Join(err, file.Close())
}

// directory makes name a directory, in the place of anything else, and empties
// one that is there when asked. It is never replaced by another: a new one
// would hide what lower layers have in it.
func directory(dir int, name string, empty bool) error {
	fd, err := stepDir(dir, name)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		// A file or a link became a directory.
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return err
		}
		return unix.Mkdirat(dir, name, 0o755)
	case errors.Is(err, unix.ENOENT):
		return unix.Mkdirat(dir, name, 0o755)
	case err != nil:
		return err
	}
	_ = unix.Close(fd) // O_PATH can't list it
	if !empty {
		return nil
	}
	fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return emptyDir(fd)
}
