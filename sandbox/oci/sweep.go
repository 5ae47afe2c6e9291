package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Sweep removes what an earlier runner of this instance left: the caller holds
// the instance's lock, so whatever carries its label and is not ours is dead or
// has nobody who wants it.
func (d *Driver) Sweep(ctx context.Context) (sandbox.Swept, error) {
	swept := sandbox.Swept{}
	err := d.sweepGroups(ctx, d.label(), swept)
	return swept, errors.Join(err, d.sweepLoops(swept), d.sweepFiles(swept), d.sweepOnce(ctx, swept))
}

// onceInstances is how instances of single commands begin. They have no later
// start of their own, so whoever finds such a lock free removes what is left.
const onceInstances = "run-"

func (d *Driver) sweepOnce(ctx context.Context, swept sandbox.Swept) error {
	dir, err := d.config.Run.Open(".")
	if err != nil {
		return fmt.Errorf("listing instances: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("listing instances: %w", err)
	}
	var failed error
	for _, name := range names {
		if !strings.HasPrefix(name, onceInstances) || name == d.config.Instance {
			continue
		}
		lock, err := hostlock.Take(d.config.Run, name+"/runner.lock")
		if err != nil {
			continue // alive, or gone meanwhile
		}
		failed = errors.Join(failed, d.sweepGroups(ctx, "veyra-"+name, swept))
		swept["lock"]++
		lock.Release()
		_ = d.config.Run.Remove(name) // not empty: somebody else's to remove
	}
	return failed
}

// sweepGroups ends the processes in the instance's cgroups, then removes those.
// Sandboxes that this runner holds are skipped.
func (d *Driver) sweepGroups(ctx context.Context, label string, swept sandbox.Swept) error {
	names := map[string]bool{}
	for _, h := range d.cgroups.trees {
		entries, err := os.ReadDir(filepath.Join(h.own, label))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("listing cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !(label == d.label() && d.live(e.Name())) {
				names[e.Name()] = true
			}
		}
	}
	for name := range names {
		g := group{d.cgroups, filepath.Join(label, name)}
		killed, err := g.clear(ctx)
		if err != nil {
			return err
		}
		swept["cgroup"]++
		if killed > 0 {
			swept["container"]++
		}
	}
	if label != d.label() || !d.hasBoxes() {
		return group{d.cgroups, label}.remove()
	}
	return nil
}

// live says whether a sandbox of that name belongs to this runner.
func (d *Driver) live(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, j := range d.jobs {
		if j.has(name) {
			return true
		}
	}
	return false
}

func (d *Driver) hasBoxes() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.jobs) > 0
}

func (j *job) has(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for b := range j.boxes {
		if b.id == name {
			return true
		}
	}
	return false
}

// kill ends every process of the group until none is left that is not dead
// already, and counts them. The pids are read from the kernel's list of this
// group and opened as pidfds, then looked up again: a number that was given to
// another process meanwhile is left alone.
func (g group) kill() (int, error) {
	count := 0
	for range 100 {
		pids, err := g.members()
		if err != nil || len(pids) == 0 {
			return count, err
		}
		for _, pid := range pids {
			if g.killOne(pid) {
				count++
			}
		}
	}
	return count, nil
}

// clear ends what is in the group and removes it. Something that was on its way
// into the group when its runner died may arrive after a look at it.
func (g group) clear(ctx context.Context) (killed int, err error) {
	for range 8 {
		n, err := g.kill()
		killed += n
		if err != nil {
			return killed, err
		}
		if err := g.waitEmpty(ctx); err != nil {
			return killed, err
		}
		if err = g.remove(); !errors.Is(err, unix.EBUSY) {
			return killed, err
		}
	}
	return killed, fmt.Errorf("removing cgroup: %w", unix.EBUSY)
}

func (g group) killOne(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	again, err := g.members()
	if err != nil {
		return false
	}
	for _, p := range again {
		if p == pid {
			return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
		}
	}
	return false
}

// members lists the processes of the group in all trees.
func (g group) members() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, h := range g.all.trees {
		raw, err := os.ReadFile(filepath.Join(h.own, g.path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading cgroup.procs: %w", err)
		}
		for field := range strings.FieldsSeq(string(raw)) {
			pid, err := strconv.Atoi(field)
			if err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// sweepLoops detaches loop devices whose file lay in the instance's directory
// and that this runner does not use. They vanish by themselves once nothing
// mounts them; this is for a kernel that was asked too early.
func (d *Driver) sweepLoops(swept sandbox.Swept) error {
	d.mu.Lock()
	begun := d.begun
	d.mu.Unlock()
	if begun {
		return nil // a disk of ours may be on its way from file to mount
	}
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("listing loop devices: %w", err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw), d.config.Disks+"/disk-") {
			continue
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if isMounted(device) {
			continue // ours
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
// between making and unlinking one, and copies of images. A driver that has
// begun may be using some.
func (d *Driver) sweepFiles(swept sandbox.Swept) error {
	d.mu.Lock()
	begun := d.begun
	d.mu.Unlock()
	if begun {
		return nil
	}
	for _, pattern := range []string{"disk-*.img", "copy-*"} {
		paths, err := filepath.Glob(filepath.Join(d.config.Disks, pattern))
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
