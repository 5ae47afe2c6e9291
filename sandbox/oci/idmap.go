package oci

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountMapped mounts the tree at root read-only at target, with its ids shifted
// into the range of userns. Without one, which only root may give, the files are
// nobody's inside and are read by what they grant to others; nothing above them
// writes there.
func mountMapped(root, target string, userns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, root,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("cloning image mount: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if userns != nil {
		attr.Attr_set, attr.Userns_fd = attr.Attr_set|unix.MOUNT_ATTR_IDMAP, uint64(userns.Fd())
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mapping image ids: %w", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting image: %w", err)
	}
	return nil
}
