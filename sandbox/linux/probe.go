package linux

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// OpenStore returns nil where there is no store: the runner must not make one.
func OpenStore(dir string) (*images.Store, error) {
	if dir == "" {
		return nil, nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return images.Open(dir)
}

// DiskControls measures what disks of our own need of the host.
func DiskControls() []sandbox.Control {
	return []sandbox.Control{loopControl(), mkfsControl()}
}

func loopControl() sandbox.Control {
	if err := unix.Access("/dev/loop-control", unix.W_OK); err != nil {
		return sandbox.Control{Name: "loop_devices", Seen: err.Error(), Fix: "load the loop module and allow loop-control to the unit"}
	}
	return sandbox.Control{Name: "loop_devices", Enforced: true, Seen: "/dev/loop-control"}
}

func mkfsControl() sandbox.Control {
	if path := MkfsPath(); IsFile(path) {
		return sandbox.Control{Name: "mkfs_ext4", Enforced: true, Seen: path}
	}
	return sandbox.Control{Name: "mkfs_ext4", Seen: "not found", Fix: "install e2fsprogs"}
}
