package linux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Hierarchy is one mounted cgroup tree and the daemon's own place in it.
type Hierarchy struct {
	controllers map[string]bool // empty for the unified tree
	Unified     bool
	Own         string // absolute path of the directory that ours lie below
}

// Cgroups are all trees of the host. Everything of an instance lies below the
// daemon's own cgroup of each tree: an absolute path would escape the limits
// of the unit that started us.
type Cgroups struct {
	Trees []Hierarchy
	pure  bool // version 2 only
}

// FindCgroups reads where we are.
func FindCgroups() (*Cgroups, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("reading cgroup mounts: %w", err)
	}
	places, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return arrange(mounts, places), nil
}

// arrange finds our place in each tree. The same rules as the OCI runtime's
// decide what a relative path means: below our own cgroup in version 1, beside
// it in version 2, where a group with processes can't have children with
// limits.
func arrange(mounts []*mountinfo.Info, places map[string]string) *Cgroups {
	return inTrees(mounts, places, isPure(mounts))
}

// inTrees looks places up in every tree, or the directory beside each.
func inTrees(mounts []*mountinfo.Info, places map[string]string, beside bool) *Cgroups {
	found := &Cgroups{pure: isPure(mounts)}
	seen := map[string]bool{}
	for i, m := range mounts {
		if hidden(m, mounts[i+1:]) {
			continue
		}
		h, ok := placeIn(m, places, beside)
		if ok && !seen[h.Own] {
			seen[h.Own] = true
			found.Trees = append(found.Trees, h)
		}
	}
	return found
}

// hidden says that a later mount lies over m, so that nobody gets to see it.
func hidden(m *mountinfo.Info, later []*mountinfo.Info) bool {
	return slices.ContainsFunc(later, func(l *mountinfo.Info) bool { return l.Mountpoint == m.Mountpoint })
}

// isPure says whether the host has version 2 only.
func isPure(mounts []*mountinfo.Info) bool {
	for _, m := range mounts {
		if m.FSType != "cgroup2" {
			return false
		}
	}
	return true
}

// GroupOf finds the control groups of a process that an engine has put there.
// Only directories that carry id in their path count: everywhere else the process
// shares its group with strangers, whom nobody here may count or end.
func GroupOf(pid int, id string) (Group, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return Group{}, fmt.Errorf("reading cgroup mounts: %w", err)
	}
	places, err := ownPlaces(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return Group{}, err
	}
	all := inTrees(mounts, places, false)
	all.Trees = slices.DeleteFunc(all.Trees, func(h Hierarchy) bool { return !strings.Contains(h.Own, id) })
	if len(all.Trees) == 0 {
		return Group{}, fmt.Errorf("control group of process %d: %w", pid, ErrMissing)
	}
	return Group{All: all}, nil
}

func placeIn(m *mountinfo.Info, places map[string]string, beside bool) (Hierarchy, bool) {
	h := Hierarchy{controllers: map[string]bool{}, Unified: m.FSType == "cgroup2"}
	key := ""
	if !h.Unified {
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			if _, known := places[option]; known {
				h.controllers[option], key = true, option
			}
		}
		if key == "" {
			return h, false
		}
	}
	own := places[key]
	if beside {
		own = filepath.Dir(own)
	}
	rel, err := filepath.Rel(m.Root, own)
	if err != nil || strings.HasPrefix(rel, "..") {
		rel = "." // our place lies outside of what is mounted here
	}
	h.Own = filepath.Join(m.Mountpoint, rel)
	return h, true
}

// ownPlaces maps each controller (or name=…) to our path; "" is version 2.
func ownPlaces(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading own cgroup: %w", err)
	}
	defer f.Close()
	places := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, controller := range strings.Split(parts[1], ",") {
			places[controller] = parts[2]
		}
	}
	return places, lines.Err()
}

// Below returns our own place in the tree that is mounted at a point; "" where
// that is the point itself, or no tree of ours.
func (c *Cgroups) Below(point string) string {
	for _, h := range c.Trees {
		if strings.HasPrefix(h.Own, point+"/") {
			return h.Own
		}
	}
	return ""
}

// With returns the tree that carries a controller.
func (c *Cgroups) With(controller string) (Hierarchy, bool) {
	for _, h := range c.Trees {
		if h.controllers[controller] {
			return h, true
		}
		if h.Unified && c.pure {
			raw, _ := os.ReadFile(filepath.Join(h.Own, "cgroup.controllers"))
			if containsWord(string(raw), controller) {
				return h, true
			}
		}
	}
	return Hierarchy{}, false
}

func containsWord(text, word string) bool {
	for _, w := range strings.Fields(text) {
		if w == word {
			return true
		}
	}
	return false
}

// group is one sandbox's cgroup in all trees.
type Group struct {
	All  *Cgroups
	Path string // relative: veyra-<instance>/<sandbox>
}

func (g Group) file(controller, name string) (string, error) {
	h, ok := g.All.With(controller)
	if !ok {
		return "", fmt.Errorf("cgroup controller %s: %w", controller, ErrMissing)
	}
	return filepath.Join(h.Own, g.Path, name), nil
}

// Read returns a number; "max" is -1.
func (g Group) Read(controller, v1, v2 string) (int64, error) {
	name := v1
	if g.All.pure {
		name = v2
	}
	path, err := g.file(controller, name)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", name, err)
	}
	return parseLimit(strings.TrimSpace(string(raw)))
}

func parseLimit(s string) (int64, error) {
	if s == "max" {
		return -1, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cgroup value %.40q: %w", s, strconv.ErrSyntax)
	}
	return n, nil
}

// Keyed returns one line's number of a "key value" file.
func (g Group) Keyed(controller, v1, v2, key string) (int64, error) {
	name := v1
	if g.All.pure {
		name = v2
	}
	path, err := g.file(controller, name)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", name, err)
	}
	for line := range strings.Lines(string(raw)) {
		if k, v, found := strings.Cut(strings.TrimSpace(line), " "); found && k == key {
			return parseLimit(v)
		}
	}
	return 0, fmt.Errorf("%s in %s: %w", key, name, ErrMissing)
}

// Peak is the most memory so far. Before Linux 5.19 version 2 only tells what
// is used now.
func (g Group) Peak() (int64, error) {
	n, err := g.Read("memory", "memory.max_usage_in_bytes", "memory.peak")
	if g.All.pure && errors.Is(err, fs.ErrNotExist) {
		return g.Read("memory", "", "memory.current")
	}
	return n, err
}

// CPUMilli reads the quota back as thousandths of a core; -1: none.
func (g Group) CPUMilli() (int64, error) {
	if g.All.pure {
		path, err := g.file("cpu", "cpu.max")
		if err != nil {
			return 0, err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("reading cpu.max: %w", err)
		}
		return parseCPUMax(string(raw))
	}
	quota, err := g.Read("cpu", "cpu.cfs_quota_us", "")
	if err != nil || quota < 0 {
		return quota, err
	}
	period, err := g.Read("cpu", "cpu.cfs_period_us", "")
	if err != nil || period <= 0 {
		return 0, fmt.Errorf("cpu period: %w", errors.Join(err, ErrMissing))
	}
	return quota * 1000 / period, nil
}

func parseCPUMax(raw string) (int64, error) {
	fields := strings.Fields(raw)
	if len(fields) != 2 {
		return 0, fmt.Errorf("cpu.max %.40q: %w", raw, strconv.ErrSyntax)
	}
	quota, err := parseLimit(fields[0])
	if err != nil || quota < 0 {
		return quota, err
	}
	period, err := parseLimit(fields[1])
	if err != nil || period <= 0 {
		return 0, fmt.Errorf("cpu.max %.40q: %w", raw, strconv.ErrSyntax)
	}
	return quota * 1000 / period, nil
}

// NoSwap says whether the memory limit includes swap, or there is none.
func (g Group) NoSwap(limit int64) bool {
	if g.All.pure {
		n, err := g.Read("memory", "", "memory.swap.max")
		if err == nil {
			return n == 0
		}
		return !HostHasSwap()
	}
	n, err := g.Read("memory", "memory.memsw.limit_in_bytes", "")
	if err == nil {
		return n == limit
	}
	return !HostHasSwap()
}

// HostHasSwap reads /proc/swaps: a header, then one line for each area.
func HostHasSwap() bool {
	raw, err := os.ReadFile("/proc/swaps")
	return err != nil || strings.Count(strings.TrimSpace(string(raw)), "\n") > 0
}

// SwapAccounting says whether the runtime can be asked for a swap limit.
func (c *Cgroups) SwapAccounting() bool {
	h, ok := c.With("memory")
	if !ok {
		return false
	}
	if c.pure {
		return true // without memory.swap.max the runtime leaves it out
	}
	return IsFile(filepath.Join(h.Own, "memory.memsw.limit_in_bytes"))
}

// empty says whether no process is left in any tree.
func (g Group) empty() (bool, error) {
	for _, h := range g.All.Trees {
		raw, err := os.ReadFile(filepath.Join(h.Own, g.Path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("reading cgroup.procs: %w", err)
		}
		if len(strings.TrimSpace(string(raw))) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// WaitEmpty waits until the kernel has let go of every process, 10 s at most.
func (g Group) WaitEmpty(ctx context.Context) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		done, err := g.empty()
		if err != nil || done {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for processes of a sandbox: %w", os.ErrDeadlineExceeded)
		}
		if err := Pause(ctx, 500*time.Microsecond); err != nil {
			return err
		}
	}
}

// Remove takes the sandbox's directories away in all trees.
func (g Group) Remove() error {
	var failed error
	for _, h := range g.All.Trees {
		failed = errors.Join(failed, removeGroup(filepath.Join(h.Own, g.Path)))
	}
	return failed
}

// removeGroup tries again while the kernel still counts dead tasks.
func removeGroup(path string) error {
	deadline := time.Now().Add(time.Second)
	for {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// ErrMissing is in the chain when the host lacks what was to be read.
var ErrMissing = errors.New("not found on this host")
