package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// maxWalk bounds how many entries of a tree are looked at.
const maxWalk = 200_000

// jobPlaces are where a job may write in every sandbox.
var jobPlaces = []string{"/workspace", "/home/veyra", "/tmp", "/var/tmp"}

// writablePlaces are these and each mount point that takes a file.
func writablePlaces() []string {
	places := slices.Clone(jobPlaces)
	for _, m := range mountPoints() {
		if unix.Access(m.point, unix.W_OK) == nil && isDir(m.point) {
			places = append(places, m.point)
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

type mountPoint struct{ point, kind string }

// mountPoints reads proc_pid_mountinfo(5): the fifth field, and the first after
// the dash.
func mountPoints() []mountPoint {
	info, _ := os.ReadFile("/proc/self/mountinfo")
	var all []mountPoint
	for line := range strings.Lines(string(info)) {
		left, right, _ := strings.Cut(line, " - ")
		if l, r := strings.Fields(left), strings.Fields(right); len(l) >= 6 && len(r) >= 2 {
			all = append(all, mountPoint{l[4], r[0]})
		}
	}
	return all
}

// devices makes nodes of what would open the host and opens them (case A08).
func (a *attacker) devices() {
	nodes := []struct {
		name string
		mode uint32
		dev  uint64
	}{
		{"mem", unix.S_IFCHR, unix.Mkdev(1, 1)},
		{"kmsg", unix.S_IFCHR, unix.Mkdev(1, 11)},
		{"loop-control", unix.S_IFCHR, unix.Mkdev(10, 237)},
		{"loop0", unix.S_IFBLK, unix.Mkdev(7, 0)},
		{"sda", unix.S_IFBLK, unix.Mkdev(8, 0)},
		{"vda", unix.S_IFBLK, unix.Mkdev(252, 0)},
		{"null", unix.S_IFCHR, unix.Mkdev(1, 3)},
	}
	for _, place := range writablePlaces() {
		for _, node := range nodes {
			path := filepath.Join(place, ".node-"+node.name)
			err := unix.Mknod(path, node.mode|0o666, int(node.dev))
			if err == nil {
				err = readAny(path)
				_ = unix.Unlink(path)
			}
			a.tried(attack.Safe(node.name+"@"+place), err)
		}
	}
	if others, err := os.ReadDir("/dev"); err == nil {
		a.hostNodes(others)
	}
}

// hostNodes opens every device that is there already, but for the six that
// every program needs and terminals.
func (a *attacker) hostNodes(entries []os.DirEntry) {
	usual := []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
	for _, e := range entries {
		if e.Type()&fs.ModeDevice == 0 || slices.Contains(usual, e.Name()) {
			continue
		}
		fd, err := unix.Open("/dev/"+e.Name(), unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		a.tried(attack.Safe("present@/dev/"+e.Name()), err)
	}
}

// setID copies this program wherever files can be made, gives it every bit and
// attribute that promises rights, and runs it (case A09).
func (a *attacker) setID() {
	code, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		a.tried("copy", err)
		return
	}
	for _, place := range writablePlaces() {
		a.tryProgram(place, code)
	}
}

// fileCapabilities are all of them, effective, by version 2 of the attribute
// (capabilities(7)).
var fileCapabilities = []byte{
	1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

func (a *attacker) tryProgram(place string, code []byte) {
	path := filepath.Join(place, ".set-id")
	name := attack.Safe("run@" + place)
	defer os.Remove(path)
	if err := writeProgram(path, code, 0o6755); err != nil {
		a.tried(name, err)
		return
	}
	a.tried(attack.Safe("chown@"+place), unix.Chown(path, 0, 0))
	_ = unix.Chmod(path, 0o6755) // chown takes the bits
	a.tried(attack.Safe("capability@"+place), unix.Setxattr(path, "security.capability", fileCapabilities, 0))
	status, err := again(path, attack.Plain)
	switch {
	case err != nil:
		a.tried(name, err)
	case status.ExitStatus() == 0:
		a.report(name, attack.Nothing, "")
	default:
		a.report(name, attack.Done, fmt.Sprint("status ", status))
	}
}

// settings opens what changes the host or the sandbox's own limits for writing:
// some by name, then everything below the trees of settings (case A10).
func (a *attacker) settings() {
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sysrq-trigger",
		"/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/overcommit_memory", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/user/max_user_namespaces", "/proc/acpi/wakeup", "/proc/mtrr",
		"/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/release_agent",
		"/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/memory.max",
	} {
		a.tried(attack.Safe("write@"+path), openWrite(path))
	}
	for _, tree := range []string{"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/sys"} {
		a.writableIn(tree)
	}
	a.tried("new_cgroup", unix.Mkdir("/sys/fs/cgroup/new", 0o755))
}

// writableIn reports each file that could be opened for writing, twenty at most.
func (a *attacker) writableIn(tree string) {
	looked, found := 0, 0
	_ = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // what can't be listed can't be named
		}
		if looked++; looked > maxWalk || found > 20 {
			return fs.SkipAll
		}
		if d.Type().IsRegular() && openWrite(path) == nil {
			found++
			a.report(attack.Safe("write@"+path), attack.Done, "")
		}
		return nil
	})
	a.report(attack.Safe("walk@"+tree), attack.Nothing, fmt.Sprintf("%d files", looked))
}

// masked reads what tells of the host (case A11).
func (a *attacker) masked() {
	for _, path := range []string{
		"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/kallsyms", "/proc/kmsg", "/proc/sched_debug",
		"/proc/interrupts", "/proc/latency_stats", "/proc/timer_stats", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/scsi",
		"/proc/acpi", "/proc/asound", "/proc/kpagecount", "/proc/kpageflags", "/proc/pagetypeinfo",
		"/sys/firmware", "/sys/kernel", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing", "/sys/fs/cgroup",
		"/sys/fs/ext4", "/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/devices/virtual/dmi/id/product_uuid",
		"/sys/devices/virtual/powercap", "/sys/block", "/dev/mem", "/dev/kmsg", "/dev/port",
	} {
		err := readAny(path)
		if err == unix.ENODATA {
			a.report(attack.Safe(path), attack.Nothing, "")
			continue
		}
		a.tried(attack.Safe(path), err)
	}
}

// paths tells every text that may name a place of the host.
func (a *attacker) paths() {
	for _, path := range []string{
		"/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/cgroup", "/etc/hostname", "/etc/hosts",
		"/etc/resolv.conf", "/proc/sys/kernel/hostname",
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			a.tried(attack.Safe(path), err)
			continue
		}
		i := 0
		for line := range strings.Lines(string(content)) {
			i++
			a.seen(attack.Safe(fmt.Sprintf("%s:%d", path, i)), strings.TrimSuffix(line, "\n"))
		}
	}
	for _, link := range []string{"/proc/self/root", "/proc/self/cwd", "/proc/self/exe"} {
		target, err := os.Readlink(link)
		a.seen(attack.Safe(link), fmt.Sprint(target, " ", err))
	}
}

// root makes a file in each directory near the top that is none of the job's.
func (a *attacker) root() {
	dirs := []string{"/", "/.veyra", "/dev", "/dev/pts", "/dev/mqueue", "/proc", "/sys", "/etc", "/run", "/home", "/var"}
	for _, pattern := range []string{"/*", "/usr/*", "/var/*"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, found...)
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if slices.Contains(jobPlaces, dir) || !isDir(dir) {
			continue
		}
		path := filepath.Join(dir, ".not-mine")
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
		if err == nil {
			_, _ = unix.Close(fd), unix.Unlink(path)
		}
		a.tried(attack.Safe("create@"+dir), err)
	}
	a.tried("hosts", openWrite("/etc/hosts"))
	a.tried("resolv", openWrite("/etc/resolv.conf"))
}
