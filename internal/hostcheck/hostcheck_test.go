package hostcheck_test

import (
	"maps"
	"os"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostcheck"
)

const (
	rootMount = "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
	unified   = rootMount + "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	version1  = rootMount + "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 25 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	hybrid = version1 + "34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	swaps  = "Filename Type Size Used Priority\n/dev/sda2 partition 1000 0 -2\n"
)

// modern is a host with nothing to complain of: files by name.
func modern() map[string]string {
	return map[string]string{
		"proc/sys/kernel/osrelease":         "6.12.1-amd64\n",
		"proc/filesystems":                  "nodev\tsysfs\nnodev\toverlay\n\text4\n",
		"proc/sys/user/max_user_namespaces": "31000\n",
		"proc/sys/kernel/core_pattern":      "core\n",
		"proc/self/mountinfo":               unified,
		"sys/fs/cgroup/cgroup.controllers":  "cpuset cpu io memory pids\n",
		"dev/loop-control":                  "",
		"proc/swaps":                        "Filename Type Size Used Priority\n",
	}
}

func lines(files map[string]string, landlock int, privileged bool) map[string]hostcheck.Line {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	all := map[string]hostcheck.Line{}
	for _, l := range (hostcheck.Host{Root: tree, Landlock: landlock, Privileged: privileged}).Lines() {
		all[l.Name] = l
	}
	return all
}

func TestModernHostIsGood(t *testing.T) {
	got := lines(modern(), 6, false)
	if len(got) != 12 {
		t.Errorf("%d lines", len(got))
	}
	for _, l := range got {
		if !l.Good || l.Seen == "" || l.Fix != "" {
			t.Errorf("%+v", l)
		}
	}
}

// TestEachFactIsSeen (attack case B16 for the pipe in core_pattern) changes a thing at a time: its line and no other must
// change, say what was seen, and what to do where that is not good.
func TestEachFactIsSeen(t *testing.T) {
	good := lines(modern(), 6, true)
	for _, c := range []struct {
		line    string
		privy   bool
		changes map[string]string // "-": the file is gone
		good    bool
		seen    string
	}{
		{"core_pattern", true, map[string]string{"proc/sys/kernel/core_pattern": "|/usr/lib/collect %p\n"}, false, `"|/usr/lib/collect %p"`},
		{"core_pattern", true, map[string]string{"proc/sys/kernel/core_pattern": "-"}, false, `""`},
		{"overlay", true, map[string]string{"proc/filesystems": "nodev sysfs\n"}, false, "not among the kernel's file systems by now"},
		{"loop devices", true, map[string]string{"dev/loop-control": "-"}, false, "no /dev/loop-control"},
		{"user namespaces", true, map[string]string{"proc/sys/user/max_user_namespaces": "0\n"}, false, "user.max_user_namespaces is 0"},
		{"user namespaces", true, map[string]string{"proc/sys/user/max_user_namespaces": "-"}, false, "the kernel has none"},
		{"user namespaces", true, map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, true, "at most 31000, for root only (kernel.unprivileged_userns_clone is 0)"},
		{"user namespaces", false, map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, false, "at most 31000, for root only (kernel.unprivileged_userns_clone is 0)"},
		{"apparmor", true, map[string]string{"sys/module/apparmor/parameters/enabled": "Y\n"}, true, "in use, user namespaces are not restricted"},
		{"apparmor", false, restricted(), false, "in use, user namespaces of ordinary users are restricted"},
		{"apparmor", true, restricted(), true, "in use, user namespaces of ordinary users are restricted"},
		{"selinux", true, map[string]string{"sys/fs/selinux/enforce": "1"}, true, "enforcing"},
		{"selinux", true, map[string]string{"sys/fs/selinux/enforce": "0"}, true, "permissive: it denies nothing"},
		{"cgroup controllers", true, map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu io\n"}, false, "version 2, without memory, pids"},
		{"cgroup controllers", true, map[string]string{"proc/self/mountinfo": hybrid, "sys/fs/cgroup/unified/cgroup.controllers": "io\n"}, true, "hybrid, with memory, pids, cpu"},
		{"cgroup io", true, map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n"}, false, "no io controller of version 2"},
		{"swap", true, map[string]string{"proc/swaps": swaps}, false, "1 areas, and cgroups don't count it"},
		{"swap", true, map[string]string{"proc/swaps": swaps, "sys/fs/cgroup/system.slice/memory.swap.max": "max"}, true, "1 areas, and cgroups count it"},
		{"swap", true, map[string]string{
			"proc/swaps": swaps, "proc/self/mountinfo": hybrid, "sys/fs/cgroup/unified/cgroup.controllers": "io\n",
			"sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": "1",
		}, true, "1 areas, and cgroups count it"},
		{"swap", true, map[string]string{
			"proc/swaps": swaps, "proc/self/mountinfo": hybrid, "sys/fs/cgroup/unified/cgroup.controllers": "io\n",
		}, false, "1 areas, and cgroups don't count it"},
	} {
		files := modern()
		for name, text := range c.changes {
			if files[name] = text; text == "-" {
				delete(files, name)
			}
		}
		got := lines(files, 6, c.privy)
		l := got[c.line]
		if l.Good != c.good || l.Seen != c.seen || (l.Fix == "") != c.good || !c.good && l.Means == "" {
			t.Errorf("%s with %v: %+v", c.line, c.changes, l)
		}
		for name := range maps.Keys(good) {
			if name != c.line && name != "cgroup controllers" && got[name].Good != good[name].Good {
				t.Errorf("%s with %v changes %s: %+v", c.line, c.changes, name, got[name])
			}
		}
	}
}

func restricted() map[string]string {
	return map[string]string{
		"sys/module/apparmor/parameters/enabled": "Y\n", "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
	}
}

func TestKernelsByRelease(t *testing.T) {
	for release, want := range map[string][2]bool{
		"5.11.22": {false, false}, "5.12.0-rc1": {true, false}, "5.15.0-91-generic": {true, false}, "5.19.0": {true, true}, "6.1": {true, true},
		"4.18.0-513.el8": {false, false}, "garbage": {false, false}, "": {false, false},
	} {
		files := modern()
		files["proc/sys/kernel/osrelease"] = release
		got := lines(files, 6, true)
		if diff := cmp.Diff(want, [2]bool{got["kernel"].Good, got["idmapped mounts"].Good}); diff != "" {
			t.Errorf("%q (-want +got):\n%s", release, diff)
		}
	}
}

func TestLandlockIsTold(t *testing.T) {
	if l := lines(modern(), 0, true)["landlock"]; l.Good || l.Means == "" || l.Fix == "" {
		t.Errorf("%+v", l)
	}
}

// TestVersion1AloneIsNamed, and a host without any of the files is no panic.
func TestVersion1AloneIsNamed(t *testing.T) {
	files := modern()
	files["proc/self/mountinfo"] = version1
	if got := lines(files, 6, true)["cgroup controllers"]; !got.Good || got.Seen != "version 1, with memory, pids, cpu" {
		t.Errorf("%+v", got)
	}
	for name, l := range lines(nil, 0, false) {
		if bare := name == "apparmor" || name == "selinux" || name == "swap"; l.Good != bare {
			t.Errorf("%s of nothing: %+v", name, l)
		}
	}
}

// TestThisHost: the real files can be read.
func TestThisHost(t *testing.T) {
	for _, l := range (hostcheck.Host{Root: os.DirFS("/"), Landlock: 1, Privileged: true}).Lines() {
		if l.Seen == "" || l.Good != (l.Fix == "") {
			t.Errorf("%+v", l)
		}
		t.Log(l)
	}
}
