package sandboxtest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// escapeSeenFromTheHost are cases whose answer the host gives.
var escapeSeenFromTheHost = map[string]func(*testing.T, Host){
	"A01InitSeenFromTheHost":       initSeen,
	"A02NamespacesSeenFromTheHost": namespacesSeen,
	"A05ProgramsStayWhatTheyAre":   programsStay,
	"A15ProcessesSeenFromTheHost":  treesDie,
	"A15NoZombiesOfFiveHundred":    orphansAreReaped,
}

// stubbornFor is what a tree that ignores every signal gets.
const stubbornFor = 500 * time.Millisecond

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// initSeen: PID 1 has four capabilities, by the host's word or, on gVisor, by
// the guest's; there the host sees the sentry, whose rights are those of a
// namespace that maps nothing but the sandbox's range.
func initSeen(t *testing.T, h Host) {
	b := h.One(t)
	first := statusOf(t, h.newest(t))
	if first["Seccomp"] != "2" || first["NoNewPrivs"] != "1" {
		t.Errorf("the first process on the host: %+v", first)
	}
	init := first
	if h.Class == GVisor {
		init = fields(b.Must("cat /proc/1/status"))
		// CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID SYS_PTRACE
		if first["CapBnd"] != "000000000008001f" {
			t.Errorf("CapBnd of the sentry is %q", first["CapBnd"])
		}
	}
	for _, name := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if init[name] != "00000000000001e0" { // SETGID SETUID SETPCAP KILL
			t.Errorf("%s of init is %q", name, init[name])
		}
	}
	b.Must("true")
}

// tree lists a process and all below it on the host.
func tree(pid int) []int {
	parents := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		if f := strings.Fields(rest); len(f) > 1 {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			parent, _ := strconv.Atoi(f[1])
			parents[parent] = append(parents[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, parents[all[i]]...)
	}
	return all
}

// namespacesOf are all that the processes below pid are in.
func namespacesOf(pid int) []string {
	found := map[string]bool{}
	for _, p := range tree(pid) {
		links, _ := filepath.Glob(procFile(p, "ns/*"))
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				found[target] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// namespacesSeen compares the namespaces and mounts that the host sees while a job
// that has tried everything goes on.
func namespacesSeen(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	b.Must("true")
	spaces, mounts := namespacesOf(pid), readAll(t, procFile(pid, "mounts"))
	if len(spaces) < 7 {
		t.Fatalf("namespaces of the sandbox: %v: the check is blind", spaces)
	}
	release, hold := io.Pipe()
	wait := b.background(sandbox.Command{Stdin: release, Argv: []string{
		"sh", "-c", "exec 2> /dev/null; unshare -Ur -m sh -c '" + asGuestRoot + "; echo up; cat' || unshare -m cat || { echo up; cat; }",
	}})
	if diff := cmp.Diff(spaces, namespacesOf(pid)); diff != "" {
		t.Errorf("namespaces on the host (-before +while it tries):\n%s", diff)
	}
	if after := readAll(t, procFile(pid, "mounts")); after != mounts {
		t.Errorf("mounts on the host (-before +while it tries):\n%s", cmp.Diff(mounts, after))
	}
	_ = hold.Close()
	if _, err := wait(); err != nil {
		t.Error(err)
	}
	if exit, out := b.Sh("ls /usr/planted /.veyra/planted 2> /dev/null"); exit.Code == 0 {
		t.Errorf("what is read-only was written to: %s", out)
	}
}

// asGuestRoot is what root of a guest's namespace may try.
const asGuestRoot = "exec 2> /dev/null; mount -t tmpfs x /tmp; mount -o remount,rw /; echo x > /usr/planted; echo x > /.veyra/planted"

func readAll(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// programsOf hashes what runs on the host below and beside a sandbox: the
// programs of its processes, those that started them, and our own.
func programsOf(t testing.TB, pid int) map[string]string {
	t.Helper()
	sums := map[string]string{}
	chain := tree(pid)
	for up := pid; up > 1; up = parentOf(up) {
		chain = append(chain, up)
	}
	for _, p := range chain {
		exe := procFile(p, "exe")
		name, err := os.Readlink(exe)
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(exe)
		if err != nil {
			continue
		}
		sums[name] = fmt.Sprintf("%x", sha256.Sum256(raw))
	}
	return sums
}

func parentOf(pid int) int {
	raw, err := os.ReadFile(procFile(pid, "status"))
	if err != nil {
		return 0
	}
	parent, _ := strconv.Atoi(fields(string(raw))["PPid"])
	return parent
}

// programsStay runs programs that are links to whatever runs them, and writes
// to PID 1's: what the host executes keeps its bytes.
func programsStay(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	before := programsOf(t, pid)
	if len(before) < 2 {
		t.Fatalf("programs on the host: %v: the check is blind", before)
	}
	b.Must(`mkdir bin && ln -s /proc/self/exe bin/sh && ln -s /proc/self/exe bin/init && ln -s /proc/1/exe bin/one
printf '#!/proc/self/exe\n' > bin/script && chmod 755 bin/script`)
	for _, name := range []string{"sh", "init", "one", "script"} {
		_, _, err := b.try(sandbox.Command{
			Argv: []string{name, "-c", "echo x > /proc/self/exe; echo x > /proc/1/exe"},
			Env:  append(sandbox.DefaultEnv(), "PATH=/workspace/bin"),
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.Sh("cp /bin/true /proc/1/exe; echo x > /proc/1/exe; echo x > /.veyra/init; dd if=/dev/zero of=/proc/self/exe bs=1 count=1")
	after := programsOf(t, pid)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("programs on the host (-before +after):\n%s", diff)
	}
	b.Must("/.veyra/init read /workspace/none; test $? = 4")
}

// treesDie leaves every kind of process that outlives its parent, and looks
// without killing anything: from inside, and from the host, which sees gVisor's
// own processes instead.
func treesDie(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	b.Must("true")
	idle := len(tree(pid))
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{sandbox.InitPath, attack.Mode, attack.Stubborn}, Timeout: stubbornFor})
	if exit.Ended != sandbox.LimitTimeout || exit.Gone {
		t.Errorf("a stubborn tree: %+v", exit)
	}
	if _, out := b.Cmd(sandbox.Command{Argv: []string{sandbox.InitPath, attack.Mode, attack.Alone}}); out != "others seen \"0\"\n" {
		t.Errorf("inside there are: %s", out)
	}
	if h.Class == Kernel {
		waittest.Until(t, "every process of the job dies", func() bool { return len(tree(pid)) <= idle })
	}
	b.Must("true")
}

// orphansAreReaped makes 500 of them; on gVisor, where each takes long, 100.
func orphansAreReaped(t *testing.T, h Host) {
	b := h.One(t)
	count := 500
	if h.Class == GVisor && !soaking() {
		count = 100
	}
	out := b.Python(`import os
for i in range(` + strconv.Itoa(count) + `):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
import time
for i in range(6000):
    states = []
    for p in os.listdir("/proc"):
        if p.isdigit():
            try: states.append(open("/proc/%s/stat" % p).read().rsplit(")", 1)[1].split()[0])
            except OSError: pass
    if "Z" not in states: break
    time.sleep(0.01)
print("zombies", states.count("Z"))`)
	if out != "zombies 0\n" {
		t.Errorf("%d orphans: %s", count, out)
	}
}
