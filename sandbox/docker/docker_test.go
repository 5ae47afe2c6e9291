package docker_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// TestMain is also the runner: the test executes itself for it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == runner.Subcommand {
		os.Exit(runner.Main(os.Args[2:], runner.Parts{Open: docker.Open}))
	}
	if len(os.Args) == 5 && os.Args[1] == recorderArg {
		fmt.Fprintln(os.Stderr, recordMain(os.Args[2], os.Args[3], os.Args[4]))
		os.Exit(1)
	}
	status := m.Run()
	sandboxtest.RemoveInit()
	os.Exit(status)
}

// TestCurrentEngine is the suite on the newest engine, with remapped ids, under
// strict, and what is only asked of engines.
func TestCurrentEngine(t *testing.T) {
	onOneEngine(t, enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true}), "strict", func(*sandboxtest.Host) {})
}

// TestDebiansEngine is the same on an old engine as it comes, without remapped
// ids, under standard.
func TestDebiansEngine(t *testing.T) {
	e := enginetest.Start(t, enginetest.Debian, enginetest.Options{})
	onOneEngine(t, e, "standard", func(h *sandboxtest.Host) { h.HostIDs = true })
}

// TestGVisorOnTheCurrentEngine probes runsc as the engine's runtime; the long run
// passes the whole suite on it.
func TestGVisorOnTheCurrentEngine(t *testing.T) {
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	if os.Getenv("VEYRA_SOAK") != "" {
		sandboxtest.Run(t, func(t testing.TB) sandboxtest.Host { return startHost(t, e, "test-gvisor", "strict", "runsc") })
		return
	}
	c := start(t, config(t, e.Socket, "test-gvisor", "strict", ""))
	report, err := c.Probe(t.Context())
	if err != nil || report.Runtime != "runsc" || report.Isolation != sandbox.IsolationGVisor {
		t.Errorf("the strongest runtime that the engine lists: %+v, %v", report, err)
	}
	for _, control := range report.Controls {
		if !control.Enforced {
			t.Errorf("%+v is not enforced", control)
		}
	}
}

func onOneEngine(t *testing.T, e *enginetest.Engine, policy string, change func(*sandboxtest.Host)) {
	t.Run("Contract", func(t *testing.T) {
		sandboxtest.Run(t, func(t testing.TB) sandboxtest.Host {
			h := startHost(t, e, "test-docker", policy, "runc")
			change(&h)
			return h
		})
	})
	t.Run("A13NoCallThatReadsContainers", func(t *testing.T) { recordedLife(t, e, policy) })
	t.Run("B10NobodyReads", func(t *testing.T) { nobodyReads(t, e, policy) })
}

// startHost starts a runner on an engine and tells the suite how to look at it.
func startHost(t testing.TB, e *enginetest.Engine, instance, policyName, runtime string) sandboxtest.Host {
	t.Helper()
	return hostOn(t, e, start(t, config(t, e.Socket, instance, policyName, runtime)), policyName, runtime)
}

func hostOn(t testing.TB, e *enginetest.Engine, c *runner.Client, policyName, runtime string) sandboxtest.Host {
	t.Helper()
	policy, err := policies.Load(policyName)
	if err != nil {
		t.Fatal(err)
	}
	class := sandboxtest.Kernel
	if runtime == "runsc" {
		class = sandboxtest.GVisor
	}
	return sandboxtest.Host{
		Name: "docker/" + string(e.Kind) + "/" + runtime, Class: class, OneRange: true,
		Backend: c, Limits: policy.Limits, Image: sandboxtest.PythonImage(t),
		Inside: func() []int { return firsts(e) },
		Left:   func() []string { return left(t, e, c.Pid()) },
	}
}

func config(t testing.TB, socket, instance, policy, runtime string) runner.Config {
	t.Helper()
	return runner.Config{
		Instance: instance, Policy: policy, Disks: t.TempDir(), Images: sandboxtest.ImageStore(),
		Runtime: runtime, Socket: socket, Init: sandboxtest.Init(t), Stderr: os.Stderr,
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

var (
	containerID = regexp.MustCompile(`"Id":"([0-9a-f]{64})"`)
	statePid    = regexp.MustCompile(`"Pid":([0-9]+)`)
)

// firsts are the PID 1s of an engine's containers, oldest first.
func firsts(e *enginetest.Engine) []int {
	var pids []int
	for _, found := range containerID.FindAllStringSubmatch(e.Ask("/containers/json"), -1) {
		state := statePid.FindStringSubmatch(e.Ask("/containers/" + found[1] + "/json"))
		if state == nil {
			continue // ended meanwhile
		}
		if pid, _ := strconv.Atoi(state[1]); pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, func(a, b int) int { return int(began(a) - began(b)) })
	return pids
}

// began is when a process started, in ticks.
func began(pid int) int64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	if len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseInt(f[19], 10, 64)
	return n
}

// left lists what sandboxes have on the host: control groups, mounts of the
// runner but for its pool's, and what is lent to the engine.
func left(t testing.TB, e *enginetest.Engine, runner int) []string {
	t.Helper()
	found := e.Groups()
	for _, pid := range []int{runner, e.Pid()} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
		if err != nil {
			continue // it is gone, and its mounts with it
		}
		for line := range strings.Lines(string(raw)) {
			place := strings.Fields(line)[1]
			if strings.HasPrefix(place, "/run/veyra-sandboxd/") && !strings.HasPrefix(place, "/run/veyra-sandboxd/d/") {
				found = append(found, "mount "+place)
			}
		}
	}
	return found
}
