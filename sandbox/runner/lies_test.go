package runner

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// liar is a driver of one sandbox, whose PID 1 and whose driver say what a test
// wants. Nothing runs in it.
type liar struct {
	hello   initwire.Hello
	applied sandbox.Applied
	closed  atomic.Int32
}

func (l *liar) Facts(context.Context) (sandbox.Report, error) { return sandbox.Report{}, nil }
func (l *liar) Sweep(context.Context) (sandbox.Swept, error)  { return nil, nil }
func (l *liar) OpenJob(context.Context, sandbox.JobSpec) (sandbox.DriverJob, error) {
	return liarJob{l}, nil
}
func (l *liar) Close() error { return nil }

type liarJob struct{ l *liar }

func (j liarJob) Close(context.Context) error { return nil }

func (j liarJob) Create(context.Context, sandbox.Spec) (sandbox.DriverSandbox, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() { // PID 1: it ends when its input does
		_ = initwire.NewWriter(outW).Write(initwire.HelloFrame, 0, j.l.hello.Encode())
		_, _ = io.Copy(io.Discard, inR)
		_, _ = inR.Close(), outW.Close()
	}()
	return &liarBox{l: j.l, pipes: sandbox.Pipes{Stdin: inW, Stdout: outR}}, nil
}

type liarBox struct {
	l     *liar
	pipes sandbox.Pipes
}

func (b *liarBox) Pipes() sandbox.Pipes { return b.pipes }

func (b *liarBox) Applied(context.Context) (sandbox.Applied, error) { return b.l.applied, nil }

func (b *liarBox) Counters(context.Context) (sandbox.Counters, error) {
	return sandbox.Counters{}, nil
}

func (b *liarBox) Freeze(context.Context, []sandbox.Part) ([]sandbox.LayerID, error) {
	return nil, nil
}
func (b *liarBox) Collect(context.Context, io.Writer) error { return nil }

func (b *liarBox) Close(context.Context) error {
	b.l.closed.Add(1)
	return nil
}

var (
	_ sandbox.Driver        = (*liar)(nil)
	_ sandbox.DriverSandbox = (*liarBox)(nil)
)

// honest says of a sandbox what it was asked for.
func honest(t *testing.T) (*liar, sandbox.Spec) {
	t.Helper()
	spec, _, applied := seen(t)
	status := "Uid:\t0 0 0 0\nGid:\t0 0 0 0\nGroups:\t\nNoNewPrivs:\t1\nSeccomp:\t2\nCapInh:\t0\nCapPrm:\t1e0\nCapEff:\t1e0\nCapBnd:\t1e0\nCapAmb:\t0\n"
	return &liar{applied: applied, hello: initwire.Hello{
		Status: status, Forker: strings.Replace(status, "CapBnd:\t1e0", "CapBnd:\t0", 1),
		UIDMap: "0 1073741824 65536\n", GIDMap: "0 1073741824 65536\n",
		MountInfo: "1 0 0:1 / / ro - overlay overlay rw\n" +
			"2 1 0:2 /workspace /workspace rw,nosuid,nodev - overlay overlay rw\n" +
			"3 1 0:3 / /dev/shm rw,nosuid,nodev - tmpfs shm rw,size=65536k\n",
		Files: uint64(applied.Files), Procs: uint64(applied.PIDs),
	}}, spec
}

// over connects a client of a policy with a server of the driver.
func over(t *testing.T, driver sandbox.Driver, policy policies.Policy) *Client {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	srv, err := newConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{
		policy: policy, done: make(chan struct{}), exited: make(chan struct{}),
		waiting: map[uint64]chan reply{}, jobs: map[*clientJob]bool{},
	}
	if c.conn, err = newConn(ours); err != nil {
		t.Fatal(err)
	}
	s := &server{
		conn: srv, driver: driver, policy: policy, log: slog.New(slog.DiscardHandler),
		jobs: map[sandbox.JobID]*openJob{}, boxes: map[string]openBox{},
	}
	go func() {
		_ = s.serve(context.Background())
		_ = srv.unix.Close()
		close(c.exited)
	}()
	go c.read()
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.call(t.Context(), request{Op: opHello, Policy: policyDigest(policy)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNoSandboxWithALie: for each control, a driver or a PID 1 that shows another
// value than what was asked for. The start is refused with the control's name, and
// the sandbox is taken down.
func TestNoSandboxWithALie(t *testing.T) {
	honestly, spec := honest(t)
	job, err := over(t, honestly, strictPolicy(t)).OpenJob(t.Context(), sandbox.JobSpec{ID: "job", Limits: spec.Limits})
	if err != nil {
		t.Fatal(err)
	}
	box, err := job.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("an honest driver: %v", err)
	}
	if err := box.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for name, lie := range map[string]func(l *liar){
		"isolation":            func(l *liar) { l.applied.Isolation = "none" },
		"memory":               func(l *liar) { l.applied.Memory *= 2 },
		"swap":                 func(l *liar) { l.applied.NoSwap = false },
		"pids":                 func(l *liar) { l.applied.PIDs = 1 << 22 },
		"cpu":                  func(l *liar) { l.applied.CPUMilli = 0 },
		"disk":                 func(l *liar) { l.applied.Disk = 1 << 50 },
		"inodes":               func(l *liar) { l.applied.Inodes = 1 << 40 },
		"open_files":           func(l *liar) { l.applied.Files++ },
		"core_files":           func(l *liar) { l.applied.Core = 1 << 40 },
		"network":              func(l *liar) { l.applied.Net = "eth0 lo" },
		"namespaces":           func(l *liar) { l.applied.Own = 6 },
		"seccomp":              func(l *liar) { l.applied.Seccomp = 0 },
		"no_new_privs":         func(l *liar) { l.applied.NoNew = false },
		"init_capabilities":    func(l *liar) { l.applied.Caps = 1<<41 - 1 },
		"overlay":              func(l *liar) { l.applied.Overlay = false },
		"user_namespace":       func(l *liar) { l.hello.UIDMap = "0 0 4294967295\n" },
		"command_capabilities": func(l *liar) { l.hello.Forker = l.hello.Status },
		"init_hidden":          func(l *liar) { l.hello.Dumpable = 1 },
		"root_read_only": func(l *liar) {
			l.hello.MountInfo = strings.Replace(l.hello.MountInfo, "/ / ro", "/ / rw,nosuid,nodev", 1)
		},
		"mounts": func(l *liar) {
			l.hello.MountInfo = strings.Replace(l.hello.MountInfo, "/workspace rw,nosuid", "/workspace rw", 1)
		},
		"shm": func(l *liar) { l.hello.MountInfo = strings.Replace(l.hello.MountInfo, "size=65536k", "size=99999k", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			l, spec := honest(t)
			lie(l)
			job, err := over(t, l, strictPolicy(t)).OpenJob(t.Context(), sandbox.JobSpec{ID: "job", Limits: spec.Limits})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := job.Create(t.Context(), spec); sandbox.KindOf(err) != sandbox.KindStart || !strings.Contains(err.Error(), name+": ") {
				t.Errorf("the start: %v", err)
			}
			if n := l.closed.Load(); n != 1 {
				t.Errorf("the sandbox was closed %d times", n)
			}
		})
	}
}
