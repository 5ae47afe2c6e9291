package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// SweepDisks removes what an earlier runner left of its disks in dir. The caller
// makes none meanwhile: one on its way from file to mount looks the same.
func SweepDisks(dir string, swept sandbox.Swept) error {
	return errors.Join(sweepLoops(dir, swept), sweepFiles(dir, swept))
}

// sweepLoops detaches loop devices whose file lay in dir. They vanish by
// themselves once nothing mounts them; this is for a kernel that was asked too
// early.
func sweepLoops(dir string, swept sandbox.Swept) error {
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("listing loop devices: %w", err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw), dir+"/disk-") {
			continue
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if isMounted(device) {
			continue // in use
		}
		if detachLoop("/dev/" + device) {
			swept["loop"]++
		}
	}
	return nil
}

func detachLoop(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0) == nil
}

// isMounted looks for an ext4 file system of the device.
func isMounted(device string) bool {
	_, err := os.Stat("/sys/fs/ext4/" + device)
	return err == nil
}

// sweepFiles removes disk files that still have a name, because a runner died
// between making and unlinking one, and copies of images.
func sweepFiles(dir string, swept sandbox.Swept) error {
	for _, pattern := range []string{"disk-*.img", "copy-*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("listing disk files: %w", err)
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("removing disk file: %w", err)
			}
			swept["disk"]++
		}
	}
	return nil
}
