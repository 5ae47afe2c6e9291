package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func contract(t *testing.T, h Host) {
	cases(t, h, map[string]func(*testing.T, Host){
		"ProbeMeasures":              probeMeasures,
		"ExitStatuses":               exitStatuses,
		"Streams":                    streams,
		"EnvironmentIsOurs":          environment,
		"OneCommandAtATime":          oneAtATime,
		"CancelEndsTheSandbox":       cancelEnds,
		"ClosedMeansClosed":          closedMeansClosed,
		"NothingIsLeft":              nothingIsLeft,
		"A19RefusedSpecs":            refusedSpecs,
		"A19LimitsAboveThePolicy":    refusedLimits,
		"A19ForeignLayer":            foreignLayer,
		"OrdinaryFileWork":           fileWork,
		"SweepSparesTheLiving":       sweepSpares,
		"SandboxesOfAJobShareOneIDs": sharedIDs,
		"JobsAtOnce":                 jobsAtOnce,
		"SignalsAreAsUsual":          signalsUsual,
	})
}

func probeMeasures(t *testing.T, h Host) {
	report, err := h.Backend.Probe(ctxOf(t))
	if err != nil {
		t.Fatalf("probing: %v", err)
	}
	if report.Backend == "" || report.Version == "" || len(report.Controls) < 10 {
		t.Errorf("report says too little: %+v", report)
	}
	for _, c := range report.Controls {
		if !c.Enforced && !h.goesWithout(c) || c.Seen == "" {
			t.Errorf("control %+v is not enforced", c)
		}
	}
}

func exitStatuses(t *testing.T, h Host) {
	b := h.One(t)
	for _, c := range []struct {
		argv   []string
		code   int
		signal int
	}{
		{[]string{"true"}, 0, 0},
		{[]string{"sh", "-c", "exit 7"}, 7, 0},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, 9},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, 15},
		{[]string{"no-such-program"}, 127, 0},
		{[]string{"/workspace"}, 126, 0},
		{[]string{"/etc/hosts"}, 126, 0},
	} {
		exit, out := b.Cmd(sandbox.Command{Argv: c.argv})
		if exit.Code != c.code || exit.Signal != c.signal || exit.Ended != "" || exit.Gone {
			t.Errorf("%q gave %+v (%s), want code %d signal %d", c.argv, exit, out, c.code, c.signal)
		}
	}
}

func streams(t *testing.T, h Host) {
	b := h.One(t)
	input := strings.Repeat("0123456789abcdef", 64<<10)
	exit, out := b.Cmd(sandbox.Command{Argv: []string{"cat"}, Stdin: strings.NewReader(input)})
	if exit.Code != 0 || out != input {
		t.Errorf("cat gave %d bytes of %d, exit %+v", len(out), len(input), exit)
	}
	var stdout, stderr bytes.Buffer
	b.Cmd(sandbox.Command{Argv: []string{"sh", "-c", "echo out; echo err >&2"}, Stdout: &stdout, Stderr: &stderr})
	if stdout.String() != "out\n" || stderr.String() != "err\n" {
		t.Errorf("streams are %q and %q", stdout.String(), stderr.String())
	}
	if out := b.Must("for i in 1 2 3; do echo a$i; echo b$i > /dev/stderr; done"); out != "a1\nb1\na2\nb2\na3\nb3\n" {
		t.Errorf("one pipe changed the order: %q", out)
	}
	if out := b.Must("cat; test -t 0 || test -t 1 || echo no terminal"); out != "no terminal\n" {
		t.Errorf("without input: %q", out)
	}
}

func environment(t *testing.T, h Host) {
	b := h.One(t)
	got := strings.Split(strings.TrimSuffix(b.Python("import os\nfor k, v in os.environ.items(): print(k + '=' + v)"), "\n"), "\n")
	got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "LC_CTYPE=") }) // Python's own
	want := sandbox.DefaultEnv()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if out := b.Must("pwd"); out != "/workspace\n" {
		t.Errorf("commands start in %q", out)
	}
}

func oneAtATime(t *testing.T, h Host) {
	b := h.One(t)
	started, release := io.Pipe()
	finished := make(chan error, 1)
	reader, writer := io.Pipe()
	go func() {
		_, err := b.Run(ctxOf(t), sandbox.Command{Argv: []string{"sh", "-c", "echo up; cat"}, Stdin: started, Stdout: writer})
		finished <- err
	}()
	if _, err := io.ReadFull(reader, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	_, err := b.Run(ctxOf(t), sandbox.Command{Argv: []string{"true"}})
	wantKind(t, err, sandbox.KindBusy)
	_ = release.Close()
	if err := <-finished; err != nil {
		t.Errorf("first command: %v", err)
	}
}

func cancelEnds(t *testing.T, h Host) {
	b := h.One(t)
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	finished := make(chan error, 1)
	go func() {
		_, err := b.Run(ctx, sandbox.Command{Argv: []string{"sh", "-c", "echo up; sleep 600"}, Stdout: writer})
		finished <- err
	}()
	if _, err := io.ReadFull(reader, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-finished; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled command gave %v", err)
	}
	if _, err := b.Run(ctxOf(t), sandbox.Command{Argv: []string{"true"}}); err == nil {
		t.Error("a command ran after a cancelled one")
	}
}

func closedMeansClosed(t *testing.T, h Host) {
	l := h.Small()
	job := h.Job(t, l)
	b := h.Bare(t, job, l)
	for range 2 {
		if err := b.Close(ctxOf(t)); err != nil {
			t.Errorf("closing: %v", err)
		}
	}
	_, err := b.Run(ctxOf(t), sandbox.Command{Argv: []string{sandbox.InitPath}})
	wantKind(t, err, sandbox.KindRefused)
	_, err = b.Freeze(ctxOf(t), []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	wantKind(t, err, sandbox.KindRefused)
	wantKind(t, b.Collect(ctxOf(t), io.Discard), sandbox.KindRefused)
	for range 2 {
		if err := job.Close(ctxOf(t)); err != nil {
			t.Errorf("closing job: %v", err)
		}
	}
	_, err = job.Create(ctxOf(t), sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: l})
	wantKind(t, err, sandbox.KindRefused)
}

// nothingIsLeft closes jobs in every state of their sandboxes.
func nothingIsLeft(t *testing.T, h Host) {
	if h.Left == nil {
		t.Skip("not applicable: the backend's test can't look from the host")
	}
	h.needImage(t)
	before := h.leftAtRest(t)
	l := h.Small()
	job := h.Job(t, l)
	frozen := h.Create(t, job, l)
	frozen.Must("echo 1 > /workspace/file")
	layer := frozen.FreezePaths(sandbox.Workspace)
	running := h.Create(t, job, l, layer...)
	running.Must("(sleep 600 &) ; echo 2 > file")
	collected := h.Create(t, job, l, layer...)
	if err := collected.Collect(ctxOf(t), io.Discard); err != nil {
		t.Fatal(err)
	}
	if len(h.Left()) <= len(before) {
		t.Fatal("the host's view shows nothing of live sandboxes: the check is blind")
	}
	if err := job.Close(ctxOf(t)); err != nil {
		t.Fatalf("closing job: %v", err)
	}
	waittest.Until(t, "loop devices detach", func() bool { return cmp.Equal(before, h.Left()) })
}

func refusedSpecs(t *testing.T, h Host) {
	l := h.Small()
	job := h.Job(t, l)
	good := sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: l}
	for name, change := range map[string]func(*sandbox.Spec){
		"image that is no digest": func(s *sandbox.Spec) { s.Image = "/etc" },
		"image outside the store": func(s *sandbox.Spec) {
			s.Image = "sha256:21dc9692fddda3ee3e18c8c0fbdc2bf44ed8a4aea017654bbd2ab68ef38bec51"
		},
		"image with a path": func(s *sandbox.Spec) {
			s.Image = "sha256:../../../../../../../../../../../../../../../../../../../etc/passwd0"
		},
		"unknown layer":     func(s *sandbox.Spec) { s.Layers = []sandbox.LayerID{"../../.."} },
		"empty layer":       func(s *sandbox.Spec) { s.Layers = []sandbox.LayerID{""} },
		"many layers":       func(s *sandbox.Spec) { s.Layers = make([]sandbox.LayerID, 500) },
		"host network":      func(s *sandbox.Spec) { s.Network = "host" },
		"no network phase":  func(s *sandbox.Spec) { s.Network = "" },
		"no seccomp":        func(s *sandbox.Spec) { s.Profile = "unconfined" },
		"no profile":        func(s *sandbox.Spec) { s.Profile = "" },
		"no limits":         func(s *sandbox.Spec) { s.Limits = policies.Limits{} },
		"more than the job": func(s *sandbox.Spec) { s.Limits.MemoryBytes++ },
		"negative":          func(s *sandbox.Spec) { s.Limits.PIDs = -1 },
		"all CPUs":          func(s *sandbox.Spec) { s.Limits.CPUs = 0 },
	} {
		spec := good
		change(&spec)
		s, err := job.Create(ctxOf(t), spec)
		if err == nil {
			_ = s.Close(ctxOf(t))
		}
		if sandbox.KindOf(err) != sandbox.KindRefused {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func refusedLimits(t *testing.T, h Host) {
	for name, change := range map[string]func(*sandbox.JobSpec){
		"memory":     func(s *sandbox.JobSpec) { s.Limits.MemoryBytes = h.Limits.MemoryBytes + 1 },
		"pids":       func(s *sandbox.JobSpec) { s.Limits.PIDs = h.Limits.PIDs + 1 },
		"disk":       func(s *sandbox.JobSpec) { s.Limits.DiskBytes = h.Limits.DiskBytes + 1 },
		"open files": func(s *sandbox.JobSpec) { s.Limits.OpenFiles = h.Limits.OpenFiles + 1 },
		"output":     func(s *sandbox.JobSpec) { s.Limits.OutputReadBytes = h.Limits.OutputReadBytes + 1 },
		"id":         func(s *sandbox.JobSpec) { s.ID = "../x" },
		"no id":      func(s *sandbox.JobSpec) { s.ID = "" },
	} {
		spec := sandbox.JobSpec{ID: "refused", Limits: h.Small()}
		change(&spec)
		job, err := h.Backend.OpenJob(ctxOf(t), spec)
		if err == nil {
			_ = job.Close(ctxOf(t))
		}
		if sandbox.KindOf(err) != sandbox.KindRefused {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func foreignLayer(t *testing.T, h Host) {
	l := h.Small()
	one, other := h.Job(t, l), h.Job(t, l)
	layer := h.Bare(t, one, l).FreezePaths(sandbox.Workspace)
	_, err := other.Create(ctxOf(t), sandbox.Spec{Layers: layer, Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: l})
	wantKind(t, err, sandbox.KindRefused)
}

// fileWork is what fails when the overlay's mounter lacks a capability.
func fileWork(t *testing.T, h Host) {
	b := h.One(t)
	b.Must(`set -e
cd /workspace && echo x > a && chmod 600 a && chmod 755 a && cp -p a b && touch -d 2001-01-01 b
mkdir d && chmod 2775 d && test "$(stat -c %a d)" = 2775
mv a c && rm b && ln -s c l && ln c h && rm h
cd /tmp && echo y > f && rm f && mkdir -m 1777 s && rmdir s
cd /var/tmp && echo z > f && rm f
cd && echo home > .profile && test -w . && test "$(id -u)" = 1000 && echo e > /dev/stderr
echo q > /dev/shm/q && rm /dev/shm/q && test "$(whoami)" != ""`)
	if exit, _ := b.Sh("echo x > /usr/x || echo x > /etc/x || echo x > /x || echo x > /.veyra/x"); exit.Code == 0 {
		t.Error("the root is writable")
	}
}

func sweepSpares(t *testing.T, h Host) {
	b := h.One(t)
	swept, err := h.Backend.Sweep(ctxOf(t))
	if err != nil || len(swept) != 0 {
		t.Errorf("sweeping beside a live sandbox took %v, %v", swept, err)
	}
	b.Must("true")
}

func sharedIDs(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	job := h.Job(t, l)
	first := h.Create(t, job, l)
	one := idMap(t, h, first)
	two := idMap(t, h, h.Create(t, job, l))
	other := idMap(t, h, h.Create(t, h.Job(t, l), l))
	// An engine has one range for all.
	if one != two || (one == other) != h.OneRange {
		t.Errorf("id maps of one job are %q and %q, of another %q", one, two, other)
	}
	exit, _ := first.Cmd(sandbox.Command{Argv: []string{"true"}, Timeout: time.Minute})
	if measured := exit.MemoryPeak > 0 || slices.Contains(h.Unable, policies.ControlMemory); exit.Duration <= 0 || !measured {
		t.Errorf("exit measures nothing: %+v", exit)
	}
}

// idMap is the map of the sandbox that started last. A guest's kernel shows none,
// so there it is the host's to tell.
func idMap(t testing.TB, h Host, newest *Box) string {
	t.Helper()
	if h.Class == Kernel {
		return newest.Must("cat /proc/self/uid_map")
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", h.newest(t)))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// signalsUsual: what one of our processes ignores would be ignored by every
// command that it starts.
func signalsUsual(t *testing.T, h Host) {
	b := h.One(t)
	if h.Class == GVisor { // its status has no such lines
		out := b.Must(`perl -MPOSIX -e 'for (keys %SIG) { print "ignored $_\n" if ($SIG{$_} // "") eq "IGNORE" && $_ ne "FPE" } # which Perl ignores
my $now = POSIX::SigSet->new; sigprocmask(SIG_BLOCK, POSIX::SigSet->new, $now);
for (1..31) { print "blocked $_\n" if $now->ismember($_) }'`)
		if out != "" {
			t.Errorf("a command begins with signals %s", out)
		}
		return
	}
	status := fields(b.Must("cat /proc/self/status"))
	for _, name := range []string{"SigIgn", "SigBlk"} {
		if status[name] != "0000000000000000" {
			t.Errorf("%s of a command is %s", name, status[name])
		}
	}
}

// jobsAtOnce runs the life of several jobs side by side: none sees another's
// files, and all end.
func jobsAtOnce(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.MemoryBytes = 128 << 20
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := oneLife(ctxOf(t), h, l, i); err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

func oneLife(ctx context.Context, h Host, l policies.Limits, i int) (err error) {
	job, err := h.Backend.OpenJob(ctx, sandbox.JobSpec{ID: sandbox.JobID(fmt.Sprintf("side-%d", i)), Limits: l})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, job.Close(ctx)) }()
	var under []sandbox.LayerID
	for step := range 3 {
		box, err := job.Create(ctx, sandbox.Spec{
			Image: h.Image, Layers: under, Network: sandbox.NetworkNone,
			Profile: sandbox.ProfileJob, Limits: l,
		})
		if err != nil {
			return err
		}
		var out bytes.Buffer
		script := fmt.Sprintf("echo %d >> log; ls; wc -l < log; touch own-%d", i, i)
		exit, err := box.Run(ctx, sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out})
		if err != nil {
			return err
		}
		want := fmt.Sprintf("log\n%d\n", step+1)
		if step > 0 {
			want = fmt.Sprintf("log\nown-%d\n%d\n", i, step+1)
		}
		if exit.Code != 0 || out.String() != want {
			return fmt.Errorf("step %d gave %+v, %q, want %q", step, exit, out.String(), want)
		}
		ids, err := box.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
		if err != nil {
			return err
		}
		under = append(ids, under...)
	}
	return nil
}
