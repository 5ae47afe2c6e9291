package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

const (
	// traceName is a file in an instance's run directory, there while a driver
	// lives or something of a dead one may be left.
	traceName = "traces.json"
	maxTrace  = 64 << 10
)

// Traces tells whoever finds this instance's lock free where its objects lie: an
// instance may never be started again, and what a killed start left of the OCI
// runtime would hold its disks until the host restarts. It also sweeps after
// such instances. All methods may be called at once.
type Traces struct {
	Instance string   // this one
	Run      *os.Root // the run directory that all instances share
	Disks    string   // directory of this instance's disk files
	Cgroups  *Cgroups // where its label lies
	Log      *slog.Logger
	// Engine is the socket of the engine that this instance lends mounts to; empty:
	// none.
	Engine string
	// Lent takes back what an instance of the same engine has lent to it. It is nil
	// where Engine is empty.
	Lent func(ctx context.Context, instance string, swept sandbox.Swept) error
}

// trace is the file's text.
type trace struct {
	// Groups are the directories that the instance's label lies in.
	Groups []string `json:"groups"`
	// Disks is the directory of its disk files, without a link in its path.
	Disks string `json:"disks"`
	// Engine is the engine that it lent mounts to. Only a driver of the same one
	// can take them back.
	Engine string `json:"engine,omitempty"`
}

// instanceName is what the runner lets an instance be called.
var instanceName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// Leave writes the file. A crash before it leaves nothing to be swept.
func (t Traces) Leave() error {
	disks, err := filepath.EvalSymlinks(t.Disks)
	if err != nil {
		return fmt.Errorf("resolving the disks' directory: %w", err)
	}
	text, err := json.Marshal(trace{Groups: t.groups(), Disks: disks, Engine: t.Engine})
	if err == nil {
		err = t.Run.WriteFile(tracePath(t.Instance), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("leaving traces of this instance: %w", err)
	}
	return nil
}

func (t Traces) groups() []string {
	var dirs []string
	for _, h := range t.Cgroups.Trees {
		dirs = append(dirs, h.Own)
	}
	return dirs
}

func tracePath(instance string) string { return instance + "/" + traceName }

// Drop says that nothing is left. A second call does nothing.
func (t Traces) Drop() error { return dropTrace(t.Run, t.Instance) }

func dropTrace(run *os.Root, instance string) error {
	if err := run.Remove(tracePath(instance)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the traces of %s: %w", instance, err)
	}
	return nil
}

// SweepOthers sweeps the instances whose lock nobody holds, under that lock: a
// runner holds it from its start to its end, and a successor waits for it. What
// can't be removed is logged: it must not keep this instance from working.
func (t Traces) SweepOthers(ctx context.Context, swept sandbox.Swept) {
	names, err := fs.ReadDir(t.Run.FS(), ".")
	if err != nil {
		t.Log.Warn("listing the host's instances", "err", err)
	}
	for _, entry := range names {
		name := entry.Name()
		if !entry.IsDir() || name == t.Instance || !instanceName.MatchString(name) || !t.marked(name) {
			continue
		}
		if err := t.sweepOther(ctx, name, swept); err != nil {
			t.Log.Warn("sweeping after another instance", "instance", name, "err", err)
		}
	}
}

// lockOf is where the runner of an instance holds its lock.
func lockOf(instance string) string { return instance + "/runner.lock" }

// marked says whether a runner of the name lives or has left something. Taking
// a lock would make its file.
func (t Traces) marked(instance string) bool {
	for _, name := range []string{lockOf(instance), tracePath(instance)} {
		if _, err := t.Run.Lstat(name); err == nil {
			return true
		}
	}
	return false
}

// sweepOther leaves the trace where something could not be removed, for the next
// who looks.
func (t Traces) sweepOther(ctx context.Context, instance string, swept sandbox.Swept) error {
	lock, err := hostlock.Take(t.Run, lockOf(instance))
	if errors.Is(err, hostlock.ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return nil // alive, or gone meanwhile
	}
	if err != nil {
		return err
	}
	defer func() {
		lock.Release()
		_ = t.Run.Remove(instance) // not empty: somebody else's to remove
	}()
	found, err := t.read(instance)
	if err != nil {
		return err
	}
	if found.Engine != "" && found.Engine == t.Engine {
		if err := t.Lent(ctx, instance, swept); err != nil {
			return err
		}
	}
	if err := found.sweep(ctx, instance, swept); err != nil {
		return err
	}
	if found.Engine != t.Engine && found.Engine != "" {
		return nil // what it has lent is for whoever uses that engine
	}
	// Without traces it may have ended well while we came here, and left nothing.
	if _, err := t.Run.Lstat(tracePath(instance)); err == nil {
		Count(swept, "lock", 1)
	}
	return dropTrace(t.Run, instance)
}

// read looks beside our own groups where a runner left no traces.
func (t Traces) read(instance string) (trace, error) {
	found := trace{Groups: t.groups()}
	f, err := t.Run.Open(tracePath(instance))
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTrace))
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return found, fmt.Errorf("reading %s: %w", traceName, err)
	}
	return found, nil
}

// sweep removes what the trace leads to. Every name that is removed is made of
// the instance's, below a cgroup tree or in a directory that is root's alone.
func (t trace) sweep(ctx context.Context, instance string, swept sandbox.Swept) error {
	all := &Cgroups{}
	for _, dir := range t.Groups {
		if filepath.IsAbs(dir) && isCgroup(dir) {
			all.Trees = append(all.Trees, Hierarchy{Own: filepath.Clean(dir)})
		}
	}
	label := "veyra-" + instance
	dead := func(string) bool { return false }
	if err := errors.Join(all.Sweep(ctx, label, dead, swept), Group{all, label}.Remove()); err != nil {
		return err
	}
	if filepath.Base(t.Disks) != instance {
		return nil
	}
	return sweepOthersDisks(t.Disks, swept)
}

func isCgroup(dir string) bool {
	var st unix.Statfs_t
	magics := []int64{unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC}
	return unix.Statfs(dir, &st) == nil && slices.Contains(magics, int64(st.Type))
}

// sweepOthersDisks empties a directory of disks and removes it. One that is missing,
// that this process can't see or write, or that anybody but root could have put
// there, is left alone: only its own instance knows better.
func sweepOthersDisks(dir string, swept sandbox.Swept) error {
	parent, err := openOurs(filepath.Dir(dir))
	if err != nil {
		return nil
	}
	defer parent.Close()
	disks, err := openOurs(dir)
	if err != nil {
		return nil
	}
	defer disks.Close()
	err = errors.Join(sweepLoops(dir, swept), sweepFiles(disks, swept))
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	_ = parent.Remove(filepath.Base(dir)) // not empty: something we don't know
	return err
}

var errNotOurs = errors.New("not a directory of root's alone")

// openOurs follows no link: the directories above may be another user's.
func openOurs(dir string) (*os.Root, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return nil, errNotOurs
	}
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}
