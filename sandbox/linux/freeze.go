package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// beneath never leaves the directory it starts from and follows no link: every
// name below an upper directory is the job's.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens name below dir; "" is dir itself.
func openBeneath(dir int, name string, flags uint64) (int, error) {
	if name == "" {
		name = "."
	}
	return unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath})
}

// spare holds directories that are given up before a layer is made: a job that
// has filled its disk to the last file must not keep us from making our few.
const (
	spare     = "spare"
	spareDirs = 32
)

func makeSpare(tree *Tree) {
	tree.Dir(spare, 0o700, 0)
	for i := range spareDirs {
		tree.Dir(filepath.Join(spare, strconv.Itoa(i)), 0o700, 0)
	}
}

// MoveParts gives each part a directory of its own beside the upper directory
// of the same disk and renames the part's directories into it: as a lower
// layer a whole upper would show home and /tmp as well. It returns their paths.
func MoveParts(disk string, first uint32, parts []sandbox.Part) ([]string, error) {
	if err := os.RemoveAll(filepath.Join(disk, spare)); err != nil {
		return nil, fmt.Errorf("giving up the spare directories: %w", err)
	}
	paths := make([]string, 0, len(parts))
	for i, part := range parts {
		name := "l" + strconv.Itoa(i)
		tree := Tree{Root: disk, First: int(first)}
		tree.Dir(name, 0o755, 0)
		if tree.Err != nil {
			return nil, tree.Err
		}
		for _, path := range part.Paths {
			if err := movePart(disk, name, strings.TrimPrefix(path, "/")); err != nil {
				return nil, fmt.Errorf("moving %q into a layer: %w", path, err)
			}
		}
		paths = append(paths, filepath.Join(disk, name))
	}
	return paths, nil
}

// movePart renames one directory. What is no directory, or lies behind a link,
// is left behind: the job made it so, and the layer does without.
func movePart(disk, layer, path string) error {
	root, err := unix.Open(disk, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	source, err := openBeneath(root, filepath.Join("up", path), unix.O_PATH|unix.O_DIRECTORY)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_ = unix.Close(source)
	to, err := makeParents(root, layer, filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(to)
	from, err := openBeneath(root, filepath.Join("up", filepath.Dir(path)), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return unix.Renameat2(from, filepath.Base(path), to, filepath.Base(path), unix.RENAME_NOREPLACE)
}

// makeParents makes dir below the layer with the owners and modes that it has
// in the upper directory, and returns it.
func makeParents(root int, layer, dir string) (int, error) {
	at, err := openBeneath(root, layer, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil || dir == "." {
		return at, err
	}
	done := ""
	for name := range strings.SplitSeq(dir, "/") {
		done = filepath.Join(done, name)
		next, err := makeLike(root, at, name, filepath.Join("up", done))
		_ = unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

func makeLike(root, parent int, name, like string) (int, error) {
	model, err := openBeneath(root, like, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(model)
	var st unix.Stat_t
	if err := unix.Fstat(model, &st); err != nil {
		return -1, err
	}
	err = unix.Mkdirat(parent, name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err2 := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err2 != nil || err != nil {
		return fd, err2 // it was there, made for an earlier path
	}
	if err := errors.Join(unix.Fchmod(fd, st.Mode&0o7777), os.NewSyscallError("fchown", unix.Fchown(fd, int(st.Uid), int(st.Gid)))); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// notThere covers a name that is missing, no directory, or behind a link.
func notThere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
