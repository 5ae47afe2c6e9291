package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// overlayOptions turn off what would let an upper directory refer to anything
// but its own entries. "off" still follows redirects on some kernels.
const overlayOptions = "metacopy=off,index=off,xino=off,redirect_dir=nofollow"

// MountOverlay mounts lowers (topmost first) with the disk's directories at
// target. All paths are below stage and handed to the kernel relative to it:
// a sandbox reads these options in its own mountinfo and must see no host path.
func MountOverlay(stage, target string, lowers []string, upper, work string) error {
	data, err := overlayData(stage, lowers, upper, work)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(stage, target)
	if err != nil {
		return fmt.Errorf("overlay target: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		// The thread gets a working directory of its own, so it dies with
		// this goroutine: it is never unlocked.
		runtime.LockOSThread()
		done <- mountFrom(stage, rel, data)
	}()
	return <-done
}

func overlayData(stage string, lowers []string, upper, work string) (string, error) {
	names := make([]string, 0, len(lowers)+2)
	for _, path := range append(append([]string{}, lowers...), upper, work) {
		rel, err := filepath.Rel(stage, path)
		if err != nil || strings.HasPrefix(rel, "..") || strings.ContainsAny(rel, ":,\\") {
			return "", fmt.Errorf("overlay directory outside of the stage: %w", os.ErrInvalid)
		}
		names = append(names, rel)
	}
	n := len(lowers)
	data := "lowerdir=" + strings.Join(names[:n], ":") +
		",upperdir=" + names[n] + ",workdir=" + names[n+1] + "," + overlayOptions
	if markSpace() == userSpace {
		data += ",userxattr"
	}
	if len(data) >= os.Getpagesize() {
		return "", fmt.Errorf("overlay with %d layers: %w", n, unix.E2BIG)
	}
	return data, nil
}

func mountFrom(dir, target, data string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the shared working directory: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("entering the stage: %w", err)
	}
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mounting overlay: %w", err)
	}
	return nil
}

// OverlayIsPlain reads back that no option is on that lets an upper directory
// refer elsewhere. mountinfo prints what differs from the module's defaults
// only, so those are read too.
func OverlayIsPlain(target string) (bool, error) {
	info, err := mountAt(target)
	if err != nil {
		return false, err
	}
	set := map[string]string{}
	for _, option := range strings.Split(info.VFSOptions, ",") {
		name, value, _ := strings.Cut(option, "=")
		set[name] = value
	}
	for _, name := range []string{"metacopy", "index", "redirect_dir"} {
		value, shown := set[name]
		if !shown {
			raw, err := os.ReadFile("/sys/module/overlay/parameters/" + name)
			if err != nil {
				return false, fmt.Errorf("reading overlay defaults: %w", err)
			}
			value = strings.TrimSpace(string(raw))
		}
		if !isOff(value) {
			return false, nil
		}
	}
	return true, nil
}

// HoldNoDevices says whether each mount refuses device nodes and set-id bits, as
// the host's kernel has it.
func HoldNoDevices(targets ...string) (bool, error) {
	for _, target := range targets {
		info, err := mountAt(target)
		if err != nil {
			return false, err
		}
		options := strings.Split(info.Options, ",")
		if !slices.Contains(options, "nodev") || !slices.Contains(options, "nosuid") {
			return false, nil
		}
	}
	return true, nil
}

func mountAt(target string) (*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(target))
	if err != nil || len(infos) == 0 {
		return nil, fmt.Errorf("reading a mount back: %w", orMissing(err))
	}
	return infos[0], nil
}

func isOff(value string) bool {
	switch value {
	case "off", "nofollow", "N", "0":
		return true
	}
	return false
}

func orMissing(err error) error {
	if err == nil {
		return ErrMissing
	}
	return err
}
