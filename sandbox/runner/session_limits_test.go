package runner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire/initwiretest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func TestB10MuchOutputArrivesWhole(t *testing.T) {
	in := start(t, initwiretest.Options{})
	var n counter
	exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "head -c 100000000 /dev/zero"}, Stdout: &n})
	if exit.Code != 0 || n.Load() != 100_000_000 || exit.OutputBytes != 100_000_000 {
		t.Errorf("exit %+v, %d bytes", exit, n.Load())
	}
}

type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

func TestB10OutputLimit(t *testing.T) {
	in := start(t, initwiretest.Options{})
	var n counter
	exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "while :; do echo yes; echo no >&2; done"}, Stdout: &n, OutputBytes: 1 << 20})
	if exit.Ended != sandbox.LimitOutput || exit.Gone || n.Load() != 1<<20 || exit.OutputBytes <= 1<<20 {
		t.Errorf("exit %+v, %d bytes", exit, n.Load())
	}
	if diff := cmp.Diff([]sandbox.Limit{sandbox.LimitOutput}, exit.Limits); diff != "" {
		t.Error(diff)
	}
	exit, out := in.run(t, sandbox.Command{Argv: []string{"printf", "12345"}, OutputBytes: 5})
	if exit.Ended != "" || out != "12345" {
		t.Errorf("exactly the limit: exit %+v, output %q", exit, out)
	}
}

func TestA15TimeoutEndsEverything(t *testing.T) {
	in := start(t, initwiretest.Options{})
	script := `trap "" TERM INT HUP
		setsid sh -c '(sleep 1000 &) ; kill -STOP $$' &
		i=0; while [ $i -lt 100 ]; do (sleep 1000 &); i=$((i+1)); done
		wait; sleep 1000`
	exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", script}, Timeout: 2 * time.Second})
	if exit.Ended != sandbox.LimitTimeout || exit.Signal != 9 || exit.Gone {
		t.Errorf("exit %+v", exit)
	}
	if _, out := in.sh(t, "cd /proc && echo [0-9]*; echo $$"); !strings.HasPrefix(out, "1 "+strings.Split(out, "\n")[1]) {
		t.Errorf("processes after the deadline: %q", out)
	}
}

func TestZombiesAreReaped(t *testing.T) {
	in := start(t, initwiretest.Options{})
	script := `i=0; while [ $i -lt 200 ]; do (true &); i=$((i+1)); done
		n=0; while grep -ls '^State:.Z' /proc/[0-9]*/status >/dev/null; do n=$((n+1)); [ $n -gt 500 ] && exit 1; sleep 0.01; done`
	if exit, _ := in.sh(t, script); exit.Code != 0 {
		t.Errorf("zombies stay: %+v", exit)
	}
}

func TestInitIsNoTracer(t *testing.T) {
	in := start(t, initwiretest.Options{})
	if exit, _ := in.sh(t, "command -v perl"); exit.Code != 0 {
		t.Skip("not applicable: needs perl")
	}
	// PTRACE_TRACEME (0), system call 101 on amd64: the parent, init, is told of
	// every signal from here on, and of the stop at exec.
	exit, out := in.run(t, sandbox.Command{
		Argv:    []string{"perl", "-e", `syscall(101,0,0,0,0) == 0 or die; $SIG{USR1}=sub{print "got\n"}; kill "USR1",$$; exec "sh","-c","exit 9"`},
		Timeout: 20 * time.Second,
	})
	if exit.Code != 9 || !strings.Contains(out, "got") {
		t.Errorf("exit %+v, output %q", exit, out)
	}
}

func TestDiskAndInodesAreSeen(t *testing.T) {
	in := start(t, initwiretest.Options{WorkspaceTmpfs: "size=8m,nr_inodes=400"})
	for _, c := range []struct {
		script string
		want   []sandbox.Limit
	}{
		{"true", nil},
		{"head -c 20000000 /dev/zero > /workspace/fill 2>/dev/null; exit 0", []sandbox.Limit{sandbox.LimitDisk}},
		{"true", nil}, // once there is room again
		{"i=0; while [ $i -lt 500 ]; do : > /workspace/f$i || exit 0; i=$((i+1)); done 2>/dev/null", []sandbox.Limit{sandbox.LimitInodes}},
	} {
		exit, _ := in.sh(t, c.script)
		if diff := cmp.Diff(c.want, exit.Limits); diff != "" {
			t.Errorf("limits of %q (-want +got):\n%s", c.script, diff)
		}
		// Whether this one is seen on a full disk is up to the moment.
		in.sh(t, "rm -f /workspace/fill")
	}
}

func TestCountersOfTheHostBecomeLimits(t *testing.T) {
	in := start(t, initwiretest.Options{})
	in.set(sandbox.Counters{OOMKills: 1, PIDsHits: 3, MemoryPeak: 77})
	exit, _ := in.sh(t, "true")
	if diff := cmp.Diff([]sandbox.Limit{sandbox.LimitOOM, sandbox.LimitPIDs}, exit.Limits); diff != "" {
		t.Error(diff)
	}
	if exit.Ended != "" || exit.Code != 0 || exit.MemoryPeak != 77 {
		t.Errorf("exit %+v", exit)
	}
	if exit, _ = in.sh(t, "kill -9 $$"); len(exit.Limits) != 0 || exit.Ended != "" {
		t.Errorf("the same counters count twice: %+v", exit)
	}
	in.set(sandbox.Counters{OOMKills: 2, PIDsHits: 3})
	if exit, _ = in.sh(t, "kill -9 $$"); exit.Ended != sandbox.LimitOOM {
		t.Errorf("exit %+v, want it ended by oom", exit)
	}
	in.set(sandbox.Counters{DiskErrors: 1})
	_, err := in.Run(t.Context(), sandbox.Command{Argv: []string{"true"}})
	if sandbox.KindOf(err) != sandbox.KindCrashed {
		t.Errorf("error %v after disk errors, want a crash", err)
	}
}

func TestEndOfInit(t *testing.T) {
	for _, c := range []struct {
		name     string
		counters sandbox.Counters
		ended    sandbox.Limit
		kind     sandbox.Kind
	}{
		{"oom", sandbox.Counters{OOMKills: 1, PIDsHits: 1}, sandbox.LimitOOM, ""},
		{"pids", sandbox.Counters{PIDsHits: 1}, sandbox.LimitPIDs, ""},
		{"nothing", sandbox.Counters{}, "", sandbox.KindCrashed},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := start(t, initwiretest.Options{})
			in.set(c.counters)
			exit, err := in.Run(t.Context(), sandbox.Command{
				Argv:   []string{"sh", "-c", "echo up; sleep 1000"},
				Stdout: writerFunc(func([]byte) { _ = unix.Kill(in.init.PID, unix.SIGKILL) }),
			})
			if sandbox.KindOf(err) != c.kind || exit.Ended != c.ended {
				t.Errorf("exit %+v, error %v", exit, err)
			}
			if err == nil && (!exit.Gone || exit.Code != -1) {
				t.Errorf("exit %+v, want it gone", exit)
			}
		})
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestContextEndsTheSandbox(t *testing.T) {
	in := start(t, initwiretest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := in.Run(ctx, sandbox.Command{
		Argv:   []string{"sh", "-c", "echo up; trap '' TERM; sleep 1000"},
		Stdout: writerFunc(func([]byte) { cancel() }),
	})
	if err != context.Canceled {
		t.Errorf("error %v", err)
	}
	<-in.init.Ended()
	if _, err := in.Run(t.Context(), sandbox.Command{Argv: []string{"true"}}); sandbox.KindOf(err) != sandbox.KindGone {
		t.Errorf("error %v after the end", err)
	}
}

func TestCloseIsTheDeadManSwitch(t *testing.T) {
	in := start(t, initwiretest.Options{})
	in.sh(t, "setsid sleep 1000 & exit 0")
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	<-in.init.Ended() // with PID 1 the kernel ends the namespace
	if err := in.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestOneCommandAtATime(t *testing.T) {
	in := start(t, initwiretest.Options{})
	var once sync.Once
	var inner error
	in.run(t, sandbox.Command{Argv: []string{"echo", "up"}, Stdout: writerFunc(func([]byte) {
		once.Do(func() { _, inner = in.Run(t.Context(), sandbox.Command{Argv: []string{"true"}}) })
	})})
	if sandbox.KindOf(inner) != sandbox.KindBusy {
		t.Errorf("error %v, want busy", inner)
	}
}

func TestLongCommands(t *testing.T) {
	in := start(t, initwiretest.Options{})
	argv := []string{"sh", "-c", "echo $#"}
	for i := range 20_000 {
		argv = append(argv, fmt.Sprintf("argument-%d", i))
	}
	if _, out := in.run(t, sandbox.Command{Argv: argv}); out != "19999\n" {
		t.Errorf("%q arguments", out)
	}
	argv = append(argv, strings.Repeat("x", 1<<20))
	if _, err := in.Run(t.Context(), sandbox.Command{Argv: argv}); sandbox.KindOf(err) != sandbox.KindRefused {
		t.Errorf("error %v, want a refusal", err)
	}
}

func TestB01ForkBombLeavesInitAlive(t *testing.T) {
	in := start(t, initwiretest.Options{Processes: 60})
	in.limitTasks(t, 64)
	// The shell itself forks before the table is full: refused, it would end.
	exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "b() { b | b & }; sleep 1000 & b & wait"}, Timeout: 2 * time.Second, OutputBytes: 1 << 30})
	if exit.Ended != sandbox.LimitTimeout || exit.Gone {
		t.Errorf("exit %+v", exit)
	}
	if exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "exit 3"}, Alone: true}); exit.Code != 3 {
		t.Errorf("exit %+v after the bomb", exit)
	}
}

// limitTasks puts init into a cgroup of its own, where its threads count too.
func (in *inside) limitTasks(t *testing.T, limit int) {
	t.Helper()
	group := fmt.Sprintf("/sys/fs/cgroup/pids/veyra-session-test-%d", in.init.PID)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("not applicable: needs the pids controller of cgroup v1")
	}
	t.Cleanup(func() {
		_ = in.Close()
		<-in.init.Ended()
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	for file, n := range map[string]int{"cgroup.procs": in.init.PID, "pids.max": limit} {
		if err := os.WriteFile(filepath.Join(group, file), []byte(strconv.Itoa(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
