package linux

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
)

// Kill ends every process of the group until none is left that is not dead
// already, and counts them. The pids are read from the kernel's list of this
// group and opened as pidfds, then looked up again: a number that was given to
// another process meanwhile is left alone.
func (g Group) Kill() (int, error) {
	count := 0
	for range 100 {
		pids, err := g.Members()
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

// Clear ends what is in the group and removes it. Something that was on its way
// into the group when its runner died may arrive after a look at it.
func (g Group) Clear(ctx context.Context) (killed int, err error) {
	for range 8 {
		n, err := g.Kill()
		killed += n
		if err != nil {
			return killed, err
		}
		if err := g.WaitEmpty(ctx); err != nil {
			return killed, err
		}
		if err = g.Remove(); !errors.Is(err, unix.EBUSY) {
			return killed, err
		}
	}
	return killed, fmt.Errorf("removing cgroup: %w", unix.EBUSY)
}

// End ends every process of the group and returns when the kernel has let go of
// the last. Those that had become our children are reaped.
func (g Group) End(ctx context.Context) error {
	pids, err := g.Members()
	if err != nil {
		return err
	}
	if _, err := g.Kill(); err != nil {
		return err
	}
	if err := g.WaitEmpty(ctx); err != nil {
		return err
	}
	for _, pid := range pids {
		Reap(pid)
	}
	return nil
}

func (g Group) killOne(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	again, err := g.Members()
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

// Members lists the processes of the group in all trees.
func (g Group) Members() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, h := range g.All.Trees {
		raw, err := os.ReadFile(filepath.Join(h.Own, g.Path, "cgroup.procs"))
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
