package docker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// checkPlaces looks at what was mounted for a sandbox, as the kernel tells it. Who
// opens files for a guest is its file server, another process of the group; what is
// hidden from a guest, its own kernel hides.
func (b *box) checkPlaces() error {
	var want unix.Stat_t
	if err := unix.Stat(b.view.Root(), &want); err != nil {
		return fmt.Errorf("looking at our overlay: %w", err)
	}
	if b.job.about.guest() {
		return b.checkServers(want.Dev)
	}
	mounts, err := mountsOf(b.first.pid)
	if err != nil {
		return fmt.Errorf("reading the sandbox's mounts: %w", err)
	}
	some, err := checkMounts(mounts, want.Dev)
	if err == nil && !some {
		err = errNoPlace
	}
	return errors.Join(err, checkFixed(mounts, want.Dev), checkHidden(mounts, exists), checkMemory(mounts), checkStrange(mounts))
}

var errNoPlace = fmt.Errorf("no writable place is to be seen: %w", errApplied)

// checkServers looks at all processes of a guest's group.
func (b *box) checkServers(dev uint64) error {
	pids, err := b.first.group.Members()
	if err != nil {
		return err
	}
	found := false
	for _, pid := range pids {
		mounts, err := mountsOf(pid)
		if err != nil {
			return fmt.Errorf("reading the sandbox's mounts: %w", err)
		}
		some, err := checkMounts(mounts, dev)
		if err != nil {
			return err
		}
		found = found || some
	}
	if !found {
		return errNoPlace
	}
	return nil
}

// mountsOf is empty for a process that has ended meanwhile.
func mountsOf(pid int) ([]*mountinfo.Info, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(bytes.NewReader(raw), nil)
}

// checkMounts wants our disk below every writable place, with the flags that it
// was mounted with: an engine that looks elsewhere for a source binds what it
// finds there, without a word. It says whether a process has the writable places.
// One that has a workspace must have all, and as we lent them; a host has its own
// /tmp.
func checkMounts(mounts []*mountinfo.Info, dev uint64) (some bool, err error) {
	some = slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == sandbox.Workspace })
	for _, place := range linux.Writable {
		if some && !ours(mounts, place, dev, "nosuid", "nodev") {
			return true, fmt.Errorf("%s is not our disk, or without nosuid and nodev: %w", place, errApplied)
		}
	}
	return some, nil
}

// checkFixed wants our own files where the engine has some of its own, or an image
// might. Older engines drop the flags of what is bound read-only.
func checkFixed(mounts []*mountinfo.Info, dev uint64) error {
	for _, place := range fixed {
		if !ours(mounts, place, dev, "ro") {
			return fmt.Errorf("%s is not ours, or can be written: %w", place, errApplied)
		}
	}
	return nil
}

// checkHidden wants everything masked that this kernel has: an engine that ignores
// the list says nothing, and so does one whose runtime has a list of its own.
func checkHidden(mounts []*mountinfo.Info, exists func(string) bool) error {
	var failed error
	for _, path := range linux.Masked {
		m := last(mounts, path)
		if exists(path) && (m == nil || m.Root != "/null" && !(m.FSType == "tmpfs" && has(m.VFSOptions, "ro"))) {
			failed = errors.Join(failed, fmt.Errorf("%s is not hidden: %w", path, errApplied))
		}
	}
	for _, path := range linux.ReadOnly {
		if m := last(mounts, path); exists(path) && (m == nil || !has(m.Options, "ro")) {
			failed = errors.Join(failed, fmt.Errorf("%s can be written: %w", path, errApplied))
		}
	}
	return failed
}

// exists asks the host's kernel, which is the sandbox's.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// checkMemory wants an end to each file system in memory. The size of the shared
// memory is on the supervisor's list.
func checkMemory(mounts []*mountinfo.Info) error {
	for _, c := range []struct{ path, option string }{
		{"/run", "size=" + runKiB + "k"}, {"/run", "nr_inodes=" + runInodes}, {"/dev/shm", "nr_inodes=" + shmInodes},
	} {
		if m := last(mounts, c.path); m == nil || m.FSType != "tmpfs" || !has(m.VFSOptions, c.option) {
			return fmt.Errorf("%s is without %s: %w", c.path, c.option, errApplied)
		}
	}
	if m := last(mounts, "/dev"); m == nil || m.FSType != "tmpfs" || !has(m.Options, "ro") {
		return fmt.Errorf("/dev can be written: %w", errApplied)
	}
	return nil
}

// checkStrange wants nothing that can be written besides what was asked for: an
// engine may have settings that bind something into every container.
func checkStrange(mounts []*mountinfo.Info) error {
	for _, m := range mounts {
		if has(m.Options, "rw") && has(m.VFSOptions, "rw") && !expected(m) {
			return fmt.Errorf("%.200q (%.40s) can be written, and nobody asked for it: %w", m.Mountpoint, m.FSType, errApplied)
		}
	}
	return nil
}

// expected says whether a writable mount is one that every container has. Control
// groups are below what hides them (checkHidden).
func expected(m *mountinfo.Info) bool {
	switch m.FSType {
	case "proc", "cgroup", "cgroup2", "devpts":
		return true
	case "tmpfs", "devtmpfs":
		node := filepath.Dir(m.Mountpoint) == "/dev" && m.Root == "/"+filepath.Base(m.Mountpoint)
		return node || m.Root == "/null" || slices.Contains([]string{"/run", "/dev/shm", "/sys/fs/cgroup"}, m.Mountpoint) && m.Root == "/"
	}
	return slices.Contains(linux.Writable, m.Mountpoint)
}

// ours says whether our overlay is to be seen at a place, with some options.
func ours(mounts []*mountinfo.Info, place string, dev uint64, options ...string) bool {
	m := last(mounts, place)
	return m != nil && m.Major == int(unix.Major(dev)) && m.Minor == int(unix.Minor(dev)) && m.Root == place &&
		!slices.ContainsFunc(options, func(option string) bool { return !has(m.Options, option) })
}

// last is the mount at a place that is seen; nil: none.
func last(mounts []*mountinfo.Info, place string) *mountinfo.Info {
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint == place {
			return m
		}
	}
	return nil
}

// has looks for one of the options of a mount or a file system.
func has(options, one string) bool { return slices.Contains(strings.Split(options, ","), one) }
