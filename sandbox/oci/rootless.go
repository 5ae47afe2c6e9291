package oci

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
// stays. Sandboxes are started as root only.
func MeasureRootless(ctx context.Context, program string) []sandbox.Control {
	ctx, cancel := context.WithTimeout(ctx, rootlessTime)
	defer cancel()
	uids, uidErr := subordinate("/etc/subuid")
	gids, gidErr := subordinate("/etc/subgid")
	ids := sandbox.Control{
		Name: "subordinate_ids", Enforced: uids.count > rangeSize && gids.count > rangeSize,
		Seen: fmt.Sprintf("%d user ids, %d group ids", uids.count, gids.count),
		Fix:  fmt.Sprintf("give this account %d subordinate ids: usermod --add-subuids, --add-subgids", rangeSize+1),
	}
	if err := errors.Join(uidErr, gidErr); err != nil {
		ids.Enforced, ids.Seen = false, err.Error()
	}
	controls := []sandbox.Control{ids}
	if ids.Enforced {
		controls = append(controls, tryRootless(ctx, program, uids, gids)...)
	}
	return append(append(controls, rootlessLimits()...), quotas()...)
}

// subordinate is the largest block of ids that the file gives to our account, by
// name or by number (subuid(5)).
func subordinate(path string) (span, error) {
	names := map[string]bool{strconv.Itoa(os.Getuid()): true}
	if me, err := user.Current(); err == nil {
		names[me.Username] = true
	}
	f, err := os.Open(path)
	if err != nil {
		return span{}, fmt.Errorf("reading subordinate ids: %w", err)
	}
	defer f.Close()
	var most span
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(parts) != 3 || !names[parts[0]] {
			continue
		}
		first, err := strconv.ParseUint(parts[1], 10, 32)
		count, err2 := strconv.ParseUint(parts[2], 10, 32)
		if err == nil && err2 == nil && count > most.count {
			most = span{first, count}
		}
	}
	return most, nil
}

// rootlessLimits looks for control groups that were delegated to us. Version 1
// delegates nothing.
func rootlessLimits() []sandbox.Control {
	groups, err := linux.FindCgroups()
	var controls []sandbox.Control
	for _, name := range []string{"memory", "pids", "cpu"} {
		c := sandbox.Control{Name: name, Seen: "no control group is ours to make", Fix: "cgroups of version 2, with Delegate=yes in the unit"}
		if err == nil {
			if h, found := groups.With(name); found && h.Unified && unix.Access(h.Own, unix.W_OK) == nil {
				c.Enforced, c.Seen = true, "delegated"
			}
		}
		controls = append(controls, c)
	}
	return controls
}

// quotas can't be had: a sandbox's own disk is a loop device, and those are
// root's.
func quotas() []sandbox.Control {
	var controls []sandbox.Control
	for _, name := range []string{"disk", "inodes"} {
		controls = append(controls, sandbox.Control{Name: name, Seen: "a disk of its own needs a loop device, which is root's", Fix: "start as root"})
	}
	return controls
}

// tryRootless maps ids and lets the mapped process make mounts.
func tryRootless(ctx context.Context, program string, uids, gids span) []sandbox.Control {
	space := sandbox.Control{Name: "user_namespace", Fix: "the package uidmap, and sysctl user.max_user_namespaces=10000"}
	said, err := mapped(ctx, program, uids, gids)
	if err != nil {
		space.Seen = err.Error()
		return []sandbox.Control{space}
	}
	space.Enforced, space.Seen = true, fmt.Sprintf("ids of our own and %d+%d were mapped", uids.first, rangeSize)
	controls := []sandbox.Control{space}
	for _, name := range []string{"mounts", "overlay"} {
		c := sandbox.Control{Name: name, Enforced: said[name] == "", Seen: "made in the namespace", Fix: "a kernel from 5.12 up that lets user namespaces mount"}
		if !c.Enforced {
			c.Seen = said[name]
		}
		controls = append(controls, c)
	}
	return controls
}

// mapped starts the program in a user namespace, gives it its ids and returns
// what it says: the errors by what was tried.
func mapped(ctx context.Context, program string, uids, gids span) (map[string]string, error) {
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
	err = errors.Join(mapIDs(ctx, "newuidmap", cmd.Process.Pid, os.Getuid(), uids), mapIDs(ctx, "newgidmap", cmd.Process.Pid, os.Getgid(), gids))
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

// mapIDs makes our own id root's and puts a sandbox's range behind it.
func mapIDs(ctx context.Context, tool string, pid, own int, ids span) error {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin"} {
		path := filepath.Join(dir, tool)
		if !linux.IsFile(path) {
			continue
		}
		var said linux.Tail
		cmd := exec.CommandContext(ctx, path, strconv.Itoa(pid), "0", strconv.Itoa(own), "1", "1", strconv.FormatUint(ids.first, 10), strconv.Itoa(rangeSize))
		cmd.Env, cmd.Stderr, cmd.WaitDelay = []string{}, &said, time.Second
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("mapping ids: %w: %.300q", err, said.Text())
		}
		return nil
	}
	return fmt.Errorf("looking for %s: %w", tool, linux.ErrMissing)
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

// rootlessOverlay deletes what lies below: for that the kernel makes a whiteout.
func rootlessOverlay() error {
	for _, dir := range []string{"low", "up", "wk", "all"} {
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
	return os.Remove(filepath.Join(all, "file"))
}
