package oci_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// onEach runs a case on one runtime of each class.
func onEach(t *testing.T, name string, run func(t *testing.T, config runner.Config)) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { run(t, configOf(t, "test-"+name+"-"+runtime, runtime)) })
	}
}

// wantNoZombies: whatever had become the runner's child was reaped.
func wantNoZombies(t testing.TB, parent int) {
	t.Helper()
	waittest.Until(t, "dead children are reaped", func() bool { return zombies(parent) == 0 })
}

func zombies(parent int) (n int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	for _, path := range stats {
		raw, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(raw), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", parent)) {
			n++
		}
	}
	return n
}

// TestJ02SandboxProcessKilled kills, one at a time, each process that the runner
// has for a sandbox: PID 1, or gVisor's sentry and its file server. What ran has
// a named end, no later step takes the sandbox for a whole one, and the next
// sandbox of the job works.
func TestJ02SandboxProcessKilled(t *testing.T) {
	onEach(t, "boxkill", func(t *testing.T, config runner.Config) {
		image := needImage(t)
		c := start(t, config)
		job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "boxkill", Limits: small(t)})
		if err != nil {
			t.Fatal(err)
		}
		spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}
		once, err := job.Create(t.Context(), spec) // maps the job's image
		if err != nil {
			t.Fatal(err)
		}
		if err := once.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := left(t, c.Pid(), config.Instance)
		for which := 0; ; which++ {
			box, err := job.Create(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			processes := children(t, c.Pid())
			if which == len(processes) {
				if err := box.Close(context.Background()); err != nil {
					t.Error(err)
				}
				break
			}
			killBelow(t, box, processes[which])
		}
		waittest.Until(t, "nothing is left", func() bool { return cmp.Equal(before, left(t, c.Pid(), config.Instance)) })
		wantNoZombies(t, c.Pid())
	})
}

// killBelow kills a process of a sandbox below a running command.
func killBelow(t *testing.T, box sandbox.Sandbox, pid int) {
	t.Helper()
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	ran, up := make(chan error, 1), &mark{at: make(chan struct{})}
	go func() {
		exit, err := box.Run(context.Background(), sandbox.Command{
			Argv:   []string{"sh", "-c", "echo up; while :; do echo x > file; cat file > /dev/null; ls / > /dev/null; sleep 0.01; done"},
			Stdout: up, Timeout: patience,
		})
		if err == nil && !exit.Gone {
			err = fmt.Errorf("the command went on to %+v", exit)
		}
		ran <- err
	}()
	waittest.For(t, "the command is up", up.at)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ran; err != nil && sandbox.KindOf(err) != sandbox.KindCrashed {
		t.Errorf("killed %s: %v", comm, err)
	}
	if _, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"true"}}); err == nil {
		t.Errorf("killed %s: the sandbox runs commands on", comm)
	}
	if err := box.Close(context.Background()); err != nil {
		t.Errorf("killed %s: closing: %v", comm, err)
	}
}

// mark is a writer that tells of the first byte.
type mark struct {
	once sync.Once
	at   chan struct{} // closed then
}

func (m *mark) Write(p []byte) (int, error) {
	m.once.Do(func() { close(m.at) })
	return len(p), nil
}

// TestJ14OutputIsNeverOverwritten: with files instead of pipes gVisor writes each
// command's output from the beginning.
func TestJ14OutputIsNeverOverwritten(t *testing.T) {
	onEach(t, "stdio", func(t *testing.T, config runner.Config) {
		image := needImage(t)
		c := start(t, config)
		_, box := sleeper(t, c, image)
		for _, pid := range children(t, c.Pid()) {
			for _, fd := range []string{"0", "1", "2"} {
				target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd))
				if err != nil || !strings.HasPrefix(target, "pipe:") && target != "/dev/null" {
					t.Errorf("descriptor %s of process %d is %q, %v", fd, pid, target, err)
				}
			}
		}
		for i := range 3 {
			var out, errs bytes.Buffer
			script := fmt.Sprintf("i=0; while [ $i -lt 2000 ]; do echo %d-$i-%s; echo %d-$i >&2; i=$((i+1)); done", i, strings.Repeat("x", 200), i)
			exit, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs})
			if err != nil || exit.Code != 0 {
				t.Fatal(exit, err)
			}
			for name, text := range map[string]string{"output": out.String(), "errors": errs.String()} {
				lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
				first, last := fmt.Sprintf("%d-0", i), fmt.Sprintf("%d-1999", i)
				if len(lines) != 2000 || !strings.HasPrefix(lines[0], first) || !strings.HasPrefix(lines[1999], last) {
					t.Errorf("%s of command %d: %d lines, from %.20q to %.20q", name, i, len(lines), lines[0], lines[len(lines)-1])
				}
			}
		}
	})
}
