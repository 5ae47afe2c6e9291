package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/subids"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// RootlessCommand is the hidden first argument of the program for the process in
// which MeasureRootless tries things out.
const RootlessCommand = "__rootless"

// rootlessTime bounds the whole measurement.
const rootlessTime = 10 * time.Second

// MeasureRootless says control by control what this host would hold a sandbox by
// that an ordinary user starts. Ids are really mapped and mounts really made, by
// program, a file of ours, in a process that ends with the measurement; nothing
// stays.
func MeasureRootless(ctx context.Context, program string) []sandbox.Control {
	ctx, cancel := context.WithTimeout(ctx, rootlessTime)
	defer cancel()
	blocks, err := subids.Find()
	ids := sandbox.Control{
		Name: "subordinate_ids", Enforced: blocks.Count() >= rangeSize,
		Seen: fmt.Sprintf("%d user ids, %d group ids", blocks.UIDs.Count, blocks.GIDs.Count),
		Fix:  fmt.Sprintf("give this account %d subordinate ids: usermod --add-subuids, --add-subgids", rangeSize),
	}
	if err != nil {
		ids.Enforced, ids.Seen = false, err.Error()
	}
	controls := []sandbox.Control{ids}
	if ids.Enforced {
		controls = append(controls, tryRootless(ctx, program, blocks)...)
	}
	return slices.Concat(controls, standIns(controls), noGroups())
}

// stands are what stands in for a control group and a loop device: a limit of tasks
// by user id, and a tmpfs for each sandbox.
var stands = []struct {
	name, seen string
	needs      string // what was tried for it; empty: nothing
}{
	{"pids", "RLIMIT_NPROC, which counts by sandbox and user id", "user_namespace"},
	{"disk", "the size of a tmpfs: the sandbox's disk is memory of the host", "mounts"},
	{"inodes", "the inodes of a tmpfs", "mounts"},
}

// standIns says which of them there will be, by what could be made.
func standIns(made []sandbox.Control) []sandbox.Control {
	worked := map[string]bool{}
	for _, c := range made {
		worked[c.Name] = c.Enforced
	}
	var controls []sandbox.Control
	for _, s := range stands {
		c := sandbox.Control{Name: s.name, Enforced: worked[s.needs], Seen: s.seen, For: policies.Control(s.name)}
		if !c.Enforced {
			c.Seen, c.Fix = "not without "+s.needs, "see there, or start as root"
		}
		controls = append(controls, c)
	}
	return controls
}

// noGroups are what no ordinary user's sandbox is held by. A subtree of version 2
// that was delegated is not used.
func noGroups() []sandbox.Control {
	swap := sandbox.Control{Name: "swap", Enforced: !linux.HostHasSwap(), Seen: "the host has none", For: policies.ControlSwap}
	if !swap.Enforced {
		swap.Seen, swap.Fix = "the host has swap", "start as root, or go without"
	}
	return append(rootlessFacts(""), swap)
}

// tryRootless maps ids and lets the mapped process make mounts.
func tryRootless(ctx context.Context, program string, blocks subids.Blocks) []sandbox.Control {
	space := sandbox.Control{Name: "user_namespace", Fix: "the package uidmap, and sysctl user.max_user_namespaces=10000"}
	said, err := mapped(ctx, program, blocks)
	if err != nil {
		space.Seen = err.Error()
		return []sandbox.Control{space}
	}
	space.Enforced, space.Seen = true, fmt.Sprintf("ids of our own and %d+%d were mapped", blocks.UIDs.First, rangeSize)
	controls := []sandbox.Control{space}
	for _, name := range []string{"mounts", "overlay"} {
		c := sandbox.Control{Name: name, Enforced: said[name] == "", Seen: "made in the namespace", Fix: "a kernel from 6.6 up that lets user namespaces mount"}
		if !c.Enforced {
			c.Seen = said[name]
		}
		controls = append(controls, c)
	}
	return controls
}

// mapped starts the program in a user namespace, gives it its ids and returns
// what it says: the errors by what was tried.
func mapped(ctx context.Context, program string, blocks subids.Blocks) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, program, RootlessCommand)
	cmd.Env, cmd.WaitDelay = []string{}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	var out linux.Tail
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("making a user namespace: %w", err)
	}
	err = blocks.Map(ctx, cmd.Process.Pid, rangeSize)
	if err == nil {
		_, err = stdin.Write([]byte{1})
	}
	_ = stdin.Close() // without the byte it ends
	waitErr := cmd.Wait()
	if err != nil {
		return nil, err
	}
	var said map[string]string
	if err := json.Unmarshal([]byte(out.Text()), &said); err != nil {
		return nil, fmt.Errorf("trying mounts in a user namespace: %w", errors.Join(err, waitErr))
	}
	return said, nil
}

// RootlessMain is that process: args are the arguments behind RootlessCommand. It
// waits until its ids are mapped and executes itself, which as root of the
// namespace gives it the powers that its first start could not have; then once
// more, from a thread with mounts of its own, which leaves no other thread.
func RootlessMain(args []string) int {
	var err error
	switch strings.Join(args, " ") {
	case "":
		if _, err = io.ReadFull(os.Stdin, make([]byte, 1)); err == nil {
			err = again("mapped")
		}
	case "mapped":
		runtime.LockOSThread() // never unlocked: execve ends the others
		if err = unix.Unshare(unix.CLONE_NEWNS); err == nil {
			err = again("entered")
		}
	case "entered":
		said := map[string]string{}
		for _, step := range []struct {
			name string
			do   func() error
		}{{"mounts", rootlessStage}, {"overlay", rootlessOverlay}} {
			if err := step.do(); err != nil {
				said[step.name] = err.Error()
			}
		}
		err = json.NewEncoder(os.Stdout).Encode(said)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "measuring as an ordinary user:", err)
		return 1
	}
	return 0
}

func again(stage string) error {
	return syscall.Exec("/proc/self/exe", []string{os.Args[0], RootlessCommand, stage}, []string{})
}

// rootlessPlace is hidden by the measurement's own tmpfs, in its own namespace.
const rootlessPlace = "/tmp"

func rootlessStage() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cutting off the mount namespace: %w", err)
	}
	if err := unix.Mount("veyra", rootlessPlace, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755,size=1m"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	return nil
}

// rootlessOverlay deletes what lies below, for which the kernel makes a whiteout, and
// makes a directory anew, for which it writes a mark.
func rootlessOverlay() error {
	for _, dir := range []string{"low", "low/dir", "up", "wk", "all"} {
		if err := os.Mkdir(filepath.Join(rootlessPlace, dir), 0o755); err != nil {
			return err
		}
	}
	below := filepath.Join(rootlessPlace, "low", "file")
	if err := errors.Join(os.WriteFile(below, []byte("x"), 0o644), os.Lchown(below, sandbox.User, sandbox.Group)); err != nil {
		return err
	}
	all := filepath.Join(rootlessPlace, "all")
	if err := linux.MountOverlay(rootlessPlace, all, []string{filepath.Join(rootlessPlace, "low")}, filepath.Join(rootlessPlace, "up"), filepath.Join(rootlessPlace, "wk")); err != nil {
		return err
	}
	again := filepath.Join(all, "dir")
	if err := errors.Join(os.Remove(filepath.Join(all, "file")), os.Remove(again), os.Mkdir(again, 0o755)); err != nil {
		return err
	}
	var mark [8]byte
	if _, err := unix.Getxattr(filepath.Join(rootlessPlace, "up", "dir"), "user.overlay.opaque", mark[:]); err != nil {
		return fmt.Errorf("reading an overlay's mark: %w", err)
	}
	return nil
}

// findCgroups finds none for an ordinary user: none can be relied on.
func findCgroups(rootless bool) (*linux.Cgroups, error) {
	if rootless {
		return &linux.Cgroups{}, nil
	}
	return linux.FindCgroups()
}

func newPool(config Config) *linux.Pool {
	mounts := filepath.Join(config.Stage, "d")
	if config.Rootless {
		return linux.NewMemoryPool(mounts, config.Log)
	}
	return linux.NewPool(config.Disks, mounts, config.Pool, config.Log)
}

// rootlessFacts names what an ordinary user's sandboxes can't be held by. That
// tasks and disks are limited is read back from each sandbox.
func rootlessFacts(prefix string) []sandbox.Control {
	var controls []sandbox.Control
	for _, name := range []string{"memory", "cpu"} {
		controls = append(controls, sandbox.Control{
			Name: prefix + name, For: policies.Control(name), Seen: "no control group is an ordinary user's",
			Fix: "start as root, or go without it in a policy of your own (without: [memory, swap, cpu])",
		})
	}
	return controls
}

// findUnable is what the host can't enforce. As an ordinary user a limit by user id
// stands in for the control group of tasks, and without swap none needs a limit.
func findUnable(rootless bool, groups *linux.Cgroups) []policies.Control {
	unable := groups.Unable()
	if !rootless {
		return unable
	}
	return slices.DeleteFunc(unable, func(c policies.Control) bool {
		return c == policies.ControlPIDs || c == policies.ControlSwap && !linux.HostHasSwap()
	})
}

// readRootless reads what stands in for control groups.
func readRootless(pid int, a *sandbox.Applied) (err error) {
	a.NoSwap = !linux.HostHasSwap()
	a.PIDs, err = linux.ReadTasks(pid)
	return err
}
