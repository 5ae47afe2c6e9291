package oci_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// TestMain is also the runner: the test executes itself for it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == runner.Subcommand {
		os.Exit(runner.Main(os.Args[2:], runner.Parts{Open: oci.Open}))
	}
	if len(os.Args) > 1 && os.Args[1] == oci.RootlessCommand {
		os.Exit(oci.RootlessMain(os.Args[2:]))
	}
	sandboxtest.OrdinaryMain()
	if os.Getenv(rootlessEnv) != "" {
		_ = json.NewEncoder(os.Stdout).Encode(oci.MeasureRootless(context.Background(), "/proc/self/exe"))
		os.Exit(0)
	}
	if raw := os.Getenv(orphanEnv); raw != "" {
		if err := orphanMain(raw); err != nil {
			fmt.Fprintln(os.Stderr, "orphan:", err)
		}
		os.Exit(1)
	}
	status := m.Run()
	sandboxtest.RemoveInit()
	os.Exit(status)
}

func TestContractOnRunc(t *testing.T)  { contractOn(t, "runc") }
func TestContractOnRunsc(t *testing.T) { contractOn(t, "runsc") }
func TestContractOnCrun(t *testing.T)  { contractOn(t, "crun") }

func contractOn(t *testing.T, runtime string) {
	sandboxtest.Run(t, func(t testing.TB) sandboxtest.Host {
		return startHost(t, "test-"+runtime, runtime)
	})
}

// classes of the runtimes.
var classes = map[string]sandboxtest.Class{
	"runc": sandboxtest.Kernel, "crun": sandboxtest.Kernel, "runsc": sandboxtest.GVisor,
}

// startHost starts a runner and tells the suite how to look at it.
func startHost(t testing.TB, instance, runtime string) sandboxtest.Host {
	config := configOf(t, instance, runtime)
	c := start(t, config)
	policy, err := policies.Load(config.Policy)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Host{
		Name: "oci/" + runtime, Class: classes[runtime],
		Backend: c, Limits: policy.Limits, Image: sandboxtest.PythonImage(t),
		Inside: func() []int { return children(t, c.Pid()) },
		Left:   func() []string { return left(t, c.Pid(), instance) },
	}
}

func start(t testing.TB, config runner.Config) *runner.Client {
	t.Helper()
	c, err := runner.Start(context.Background(), config)
	if err != nil {
		t.Fatalf("starting the runner: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the runner: %v", err)
		}
	})
	return c
}

// config is for what doesn't depend on the runtime: the fastest.
func config(t testing.TB, instance string) runner.Config {
	t.Helper()
	return configOf(t, instance, "runc")
}

func configOf(t testing.TB, instance, runtime string) runner.Config {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	return runner.Config{
		Instance: instance, Policy: "strict", Disks: t.TempDir(), Images: sandboxtest.ImageStore(),
		Runtime: program(t, runtime), Init: sandboxtest.Init(t), Stderr: os.Stderr,
	}
}

// repository returns the directory of go.mod.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "..", "..")
}

func program(t testing.TB, runtime string) string {
	t.Helper()
	path, err := oci.FindRuntime(runtime, filepath.Join(repository(t), "executable"), os.Getenv("PATH"))
	if err != nil {
		t.Skipf("not applicable: %v", err)
	}
	return path
}

// children lists the live children of a process, oldest first: sandboxes'
// PID 1s are the runner's, since it is a subreaper.
func children(t testing.TB, parent int) []int {
	t.Helper()
	return childrenOf(parent)
}

func childrenOf(parent int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	type child struct {
		pid   int
		start int64
	}
	var all []child
	own, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parent))
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		f := strings.Fields(rest)
		if len(f) < 20 || f[0] == "Z" || f[1] != strconv.Itoa(parent) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if passing(pid, string(own)) {
			continue
		}
		began, _ := strconv.ParseInt(f[19], 10, 64)
		all = append(all, child{pid, began})
	}
	slices.SortFunc(all, func(a, b child) int { return int(a.start - b.start) })
	pids := make([]int, len(all))
	for i, c := range all {
		pids[i] = c.pid
	}
	return pids
}

// left lists what carries the instance's label, and the runner's own mounts,
// but for its pool's.
func left(t testing.TB, pid int, instance string) []string {
	t.Helper()
	return leftBelow(t, pid, instance, runner.RunDir)
}

// leftBelow is left for a runner that has its stage elsewhere.
func leftBelow(t testing.TB, pid int, instance, stage string) []string {
	t.Helper()
	var found []string
	for _, child := range children(t, pid) {
		found = append(found, "process "+strconv.Itoa(child))
	}
	for _, group := range groupsOf(instance) {
		boxes, _ := filepath.Glob(group + "/*/cgroup.procs") // the pattern is well formed
		for _, procs := range boxes {
			found = append(found, "cgroup "+filepath.Dir(procs))
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
	if err != nil {
		return found // the runner is gone, and its mounts with it
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if strings.HasPrefix(f[1], stage+"/b/") || strings.HasPrefix(f[1], stage+"/i/") {
			found = append(found, "mount "+f[1])
		}
	}
	// A runner at rest has taken one range for its next job.
	held := ranges(t, pid)
	for _, r := range held[min(1, len(held)):] {
		found = append(found, "range "+r)
	}
	return found
}

// groupsOf finds the directories of an instance's cgroups wherever they lie: at the
// top of the one tree of version 2, or anywhere below a unit.
func groupsOf(instance string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "veyra-"+instance {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil // what vanishes meanwhile is nobody's any more
	})
	return found
}

// ranges are the id ranges that a runner holds.
func ranges(t testing.TB, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, path := range files {
		if target, err := os.Readlink(path); err == nil && strings.Contains(target, "/ids/") {
			held = append(held, target)
		}
	}
	return held
}

// passing tells of a process that lives for a moment, to make a user namespace for a
// later sandbox. Until it executes its own program it shows its parent's line, own,
// and on a busy host that may take long.
func passing(pid int, own string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err != nil || string(line) == own || strings.Contains(string(line), "\x00"+initwire.BoundMode+"\x00")
}

// TestAnyUmaskWillDo: services run with 0077, as our own unit does, and shells with what
// their user likes.
func TestAnyUmaskWillDo(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i, mask := range []string{"0077", "0777", "0"} {
		config := config(t, fmt.Sprintf("test-umask%d", i))
		config.Executable = "/bin/sh"
		config.Args = []string{"-c", "umask " + mask + `; exec "$0" "$@"`, own, runner.Subcommand}
		policy, err := policies.Load(config.Policy)
		if err != nil {
			t.Fatal(err)
		}
		h := sandboxtest.Host{Name: "oci/umask", Backend: start(t, config), Limits: policy.Limits, Image: sandboxtest.PythonImage(t)}
		if out := h.One(t).Must("umask; stat -c %a /workspace"); out != "0022\n755\n" {
			t.Errorf("umask %s: %q", mask, out)
		}
	}
}
