package oci

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// userNamespace returns a descriptor of a user namespace that maps the range.
// A namespace is born with a process only: program is started in it, stopped
// by ptrace before its first instruction and killed once the descriptor is
// open, so none of its code ever runs.
func userNamespace(first uint32, program string) (*os.File, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(first), Size: rangeSize}}
	cmd := exec.Cmd{
		Path: program, Args: []string{"userns"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, Ptrace: true,
			UidMappings: ids, GidMappings: ids,
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting user namespace: %w", err)
	}
	f, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		return nil, fmt.Errorf("opening user namespace: %w", err)
	}
	return f, nil
}

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
