package main_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// process is one entry of /proc.
type process struct {
	pid, parent int
	command     []string
}

// processes lists all processes that can be read.
func processes() []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var all []process
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		parent, _ := strconv.Atoi(strings.TrimSpace(field(pid, "PPid")))
		all = append(all, process{pid, parent, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")})
	}
	return all
}

// field is a line of /proc/PID/status.
func field(pid int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// family is a process with all its descendants.
func family(root int) []process {
	all := processes()
	known := map[int]bool{root: true}
	var found []process
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if known[p.parent] && !known[p.pid] {
				known[p.pid], grown = true, true
			}
		}
	}
	for _, p := range all {
		if known[p.pid] {
			found = append(found, p)
		}
	}
	return found
}

// child is the daemon's process that was started with this hidden subcommand.
func (d *daemon) child(subcommand string) int {
	d.t.Helper()
	for _, p := range family(d.cmd.Process.Pid) {
		if slices.Contains(p.command, subcommand) && p.parent == d.cmd.Process.Pid {
			return p.pid
		}
	}
	d.t.Fatalf("no process %s below %d", subcommand, d.cmd.Process.Pid)
	return 0
}

// inSandboxes are the processes of the host that run in this instance's
// sandboxes.
func inSandboxes(instance string) []process {
	var found []process
	for _, p := range processes() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if strings.Contains(string(text), "/veyra-"+instance) {
			found = append(found, p)
		}
	}
	return found
}

// traces is what an instance with this state directory has on the host now.
func traces(instance, state string) []string {
	var found []string
	for _, p := range inSandboxes(instance) {
		found = append(found, fmt.Sprintf("process %d %q", p.pid, p.command))
	}
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, state) || strings.Contains(line, instance) {
			found = append(found, "mount "+line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, loop := range loops {
		if file, _ := os.ReadFile(loop); strings.HasPrefix(string(file), state) {
			found = append(found, "loop "+loop+" "+string(file))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(entry.Name(), instance) {
			found = append(found, "cgroup "+path)
		}
		return nil
	})
	if _, err := os.Lstat("/run/veyra-sandboxd/" + instance); err == nil {
		found = append(found, "/run/veyra-sandboxd/"+instance)
	}
	return found
}

// wantNothingLeft fails while anything of the instance is on the host. The
// processes of a daemon that was killed end by themselves, so they get time.
func wantNothingLeft(t *testing.T, instance, state string) {
	t.Helper()
	var found []string
	until(t, "nothing of instance "+instance+" is left", func() bool {
		found = traces(instance, state)
		return len(found) == 0
	})
}
