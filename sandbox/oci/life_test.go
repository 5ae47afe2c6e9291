package oci_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// small are limits under which a start is cheap.
func small(t testing.TB) policies.Limits {
	t.Helper()
	policy, err := policies.Load("strict")
	if err != nil {
		t.Fatal(err)
	}
	return shrink(policy.Limits)
}

func shrink(l policies.Limits) policies.Limits {
	l.MemoryBytes, l.DiskBytes, l.Inodes, l.CPUs = 256<<20, 64<<20, 4096, 1
	return l
}

func needImage(t testing.TB) images.Digest {
	t.Helper()
	image := sandboxtest.PythonImage(t)
	if image == "" {
		t.Skip("not applicable: no python image")
	}
	return image
}

// sleeper starts a sandbox in which something runs.
func sleeper(t testing.TB, c sandbox.Backend, image images.Digest) (sandbox.Job, sandbox.Sandbox) {
	t.Helper()
	job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "sleeper", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	box, err := job.Create(context.Background(), sandbox.Spec{
		Image: image, Network: sandbox.NetworkNone,
		Profile: sandbox.ProfileJob, Limits: small(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & echo up > file"}})
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
	return job, box
}

func TestRunnerHoldsOnlyWhatItNeeds(t *testing.T) {
	config := config(t, "test-powers")
	c := start(t, config)
	sleeper(t, c, needImage(t))
	dir := fmt.Sprintf("/proc/%d", c.Pid())
	raw, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	// SYS_ADMIN SYS_PTRACE SYS_CHROOT SETUID SETGID FSETID FOWNER DAC_OVERRIDE CHOWN
	for _, want := range []string{
		"CapInh:\t0000000000000000", "CapPrm:\t00000000002c00db", "CapEff:\t00000000002c00db",
		"CapBnd:\t00000000002c00db", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1",
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("runner's status lacks %q", want)
		}
	}
	for _, ns := range []string{"mnt", "net"} {
		ours, _ := os.Readlink("/proc/self/ns/" + ns)
		theirs, err := os.Readlink(dir + "/ns/" + ns)
		if err != nil || ours == theirs {
			t.Errorf("runner shares our %s namespace (%v)", ns, err)
		}
	}
	for _, file := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "packet"} {
		raw, err := os.ReadFile(dir + "/net/" + file)
		if err == nil && strings.Count(strings.TrimSpace(string(raw)), "\n") > 0 {
			t.Errorf("runner's network has a %s socket:\n%s", file, raw)
		}
	}
	environ, err := os.ReadFile(dir + "/environ")
	if err != nil || bytes.Count(environ, []byte("=")) != 1 {
		t.Errorf("runner's environment is %q, %v", environ, err)
	}
}

// TestAnotherUIDCantReachASandbox tries what uid 0 without capabilities can do:
// the supervisor runs as another id for that reason.
func TestAnotherUIDCantReachASandbox(t *testing.T) {
	config := config(t, "test-uid")
	c := start(t, config)
	_, box := sleeper(t, c, needImage(t))
	pid := children(t, c.Pid())[0]
	attempts := [][]string{
		{"nsenter", "-t", strconv.Itoa(pid), "-U", "-m", "-p", "true"},
		{"nsenter", "-t", strconv.Itoa(pid), "-U", "true"},
		{"kill", "-9", strconv.Itoa(pid)},
		{"kill", "-9", strconv.Itoa(c.Pid())},
		{"ls", fmt.Sprintf("/proc/%d/root/", pid)},
		{"cat", fmt.Sprintf("/proc/%d/environ", pid)},
		{"ls", fmt.Sprintf("/proc/%d/fd/", c.Pid())},
	}
	for _, group := range groupsOf(config.Instance) {
		lists, _ := filepath.Glob(group + "/*/cgroup.procs") // the pattern is well formed
		for _, path := range lists {
			attempts = append(attempts, []string{"sh", "-c", "echo 0 > " + path})
		}
	}
	if len(attempts) == 7 {
		t.Fatal("no cgroup of the sandbox was found")
	}
	for _, argv := range attempts {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64_999, Gid: 64_999}}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%q worked: %s", argv, out)
		}
	}
	if exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"true"}}); err != nil || exit.Code != 0 {
		t.Errorf("afterwards: %+v, %v", exit, err)
	}
}

// orphan is what the child of TestJ02SupervisorKilled tells.
type orphan struct {
	Runner int   `json:"runner"`
	Inside []int `json:"inside"`
}

const orphanEnv = "VEYRA_TEST_ORPHAN"

// orphanMain is the supervisor that gets killed. It returns when it could not
// even begin.
func orphanMain(raw string) error {
	var config runner.Config
	if err := json.Unmarshal([]byte(raw), &config); err != nil {
		return err
	}
	config.Stderr = &bytes.Buffer{} // a pipe that breaks with this process
	ctx := context.Background()
	c, err := runner.Start(ctx, config)
	if err != nil {
		return err
	}
	policy, err := policies.Load(config.Policy)
	if err != nil {
		return err
	}
	limits := shrink(policy.Limits)
	job, err := c.OpenJob(ctx, sandbox.JobSpec{ID: "orphan", Limits: limits})
	if err != nil {
		return err
	}
	box, err := job.Create(ctx, sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: limits})
	if err != nil {
		return err
	}
	reader, writer := io.Pipe()
	go func() { // a command that waits for ever
		_, _ = box.Run(ctx, sandbox.Command{Argv: []string{sandbox.InitPath, "write", "/workspace/x"}, Stdin: reader})
	}()
	_, _ = writer.Write([]byte("x"))
	if err := json.NewEncoder(os.Stdout).Encode(orphan{c.Pid(), childrenOf(c.Pid())}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until killed
	return err
}

func TestJ02SupervisorKilled(t *testing.T) {
	config := config(t, "test-orphan")
	config.Stderr = nil
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), orphanEnv+"="+string(raw))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told orphan
	lines := bufio.NewScanner(stdout)
	for told.Runner == 0 && lines.Scan() {
		_ = json.Unmarshal(lines.Bytes(), &told)
	}
	if len(told.Inside) == 0 {
		t.Fatal("the child said nothing of a sandbox")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range append(told.Inside, told.Runner) {
		waittest.Until(t, "process "+strconv.Itoa(pid)+" ends", func() bool { return dead(pid) })
	}
	wantClean(t, config)
}

func TestJ02RunnerKilled(t *testing.T) { onEach(t, "killed", runnerKilled) }

func runnerKilled(t *testing.T, config runner.Config) {
	image := needImage(t)
	c, err := runner.Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	job, box := sleeper(t, c, image)
	inside := children(t, c.Pid())
	running := make(chan error, 1)
	go func() {
		_, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"sleep", "600"}})
		running <- err
	}()
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := <-running; sandbox.KindOf(err) != sandbox.KindGone {
		t.Errorf("a running command gave %v", err)
	}
	if _, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "x", Limits: small(t)}); sandbox.KindOf(err) != sandbox.KindGone {
		t.Errorf("opening a job gave %v", err)
	}
	if err := job.Close(context.Background()); sandbox.KindOf(err) != sandbox.KindGone {
		t.Errorf("closing the job gave %v", err)
	}
	for _, pid := range inside {
		waittest.Until(t, "process "+strconv.Itoa(pid)+" ends", func() bool { return dead(pid) })
	}
	_ = c.Close()
	next := start(t, config) // sweeps before it answers
	if next.Swept()["cgroup"] == 0 {
		t.Errorf("the start took %v", next.Swept())
	}
	swept, err := next.Sweep(context.Background())
	if err != nil || len(swept) != 0 {
		t.Errorf("a second sweep took %v, %v", swept, err)
	}
	if found := left(t, next.Pid(), config.Instance); len(found) != 0 {
		t.Errorf("left after the sweep: %v", found)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	wantClean(t, config)
}

func TestSuccessorWaitsForTheLock(t *testing.T) {
	config := config(t, "test-successor")
	first := start(t, config)
	started := make(chan error, 1)
	go func() {
		second, err := runner.Start(context.Background(), config)
		if err == nil {
			err = second.Close()
		}
		started <- err
	}()
	waittest.Until(t, "the second runner's process is there", func() bool {
		return len(children(t, os.Getpid())) == 2
	})
	select {
	case err := <-started:
		t.Fatalf("a second runner of one instance started beside the first: %v", err)
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Errorf("the successor: %v", err)
	}
}

// dead says whether a process is gone or a zombie: where the host's PID 1
// doesn't reap, orphans stay that way.
func dead(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(rest, "Z")
}

// wantClean checks what a runner that has ended leaves on the host.
func wantClean(t testing.TB, config runner.Config) {
	t.Helper()
	waittest.Until(t, "nothing is left", func() bool {
		loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		loops = slices.DeleteFunc(loops, func(path string) bool {
			raw, _ := os.ReadFile(path)
			return !strings.HasPrefix(string(raw), config.Disks)
		})
		groups := groupsOf(config.Instance)
		files, _ := os.ReadDir(config.Disks)
		_, err := os.Stat(filepath.Join(runner.RunDir, config.Instance))
		return len(loops)+len(groups)+len(files) == 0 && os.IsNotExist(err)
	})
}

// patience is more than a slow and busy machine needs for anything.
const patience = 2 * time.Minute
