package oci

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// cantMap says that the kernel, or the file system below the image store, has
// no id-mapped mounts (or overlays over them, before Linux 5.19).
func cantMap(err error) bool {
	for _, errno := range []error{unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// mountCopy does without: a copy of the image whose files belong to the range,
// bound read-only at target. It costs a job some 40 µs a file.
func mountCopy(root, copied, target string, first uint32) error {
	if err := copyShifted(root, copied, int(first)); err != nil {
		return err
	}
	if err := unix.Mount(copied, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding image copy: %w", err)
	}
	const flags = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return errors.Join(fmt.Errorf("making image copy read-only: %w", err), linux.Unmount(target))
	}
	return nil
}

// copyShifted copies directories, files and links of an image, which the store
// has checked; nothing else is in one.
func copyShifted(from, to string, first int) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("copying image: %w", err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return fmt.Errorf("copying image: %w", err)
		}
		if err := copyEntry(path, filepath.Join(to, rel), entry, first); err != nil {
			return fmt.Errorf("copying image: %w", err)
		}
		return nil
	})
}

func copyEntry(from, to string, entry fs.DirEntry, first int) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	switch {
	case entry.IsDir():
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
	case entry.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return errors.Join(os.Symlink(target, to), os.Lchown(to, first+int(st.Uid), first+int(st.Gid)))
	case entry.Type().IsRegular():
		if err := copyFile(from, to); err != nil {
			return err
		}
	default:
		return nil // a device or FIFO: the sandbox has its own
	}
	// The owner first: a change of owner takes the set-id bits away.
	if err := os.Lchown(to, first+int(st.Uid), first+int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
