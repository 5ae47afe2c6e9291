package oci_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// doomed is a supervisor that works until it is killed. It says the step before
// each, so that the test can end it there.
type doomed struct {
	Config runner.Config
	Spec   sandbox.Spec
}

const doomedEnv = "VEYRA_TEST_DOOMED"

// doomedSteps are the states of a sandbox, as doomed says them.
var doomedSteps = []string{"open", "create", "run", "collect", "create again", "freeze", "close"}

func init() {
	raw := os.Getenv(doomedEnv)
	if raw == "" || len(os.Args) > 1 && os.Args[1] == runner.Subcommand {
		return
	}
	var d doomed
	err := json.Unmarshal([]byte(raw), &d)
	if err == nil {
		err = d.work(context.Background())
	}
	fmt.Fprintln(os.Stderr, "doomed:", err)
	os.Exit(1)
}

func (d doomed) work(ctx context.Context) error {
	d.Config.Stderr = io.Discard
	c, err := runner.Start(ctx, d.Config)
	if err != nil {
		return err
	}
	fmt.Println("pid", c.Pid())
	for i := 0; err == nil; i++ {
		err = d.job(ctx, c, i)
	}
	return err
}

// job takes one job through all steps.
func (d doomed) job(ctx context.Context, c *runner.Client, i int) error {
	fmt.Println("open")
	job, err := c.OpenJob(ctx, sandbox.JobSpec{ID: sandbox.JobID(fmt.Sprintf("doomed-%d", i)), Limits: d.Spec.Limits})
	if err != nil {
		return err
	}
	fmt.Println("create")
	box, err := job.Create(ctx, d.Spec)
	if err != nil {
		return err
	}
	fmt.Println("run")
	if err := d.command(ctx, box); err != nil {
		return err
	}
	fmt.Println("collect")
	if err := box.Collect(ctx, io.Discard); err != nil {
		return err
	}
	fmt.Println("create again")
	if box, err = job.Create(ctx, d.Spec); err != nil {
		return err
	}
	if err := d.command(ctx, box); err != nil {
		return err
	}
	fmt.Println("freeze")
	if _, err := box.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}}); err != nil {
		return err
	}
	fmt.Println("close")
	return job.Close(ctx)
}

func (d doomed) command(ctx context.Context, box sandbox.Sandbox) error {
	_, err := box.Run(ctx, sandbox.Command{Argv: []string{
		"sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & head -c 20000000 /dev/zero > file; sleep 0.05",
	}})
	return err
}

// TestJ02KilledInEveryState ends the supervisor, or it and the runner in one
// moment, in each state of a sandbox: what ran ends with nobody's help, the next
// runner sweeps the rest, and another instance's sandbox lives on.
func TestJ02KilledInEveryState(t *testing.T) {
	neighbour := config(t, "test-bystander")
	_, alive := sleeper(t, start(t, neighbour), needImage(t))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, both := range []bool{false, true} {
		config := config(t, fmt.Sprintf("test-doomed-%t", both))
		config.Stderr = nil
		d := doomed{config, sandbox.Spec{Image: needImage(t), Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}}
		for _, step := range doomedSteps {
			moment := time.Duration(random.Int64N(int64(30 * time.Millisecond)))
			killAt(t, d, step, moment, both)
			if both {
				wantSwept(t, config)
			} else {
				wantClean(t, config)
			}
			if t.Failed() {
				t.Fatalf("killed at %q after %s, the runner too: %t", step, moment, both)
			}
		}
	}
	if exit, err := alive.Run(context.Background(), sandbox.Command{Argv: []string{"cat", "file"}}); err != nil || exit.Code != 0 {
		t.Errorf("another instance's sandbox: %+v, %v", exit, err)
	}
}

// killAt starts a supervisor and ends it a moment after it has said the step.
func killAt(t *testing.T, d doomed, step string, moment time.Duration, both bool) {
	t.Helper()
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), doomedEnv+"="+string(raw)), os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text() != step; {
		_, _ = fmt.Sscanf(lines.Text(), "pid %d", &pid)
	}
	if pid == 0 {
		t.Fatal("the supervisor said nothing of its runner")
	}
	time.Sleep(moment)
	inside := childrenOf(pid)
	if both {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the supervisor had ended: %v", err)
	}
	_ = cmd.Wait()
	for _, pid := range append(inside, pid) {
		waittest.Until(t, "process "+strconv.Itoa(pid)+" ends", func() bool { return dead(pid) })
	}
}

// wantSwept starts the next runner: nothing of the last one is left, and
// nothing of it either.
func wantSwept(t *testing.T, config runner.Config) {
	t.Helper()
	config.Stderr = os.Stderr
	next, err := runner.Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	if found := left(t, next.Pid(), config.Instance); len(found) != 0 {
		t.Errorf("left after the sweep: %v", found)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	wantClean(t, config)
}

// TestJ02RuntimeKilled ends the OCI runtime in the middle of starts: each is an
// error of its own, the next one works, and nothing stays.
func TestJ02RuntimeKilled(t *testing.T) { onEach(t, "runtime", runtimeKilled) }

func runtimeKilled(t *testing.T, config runner.Config) {
	image := needImage(t)
	c := start(t, config)
	job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "runtime", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}
	killed := 0
	for i, moment := range moments(t, 200) {
		if i >= 12 && killed > 0 {
			break
		}
		stop, stopped := make(chan struct{}), make(chan bool)
		go func() { stopped <- killRuntime(c.Pid(), filepath.Base(config.Runtime), moment/4, stop) }()
		box, err := job.Create(context.Background(), spec)
		close(stop)
		if <-stopped {
			killed++
		}
		if err == nil {
			err = box.Close(context.Background())
			if err != nil {
				t.Error(err)
			}
		} else if sandbox.KindOf(err) != sandbox.KindStart {
			t.Errorf("the runtime was killed, and creating gave %v", err)
		}
	}
	if killed == 0 {
		t.Error("no runtime was ever caught: the check is blind")
	}
	box, err := job.Create(context.Background(), spec)
	if err != nil {
		t.Fatalf("a start after those: %v", err)
	}
	if exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"true"}}); err != nil || exit.Code != 0 {
		t.Errorf("a command after those: %+v, %v", exit, err)
	}
	if err := job.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "nothing is left", func() bool { return len(left(t, c.Pid(), config.Instance)) == 0 })
	wantNoZombies(t, c.Pid())
}

// killRuntime ends the first process of the runtime's program below the runner
// once it has lived for a while.
func killRuntime(parent int, program string, after time.Duration, stop <-chan struct{}) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		for _, pid := range childrenOf(parent) {
			// Its own copy of itself runs under the same name.
			name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
			if err == nil && strings.HasPrefix(string(name), program) {
				time.Sleep(after)
				return unix.Kill(pid, unix.SIGKILL) == nil
			}
		}
	}
}
