package docker

import (
	"bytes"
	"context"
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

// errApplied is in the chain when an engine did something else than it was asked
// to.
var errApplied = errors.New("the engine applied something else")

// Applied reads every control back from the kernel. The engine's own view of the
// container is not asked: it repeats the request.
func (b *box) Applied(ctx context.Context) (sandbox.Applied, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Applied{}, err
	}
	if b.done || b.closed || b.first == nil {
		return sandbox.Applied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading a sandbox back: it has ended"}
	}
	about := b.job.about
	a := sandbox.Applied{Isolation: about.isolation, Unable: about.unable()}
	err := errors.Join(b.first.group.Apply(&a), b.view.Disk.Apply(b.view.Root(), &a), linux.ReadProcess(b.first.pid, &a),
		b.checkPlaces(), checkIDs(about, a), b.checkKernel())
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	return a, nil
}

// checkIDs compares the kernel's map with what the files were prepared for.
func checkIDs(about facts, a sandbox.Applied) error {
	if a.FirstID != about.first {
		return fmt.Errorf("uid 0 inside is %d on the host, want %d: %w", a.FirstID, about.first, errApplied)
	}
	return nil
}

// checkKernel wants a guest's kernel where the runtime should bring one.
func (b *box) checkKernel() error {
	program, err := os.Readlink("/proc/" + strconv.Itoa(b.first.pid) + "/exe")
	if err != nil {
		return fmt.Errorf("looking at the program of PID 1: %w", err)
	}
	own := program == sandbox.InitPath
	if own == b.job.about.guest() {
		return fmt.Errorf("the host runs %.100q as PID 1: %w", program, errApplied)
	}
	return nil
}

// checkPlaces wants our disk below every writable place, with the flags that it
// was mounted with: an engine that looks elsewhere for a source binds what it
// finds there, without a word. Who opens files for a guest is its file server,
// another process of the group.
func (b *box) checkPlaces() error {
	var want unix.Stat_t
	if err := unix.Stat(b.view.Root(), &want); err != nil {
		return fmt.Errorf("looking at our overlay: %w", err)
	}
	pids := []int{b.first.pid}
	if b.job.about.guest() {
		var err error
		if pids, err = b.first.group.Members(); err != nil {
			return err
		}
	}
	found := false
	for _, pid := range pids {
		mounts, err := mountsOf(pid)
		if err != nil {
			return fmt.Errorf("reading the sandbox's mounts: %w", err)
		}
		some, err := checkMounts(mounts, want.Dev)
		if err != nil {
			return err
		}
		found = found || some
	}
	if !found {
		return fmt.Errorf("no writable place is to be seen: %w", errApplied)
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

// checkMounts says whether a process has the writable places. One that has a
// workspace must have all, and as we lent them; a host has its own /tmp.
func checkMounts(mounts []*mountinfo.Info, dev uint64) (some bool, err error) {
	some = slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == sandbox.Workspace })
	for _, place := range linux.Writable {
		if some && !ours(mounts, place, dev) {
			return true, fmt.Errorf("%s is not our disk, or without nosuid and nodev: %w", place, errApplied)
		}
	}
	return some, nil
}

// ours looks at the last mount at a place, which is the one that is seen.
func ours(mounts []*mountinfo.Info, place string, dev uint64) bool {
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint != place {
			continue
		}
		options := strings.Split(m.Options, ",")
		return m.Major == int(unix.Major(dev)) && m.Minor == int(unix.Minor(dev)) && m.Root == place &&
			slices.Contains(options, "nosuid") && slices.Contains(options, "nodev")
	}
	return false
}

// Counters reads what the kernel counted against the limits.
func (b *box) Counters(ctx context.Context) (sandbox.Counters, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Counters{}, err
	}
	if b.closed || b.first == nil {
		return sandbox.Counters{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading counters: the sandbox is closed"}
	}
	c, err := b.first.counters()
	if err != nil {
		if c, err = b.ask(ctx, c); err != nil {
			return sandbox.Counters{}, fmt.Errorf("reading counters: %w", err)
		}
	}
	if b.view.Disk != nil {
		c.DiskErrors, err = b.view.Disk.Failures()
	}
	return c, err
}

// ask has the engine say whether memory ended a sandbox whose counters went with
// it, before they could be read.
func (b *box) ask(ctx context.Context, c sandbox.Counters) (sandbox.Counters, error) {
	saw, err := b.job.driver.engine.inspect(ctx, b.container)
	if err != nil {
		return c, err
	}
	if saw.oomKilled {
		c.OOMKills++
	}
	return c, nil
}
