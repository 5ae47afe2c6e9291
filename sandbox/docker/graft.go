package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// graftDir holds, in the engine's mount namespace and below the instance's run
// directory, what is lent to the engine while a container starts.
const graftDir = "m"

// The engine looks up the sources of binds in its own mount namespace, where the
// runner's mounts are not. A graft is a copy of one of them that is moved there
// for the moment of a start: the container has its own copy then, and the graft
// goes. So nothing of a job can be seen from the host's namespace for longer than
// that, and a runner that is killed leaves at most one mount, for the next sweep.
type graft struct {
	space *os.File // the engine's mount namespace
	path  string   // there
}

// mountSpace opens the mount namespace of whoever listens at the socket.
func (e *engine) mountSpace(ctx context.Context) (*os.File, error) {
	pid, err := e.listener(ctx)
	if err != nil {
		return nil, err
	}
	space, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("opening the engine's mount namespace: %w", err)
	}
	return space, nil
}

// listener is the process that listens at the socket: the engine, or the init
// that holds the socket for it in the same namespace.
func (e *engine) listener(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
	if err != nil {
		return 0, fmt.Errorf("the Docker Engine at %s is not there: %w", e.socket, err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("looking at the engine's socket: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, peerErr); err != nil {
		return 0, fmt.Errorf("looking at the engine's socket: %w", err)
	}
	if peer.Pid <= 0 || peer.Uid != 0 {
		return 0, fmt.Errorf("the engine at %s is not on this host, or not root's: nothing that it promises can be read back", e.socket)
	}
	return int(peer.Pid), nil
}

// inSpace runs f on a thread of its own in a mount namespace. The thread is never
// given back.
func inSpace(space *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leaving the shared root: %w", err)
			}
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("entering the engine's mount namespace: %w", err)
			}
			unix.Umask(0o022) // this thread's alone since it left the shared root
			return f()
		}()
	}()
	return <-done
}

// plant moves detached mounts to names below path in the engine's namespace.
// Only root and the group of the containers' uid 0 can pass its parents: there,
// runtimes look for the sources.
func (g graft) plant(group uint32, mounts map[string]int) error {
	return inSpace(g.space, func() error {
		parent := filepath.Dir(g.path)
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return fmt.Errorf("lending mounts to the engine: %w", err)
		}
		if err := errors.Join(os.Lchown(parent, 0, int(group)), os.Chmod(parent, 0o710), os.Mkdir(g.path, 0o755)); err != nil {
			return fmt.Errorf("lending mounts to the engine: %w", err)
		}
		for name, tree := range mounts {
			target := filepath.Join(g.path, name)
			if err := os.Mkdir(target, 0o755); err != nil {
				return fmt.Errorf("lending mounts to the engine: %w", err)
			}
			if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
				return fmt.Errorf("lending mounts to the engine: %w", err)
			}
		}
		return nil
	})
}

// uproot takes everything below path away again. A second call does nothing.
func (g graft) uproot() error {
	return inSpace(g.space, func() error {
		entries, err := os.ReadDir(g.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("taking mounts back: %w", err)
		}
		for _, entry := range entries {
			name := filepath.Join(g.path, entry.Name())
			err := unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("taking mounts back: %w", err)
			}
			// Rmdir, not RemoveAll: what is still mounted must not be emptied.
			if err := unix.Rmdir(name); err != nil {
				return fmt.Errorf("taking mounts back: %w", err)
			}
		}
		return os.Remove(g.path)
	})
}

// detached copies the mount at path, alone, into no namespace.
func detached(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("copying a mount: %w", err)
	}
	return fd, nil
}

// terminals makes a devpts of its own: an engine mounts none below a /dev that is
// asked of it, and one that it makes itself is writable.
func terminals(first uint32) (int, error) {
	context, err := unix.Fsopen("devpts", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("making terminals: %w", err)
	}
	defer unix.Close(context)
	for _, option := range [][2]string{{"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", strconv.Itoa(int(first) + 5)}} {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("making terminals: %s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, fmt.Errorf("making terminals: %w", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("making terminals: %w", err)
	}
	return fd, nil
}
