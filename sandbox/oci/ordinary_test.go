package oci_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// ordinaryEnv names the directory that an ordinary user's test finds its parts in.
const ordinaryEnv = "VEYRA_TEST_ORDINARY"

// rootlessUnable is what an ordinary user's sandboxes can't be held by.
var rootlessUnable = []policies.Control{policies.ControlMemory, policies.ControlSwap, policies.ControlCPU}

// asUser runs the test again in a process of an ordinary user, which starts its
// runners by newuidmap. That process has two capabilities, so that cases can look
// at sandboxes from outside as root does; a runner, being in a user namespace,
// loses them at its start. It returns the directory of that user's parts there,
// and "" here once the other has ended.
func asUser(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(ordinaryEnv); dir != "" {
		return dir
	}
	o := sandboxtest.NewOrdinary(t, 16*65_536)
	o.Copy(t, program(t, "runc"), "runc")
	o.Copy(t, sandboxtest.Init(t), "init")
	cmd := o.Command(t, true, o.Copy(t, "/proc/self/exe", "self"), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(cmd.Env, ordinaryEnv+"="+o.Dir)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "\nPASS\n") || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("as an ordinary user: %v", err)
	}
	return ""
}

func ordinaryConfig(dir, instance string) runner.Config {
	own := filepath.Join(dir, "own")
	return runner.Config{
		Instance: instance, Policy: filepath.Join(dir, "policy.yaml"), Disks: filepath.Join(own, "disks"),
		Images: sandboxtest.ImageStore(), Runtime: filepath.Join(dir, "runc"), Init: filepath.Join(dir, "init"),
		Run: filepath.Join(own, "run"), Rootless: true, Stderr: os.Stderr,
	}
}

// TestContractAsOrdinaryUser is the whole suite, but for what such a user can't have.
func TestContractAsOrdinaryUser(t *testing.T) {
	needImage(t)
	dir := asUser(t)
	if dir == "" {
		return
	}
	sandboxtest.Run(t, func(t testing.TB) sandboxtest.Host {
		config := ordinaryConfig(dir, "test-ordinary")
		c := start(t, config)
		policy, err := policies.Load(config.Policy)
		if err != nil {
			t.Fatal(err)
		}
		return sandboxtest.Host{
			Name: "oci/runc as an ordinary user", Class: sandboxtest.Kernel, Backend: c, Limits: policy.Limits,
			Image: sandboxtest.PythonImage(t), Unable: rootlessUnable, Unnamed: []sandbox.Limit{sandbox.LimitPIDs},
			Inside: func() []int { return children(t, c.Pid()) },
			Left:   func() []string { return leftBelow(t, c.Pid(), config.Instance, "/run") },
		}
	})
}

// TestOrdinaryUsersRunnerHasNothing of the host: its ids are the user's and
// subordinate ones, and a policy that asks for more than such a user can have gets
// no sandbox.
func TestOrdinaryUsersRunnerHasNothing(t *testing.T) {
	dir := asUser(t)
	if dir == "" {
		return
	}
	config := ordinaryConfig(dir, "test-nothing")
	c := start(t, config)
	ids, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Pid()), "uid_map"))
	if want := []string{"0", strconv.Itoa(sandboxtest.OrdinaryID), "1", "1", "300000", strconv.Itoa(16 * 65_536)}; err != nil || !cmp.Equal(strings.Fields(string(ids)), want) {
		t.Errorf("ids %q, %v", ids, err)
	}
	for _, name := range []string{"user", "mnt", "net"} {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		theirs, err2 := os.Readlink(filepath.Join("/proc", strconv.Itoa(c.Pid()), "ns", name))
		if err != nil || err2 != nil || ours == theirs {
			t.Errorf("namespace %s is %s, %v %v", name, theirs, err, err2)
		}
	}
	config.Instance, config.Policy = "test-strict", "strict"
	if _, err := start(t, config).Probe(t.Context()); sandbox.KindOf(err) != sandbox.KindStart || !strings.Contains(err.Error(), "memory: it can't be enforced") {
		t.Errorf("a sandbox under strict: %v", err)
	}
}

// TestKilledOrdinaryRunnerLeavesNothing: with the runner its sandboxes end, and the
// next one of the instance finds nothing to sweep but its own lock.
func TestKilledOrdinaryRunnerLeavesNothing(t *testing.T) {
	dir := asUser(t)
	if dir == "" {
		return
	}
	config := ordinaryConfig(dir, "test-killed")
	c, err := runner.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "killed", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := job.Create(t.Context(), sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}); err != nil {
		t.Fatal(err)
	}
	inside := children(t, c.Pid())
	if len(inside) != 1 {
		t.Fatalf("sandboxes: %v", inside)
	}
	process, err := os.FindProcess(c.Pid())
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	waittest.Until(t, "the sandbox ends with its runner", func() bool {
		_, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(inside[0]), "exe"))
		return err != nil
	})
	if _, err := start(t, config).Probe(t.Context()); err != nil {
		t.Errorf("the next runner: %v", err)
	}
}
