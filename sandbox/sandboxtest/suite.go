// Package sandboxtest is the suite that every backend passes: the contract of
// package sandbox, and the attack cases that a sandbox answers for, each read
// back from inside and, where the backend's test can look, from the host. It is
// for tests only. Start reading at Run.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Class is what answers the system calls of a sandbox. The attack cases have
// one expectation for each where the two differ.
type Class string

// The classes: Kernel is the host's own (runc, crun, an engine with one of
// them), GVisor is runsc's.
const (
	Kernel Class = "kernel"
	GVisor Class = "gvisor"
)

// Host is a backend under test and what its test can see from outside.
type Host struct {
	// Name is the backend and the runtime, for example "oci/runc".
	Name    string
	Class   Class
	Backend sandbox.Backend
	// OneRange says that the sandboxes of all jobs have the same ids on the host;
	// HostIDs, that they are the host's own: there is no user namespace.
	OneRange, HostIDs bool
	// Unable are the controls that the policy goes without, since the host can't
	// enforce them: the cases about them are left out (unable.go).
	Unable []policies.Control
	// Unnamed are limits that hold, but whose refusals nobody counts, so that no
	// exit names them.
	Unnamed []sandbox.Limit
	// Limits are the policy's: what no job may exceed.
	Limits policies.Limits
	// Image has python3 and a Debian userland; empty: the cases that need one
	// are not applicable.
	Image images.Digest
	// Inside lists the host's pids of the PID 1 of every live sandbox.
	Inside func() []int
	// Left lists what the backend holds on the host for sandboxes now: mounts,
	// loop devices, cgroups, processes. Pools are not counted.
	Left func() []string
}

// Run runs the suite. open starts a backend that nothing else uses; it lives
// until t ends.
func Run(t *testing.T, open func(testing.TB) Host) {
	h := open(t)
	if h.Class != Kernel && h.Class != GVisor {
		t.Fatalf("class %q of %s: no case knows what to expect", h.Class, h.Name)
	}
	for name, part := range map[string]func(*testing.T, Host){
		"Contract": contract, "Escape": escape, "Limits": limits, "Layers": layers, "Collect": collecting,
	} {
		t.Run(name, func(t *testing.T) { part(t, h) })
	}
}

// cases runs each case as a subtest of its own, in order of name.
func cases(t *testing.T, h Host, all map[string]func(*testing.T, Host)) {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if h.lacks(name) {
			continue
		}
		t.Run(name, func(t *testing.T) { all[name](t, h) })
	}
}

// bounded is the longest that one step of a case may take before it fails: far
// more than a slow and busy machine needs.
const bounded = 4 * time.Minute

// patience ends a job's program that never reaches the limit it is made for.
const patience = 2 * time.Minute

// noticed runs what fills a disk and then waits for some seconds, in which init
// looks at it, until the exit names the limit. A busy host may not let init run in
// so short a time, so there is more and more of it.
func noticed(t testing.TB, limit sandbox.Limit, fill func(seconds string) (sandbox.Exit, string)) (exit sandbox.Exit, out string) {
	t.Helper()
	for seconds := 0.5; seconds < patience.Seconds(); seconds *= 4 {
		if exit, out = fill(fmt.Sprint(seconds)); slices.Contains(exit.Limits, limit) {
			return exit, out
		}
	}
	t.Errorf("exit %+v does not name %q", exit, limit)
	return exit, out
}

func ctxOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bounded)
	t.Cleanup(cancel)
	return ctx
}

// Small are limits that a case reaches quickly, within the policy's.
func (h Host) Small() policies.Limits {
	l := h.Limits
	l.CPUs = 1
	l.MemoryBytes = min(l.MemoryBytes, 512<<20)
	l.PIDs = min(l.PIDs, 256)
	l.DiskBytes = min(l.DiskBytes, 1<<30)
	l.Inodes = min(l.Inodes, 100_000)
	l.ShmBytes = min(l.ShmBytes, 16<<20)
	l.OutputReadBytes = min(l.OutputReadBytes, 10<<20)
	l.ChangeBytes = min(l.ChangeBytes, 64<<20)
	return l
}

var jobs atomic.Int64

// Job opens a job that is closed with the test.
func (h Host) Job(t testing.TB, l policies.Limits) sandbox.Job {
	t.Helper()
	id := sandbox.JobID(fmt.Sprintf("test-%d", jobs.Add(1)))
	job, err := h.Backend.OpenJob(ctxOf(t), sandbox.JobSpec{ID: id, Limits: l})
	if err != nil {
		t.Fatalf("opening job: %v", err)
	}
	t.Cleanup(func() {
		if err := job.Close(context.Background()); err != nil {
			t.Errorf("closing job: %v", err)
		}
	})
	return job
}

// Create starts a sandbox of the job with the image and layers.
func (h Host) Create(t testing.TB, job sandbox.Job, l policies.Limits, under ...sandbox.LayerID) *Box {
	t.Helper()
	return create(t, job, sandbox.Spec{
		Image: h.Image, Layers: under, Network: sandbox.NetworkNone,
		Profile: sandbox.ProfileJob, Limits: l,
	})
}

// Bare starts a sandbox without an image.
func (h Host) Bare(t testing.TB, job sandbox.Job, l policies.Limits, under ...sandbox.LayerID) *Box {
	t.Helper()
	return create(t, job, sandbox.Spec{
		Layers: under, Network: sandbox.NetworkNone,
		Profile: sandbox.ProfileGit, Limits: l,
	})
}

func create(t testing.TB, job sandbox.Job, spec sandbox.Spec) *Box {
	t.Helper()
	s, err := job.Create(ctxOf(t), spec)
	if err != nil {
		t.Fatalf("creating sandbox: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("closing sandbox: %v", err)
		}
	})
	return &Box{Sandbox: s, t: t}
}

// One opens a job with small limits and one sandbox in it.
func (h Host) One(t testing.TB) *Box {
	t.Helper()
	h.needImage(t)
	l := h.Small()
	return h.Create(t, h.Job(t, l), l)
}

func (h Host) needImage(t testing.TB) {
	t.Helper()
	if h.Image == "" {
		t.Skip("not applicable: no python image")
	}
}

// Box is a sandbox with shorthands for tests.
type Box struct {
	sandbox.Sandbox
	t testing.TB
}

// Run runs a command that must have an exit.
func (b *Box) Cmd(cmd sandbox.Command) (sandbox.Exit, string) {
	b.t.Helper()
	var out bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	exit, err := b.Run(ctxOf(b.t), cmd)
	if err != nil {
		b.t.Fatalf("running %.200q: %v", cmd.Argv, err)
	}
	return exit, out.String()
}

// Sh runs a shell script, both streams in one.
func (b *Box) Sh(script string) (sandbox.Exit, string) {
	b.t.Helper()
	return b.Cmd(sandbox.Command{Argv: []string{"sh", "-c", script}})
}

// Must runs a shell script that must end 0 and returns its output.
func (b *Box) Must(script string) string {
	b.t.Helper()
	exit, out := b.Sh(script)
	if exit.Code != 0 {
		b.t.Fatalf("script %.300q ended with %d: %s", script, exit.Code, out)
	}
	return out
}

// Python runs a program that must end 0 and returns its output.
func (b *Box) Python(program string) string {
	b.t.Helper()
	exit, out := b.Py(program)
	if exit.Code != 0 {
		b.t.Fatalf("python ended with %+v: %s", exit, out)
	}
	return out
}

// Py runs a program.
func (b *Box) Py(program string) (sandbox.Exit, string) {
	b.t.Helper()
	return b.Cmd(sandbox.Command{Argv: []string{"python3", "-c", program}})
}

// Freeze freezes parts that are one path each.
func (b *Box) FreezePaths(paths ...string) []sandbox.LayerID {
	b.t.Helper()
	var parts []sandbox.Part
	for _, p := range paths {
		parts = append(parts, sandbox.Part{Paths: []string{p}})
	}
	ids, err := b.Freeze(ctxOf(b.t), parts)
	if err != nil {
		b.t.Fatalf("freezing: %v", err)
	}
	if len(ids) != len(parts) {
		b.t.Fatalf("freeze gave %d layers for %d parts", len(ids), len(parts))
	}
	return ids
}

func wantKind(t testing.TB, err error, kind sandbox.Kind) {
	t.Helper()
	if sandbox.KindOf(err) != kind {
		t.Errorf("error is %v (kind %q), want kind %q", err, sandbox.KindOf(err), kind)
	}
}

func wantLimit(t testing.TB, exit sandbox.Exit, limit sandbox.Limit) {
	t.Helper()
	if !slices.Contains(exit.Limits, limit) {
		t.Errorf("exit %+v does not name %q", exit, limit)
	}
}

// newest returns the pid of the sandbox that started last.
func (h Host) newest(t testing.TB) int {
	t.Helper()
	if h.Inside == nil {
		t.Skip("not applicable: the backend's test can't look from the host")
	}
	pids := h.Inside()
	if len(pids) == 0 {
		t.Fatal("no sandbox is seen from the host")
	}
	return pids[len(pids)-1]
}

// statusOf reads /proc/PID/status on the host.
func statusOf(t testing.TB, pid int) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	return fields(string(raw))
}

func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		all[name] = strings.TrimSpace(value)
	}
	return all
}

// alive counts the processes that share the pid namespace of a host pid. A zombie
// is none: on a host whose PID 1 reaps slowly it stays for a while.
func alive(pid int) (int, error) {
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil && zombie(pid) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	entries, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		owner, _ := strconv.Atoi(strings.Split(e, "/")[2])
		if other, err := os.Readlink(e); err == nil && other == ns && !zombie(owner) {
			n++
		}
	}
	return n, nil
}

// zombie says whether a process has ended, whether or not it has been reaped.
func zombie(pid int) bool {
	raw, err := os.ReadFile(procFile(pid, "stat"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return true
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// leftAtRest is Left once it has not changed for a second: what earlier jobs left is
// taken down by then, and what the next one needs is made ready.
func (h Host) leftAtRest(t testing.TB) []string {
	t.Helper()
	return waittest.Rest(t, "the backend", h.Left)
}
