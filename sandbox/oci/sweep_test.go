package oci_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

func TestSweepSparesOtherInstances(t *testing.T) {
	config := config(t, "test-one")
	image := needImage(t)
	one := start(t, config)
	_, box := sleeper(t, one, image)
	before := left(t, one.Pid(), config.Instance)
	other := config
	other.Instance = "test-two"
	two := start(t, other)
	for range 3 {
		if swept, err := two.Sweep(context.Background()); err != nil || len(swept) != 0 {
			t.Errorf("another instance's sweep took %v, %v", swept, err)
		}
	}
	if diff := cmp.Diff(before, left(t, one.Pid(), config.Instance)); diff != "" {
		t.Errorf("after another instance's sweep (-before +after):\n%s", diff)
	}
	if exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"true"}}); err != nil || exit.Code != 0 {
		t.Errorf("after another instance's sweep: %+v, %v", exit, err)
	}
}

// TestJ02AnotherInstanceSweeps: a runner is killed somewhere in the start of a
// sandbox, which may leave an OCI runtime between create and start, and its
// instance is never started again. One that is lives beside it.
func TestJ02AnotherInstanceSweeps(t *testing.T) {
	config := config(t, "test-dead")
	image := needImage(t)
	living := config
	living.Instance = "test-alive"
	other := start(t, living)
	for _, moment := range moments(t, 6) {
		killed(t, config, sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}, moment)
		if _, err := other.Sweep(context.Background()); err != nil {
			t.Errorf("killed after %s: %v", moment, err)
		}
		wantOthersClean(t, config, living)
	}
}

// killed runs sandboxes until its runner is killed at a moment.
func killed(t testing.TB, config runner.Config, spec sandbox.Spec, moment time.Duration) {
	t.Helper()
	c, err := runner.Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(moment, func() { _ = unix.Kill(c.Pid(), unix.SIGKILL) })
	err = startSome(c, spec)
	if sandbox.KindOf(err) != sandbox.KindGone && sandbox.KindOf(err) != sandbox.KindStart {
		t.Errorf("killed after %s: %v", moment, err)
	}
	kill.Stop()
	<-c.Done()
	_ = c.Close()
}

// TestJ02StrayProcess puts what such a start leaves where it would be: a process
// in the dead instance's cgroup, a disk that still has its name, a lock.
func TestJ02StrayProcess(t *testing.T) {
	config := config(t, "test-stray")
	living := config
	living.Instance = "test-alive"
	c, err := runner.Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = sleeper(t, c, needImage(t))
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	_ = c.Close()
	stray := strayIn(t, config.Instance)
	// Besides this one there may be the one that it was just making.
	if err := os.WriteFile(filepath.Join(config.Disks, config.Instance, "disk-1.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	disks, err := os.ReadDir(filepath.Join(config.Disks, config.Instance))
	if err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer // whole once the runner is gone
	t.Cleanup(func() {
		if told.Len() > 0 {
			t.Errorf("sweeping spoiled the stderr of whoever started the runner: %s", &told)
		}
	})
	living.Stderr = &told
	swept := start(t, living).Swept()
	if swept["container"] == 0 || swept["cgroup"] == 0 || swept["disk"] != len(disks) || swept["lock"] == 0 {
		t.Errorf("another instance's start took %v", swept)
	}
	if !dead(stray) {
		t.Errorf("process %d still lives", stray)
	}
	wantOthersClean(t, config, living)
}

// strayIn starts a process in a cgroup of the instance.
func strayIn(t testing.TB, instance string) int {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	moved := 0
	for _, group := range groupsOf(instance) {
		lists, _ := filepath.Glob(group + "/*/cgroup.procs") // the pattern is well formed
		for _, path := range lists {
			if err := os.WriteFile(path, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err == nil {
				moved++
			}
		}
	}
	if moved == 0 {
		t.Fatal("the dead instance has no cgroup")
	}
	return cmd.Process.Pid
}

// noProcess has no children.
const noProcess = -1

// wantOthersClean is wantClean for an instance beside one that lives on the same
// disks.
func wantOthersClean(t testing.TB, dead, living runner.Config) {
	t.Helper()
	if found := left(t, noProcess, dead.Instance); len(found) != 0 {
		t.Errorf("left of %s: %v", dead.Instance, found)
	}
	for _, path := range []string{filepath.Join(runner.RunDir, dead.Instance), filepath.Join(dead.Disks, dead.Instance)} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(living.Disks, living.Instance)); err != nil {
		t.Errorf("the living instance lost its disks: %v", err)
	}
}
