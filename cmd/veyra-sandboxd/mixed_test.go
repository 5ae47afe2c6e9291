package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// mixedKind is one way for a job to go.
type mixedKind struct {
	name string
	// add is what the model makes of `return a - b`; "": the fix.
	add string
	// shell is a command of the model before that, ended after a second.
	shell string
	// trouble comes while the model thinks; nil: none.
	trouble func(l *lane, id int64)

	status string
	code   protocol.Code
	limit  string
	leases int
}

// mixedKinds are those of a daemon that lives on, then those that end it.
var mixedKinds = []mixedKind{
	{name: "ok", status: "ACCEPTED"},
	{name: "failing", add: "a * b", status: "FAILED", code: protocol.CodeTestsFailedAfterRepair},
	{name: "oom", add: `len([b"x" * (64 << 20) for _ in range(1000)])`, status: "FAILED", code: protocol.CodeSandboxOOM, limit: "oom"},
	{name: "fork bomb", add: `[__import__("os").fork() for _ in range(1000)]`, status: "FAILED", code: protocol.CodeSandboxPids, limit: "pids"},
	{name: "disk full", add: `(lambda os: (lambda fd: [os.posix_fallocate(fd, i << 18, 1 << 18) for i in range(20000)])(os.open("/tmp/full", 65)))(__import__("os"))`, status: "FAILED", code: protocol.CodeSandboxDisk, limit: "disk"},
	{name: "timed out", shell: "sleep 600", status: "ACCEPTED", limit: "timeout"},
	{name: "cancelled", trouble: (*lane).cancel, status: "ACCEPTED", leases: 2},
	{name: "killed supervisor", trouble: (*lane).killSupervisor, status: "ACCEPTED"},
	{name: "killed runner", trouble: (*lane).killRunner, status: "ACCEPTED"},
}

// steadyKinds is how many leave the daemon alive.
const steadyKinds = 7

// lane is one daemon, over all its lives, with its jobs one after the other.
type lane struct {
	t    *testing.T
	name string
	w    *world
	p    place
	d    *daemon
	// samples are taken between jobs, in the current life.
	samples []sample
	counts  map[string]int
}

// mixedLane says what one lane is to do.
type mixedLane struct {
	name, runtime string
	jobs          int
	kinds         []mixedKind
}

// TestSoakMixed runs jobs of every kind, good and hostile, through whole daemons:
// each ends as it should, and afterwards host and daemon are as before. A small
// one of each kind runs always; VEYRA_SOAK=1 runs 300 and a share on runsc, and
// VEYRA_SEED repeats their order.
func TestSoakMixed(t *testing.T) {
	t.Parallel()
	lanes := []mixedLane{
		{"steady", "runc", 4, mixedKinds[:4]},
		{"steady too", "runc", 3, mixedKinds[4:steadyKinds]},
		{"killed", "runc", 2, mixedKinds[steadyKinds:]},
	}
	if os.Getenv("VEYRA_SOAK") != "" {
		lanes = []mixedLane{
			{"steady", "runc", 119, mixedKinds[:steadyKinds]},
			{"steady too", "runc", 119, mixedKinds[:steadyKinds]},
			{"killed", "runc", 62, mixedKinds[steadyKinds:]},
			{"gvisor", "runsc", 21, mixedKinds[:steadyKinds]},
		}
	}
	seed := soakSeed(t)
	var results sync.Map
	t.Cleanup(func() { tellMixed(t, &results) })
	for n, todo := range lanes {
		t.Run(fmt.Sprintf("%s/VEYRA_SEED=%d", todo.name, seed), func(t *testing.T) {
			t.Parallel()
			l := newLane(t, todo)
			results.Store(todo.name, l)
			l.soak(todo, rand.New(rand.NewPCG(seed, uint64(n))))
		})
	}
}

func newLane(t *testing.T, todo mixedLane) *lane {
	t.Helper()
	needSandboxes(t)
	if _, err := os.Stat(filepath.Join(filepath.Dir(runtimePath()), todo.runtime)); err != nil {
		t.Skip("not applicable: no " + todo.runtime + " (`make setup` builds it)")
	}
	l := &lane{t: t, name: todo.name, w: newWorld(t, true), counts: map[string]int{}}
	l.p = l.w.newPlace()
	l.p.env = append(l.p.env, "VEYRA_SANDBOX_RUNTIME="+todo.runtime)
	l.p.policy = smallPolicy(t)
	l.d = l.w.ready(l.p)
	return l
}

// smallPolicy lets a job reach each limit within a moment.
func smallPolicy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.yaml")
	writeFile(t, path, "name: small\nextends: strict\nlimits: {memory: 1GiB, disk: 2GiB, pids: 64}\n", 0o600)
	return path
}

// soak plays each kind equally often, in random order.
func (l *lane) soak(todo mixedLane, r *rand.Rand) {
	var order []mixedKind
	for len(order) < todo.jobs {
		next := slices.Clone(todo.kinds)
		r.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
		order = append(order, next...)
	}
	instance := l.d.instance()
	for i, kind := range order[:todo.jobs] {
		l.play(i, kind)
		l.counts[kind.name]++
		l.idle()
	}
	l.wantFlat()
	if l.d.instance() != instance {
		l.t.Errorf("instance %s became %s", instance, l.d.instance())
	}
	l.d.stop()
	wantNothingLeft(l.t, instance, l.d.state)
	l.wantTidyState()
}

// play has one job leased, worked on and judged.
func (l *lane) play(i int, kind mixedKind) {
	l.t.Helper()
	name, title := fmt.Sprintf("mixed-%d", i), fmt.Sprintf("Make add add, %04d", i)
	asked, answer := make(chan struct{}), make(chan struct{})
	if kind.trouble == nil {
		close(answer)
	}
	id := l.w.job(name, title, project(), func(s *controlplanetest.JobSpec) { s.RepairAttempts = 0 })
	l.w.script(title, kind.script(sync.OnceFunc(func() { close(asked) }), answer))
	if kind.trouble != nil {
		waittest.For(l.t, "the model is asked", asked)
		kind.trouble(l, id)
		close(answer)
	}
	j := l.w.ended(id)
	if code := fmt.Sprint(j.Evidence[protocol.KeyFailureCode]); j.Status != kind.status || kind.code != "" && code != string(kind.code) {
		l.t.Fatalf("%s, %s: the job ended %s", name, kind.name, pretty(j))
	}
	if kind.limit != "" && !strings.Contains(fmt.Sprint(j.Evidence[protocol.KeyLimitsHit]), kind.limit) {
		l.t.Errorf("%s, %s: limits %v", name, kind.name, j.Evidence[protocol.KeyLimitsHit])
	}
	if j.Attempt != max(kind.leases, 1) {
		l.t.Errorf("%s, %s: %d leases", name, kind.name, j.Attempt)
	}
	want := 0
	if kind.status == "ACCEPTED" {
		want = 1
	}
	if pulls, branches := l.w.pushed(name); pulls != want || branches != want {
		l.t.Errorf("%s, %s: %d pull requests and %d branches, want %d of each", name, kind.name, pulls, branches, want)
	}
}

// script is the model's part. Whoever asks first waits for the trouble.
func (k mixedKind) script(asked func(), answer <-chan struct{}) func(providertest.Conversation) providertest.Step {
	add := k.add
	if add == "" {
		add = "a + b"
	}
	steps := []providertest.Step{
		{Edit: &providertest.Edit{Path: "calc.py", Old: "a - b", New: add}}, {Finish: "Changed add."},
	}
	if k.shell != "" {
		steps = append([]providertest.Step{{Shell: k.shell, Seconds: 1}}, steps...)
	}
	next := providertest.Steps(steps...)
	return func(c providertest.Conversation) providertest.Step {
		asked()
		<-answer
		return next(c)
	}
}

// cancel leases the job anew, which ends the run of the old lease.
func (l *lane) cancel(id int64) {
	old := jobOf(l.w.plane.View(), id).LeaseID
	l.w.plane.Lease(id)
	l.d.statusUntil("the run of the old lease is over", func(st supervisor.Status) bool { return st.Running == nil || st.Running.Lease != old })
}

func (l *lane) killSupervisor(int64) {
	l.d.kill()
	l.again()
}

// killRunner ends the runner; its daemon says so, and goes on with its next life.
func (l *lane) killRunner(int64) {
	_ = unix.Kill(l.d.child("__runner"), unix.SIGKILL)
	l.d.line("the runner is gone: restart the daemon; no work is taken until then")
	l.d.kill()
	l.again()
}

func (l *lane) again() {
	l.d = l.w.start(l.p)
	l.samples = nil
}

// idle waits until nothing of a job is left, and takes a sample.
func (l *lane) idle() {
	l.t.Helper()
	until(l.t, "nothing runs, and nothing is left to deliver", func() bool {
		return l.gauge("jobs_running")+l.gauge("outbox_depth")+l.gauge("sandboxes_running") == 0
	})
	until(l.t, "one range is ready, and no other, no namespace and no booking is held", func() bool {
		held := l.held()
		return len(held) == 1 && strings.Contains(held[0], "/veyra-sandboxd/ids/")
	})
	l.samples = append(l.samples, l.sample())
}

// held is what a job holds of the host beside its sandboxes: user namespaces, id
// ranges, bookings.
func (l *lane) held() []string {
	var found []string
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", l.d.child("__runner")))
	for _, file := range files {
		target, _ := os.Readlink(file)
		if strings.HasPrefix(target, "user:") || strings.Contains(target, "/veyra-sandboxd/ids/") || strings.Contains(target, "/veyra-sandboxd/booked/") {
			found = append(found, target)
		}
	}
	for _, p := range inSandboxes(l.d.instance()) {
		found = append(found, strings.Join(p.command, " "))
	}
	return found
}

// wantTidyState wants nothing in the state but records.
func (l *lane) wantTidyState() {
	l.t.Helper()
	disks, err := os.ReadDir(filepath.Join(l.d.state, "disks"))
	if err != nil || len(disks) != 0 {
		l.t.Errorf("the state's disks hold %v, %v", disks, err)
	}
	files, err := filepath.Glob(filepath.Join(l.d.state, "jobs", "*", "*", "*"))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, file := range files {
		if !slices.Contains([]string{"evidence.json", "log", "transcript", "change.patch", "commit.pack"}, filepath.Base(file)) {
			l.t.Errorf("%s is no record", file)
		}
	}
}

// sample is what a daemon takes of the host between jobs.
type sample struct {
	supervisor, runner, signer int64 // resident bytes
	descriptors, goroutines    int64 // of the supervisor
	runnerDescriptors          int64
}

func (l *lane) sample() sample {
	runner, signer := l.d.child("__runner"), l.d.child("__signer")
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", runner))
	return sample{
		supervisor: resident(l.d.cmd.Process.Pid), runner: resident(runner), signer: resident(signer),
		descriptors: l.gauge("process_open_fds"), goroutines: l.gauge("go_goroutines"), runnerDescriptors: int64(len(files)),
	}
}

func resident(pid int) int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field(pid, "VmRSS"), " kB"), 10, 64)
	return kib << 10
}

// gauge reads a number of the daemon's metrics, ours by its short name.
func (l *lane) gauge(name string) int64 {
	_, text := get(l.t, "http://"+l.d.admin+"/metrics")
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key == name || key == "veyra_sandboxd_"+name {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				l.t.Fatal(err)
			}
			return int64(n)
		}
	}
	l.t.Fatalf("no metric %s", name)
	return 0
}

const (
	// flatBytes is what a process may have grown by, in its median.
	flatBytes = 10 << 20
	// flatCount is what idle connections take and give back.
	flatCount = 12
	// flatSamples are needed for a median of memory that means something.
	flatSamples = 40
)

// wantFlat compares the end of a life with its beginning.
func (l *lane) wantFlat() {
	l.t.Helper()
	first := l.samples[0]
	until(l.t, "descriptors and goroutines are as at first", func() bool {
		last := l.sample()
		return last.descriptors <= first.descriptors+flatCount && last.goroutines <= first.goroutines+flatCount &&
			last.runnerDescriptors <= first.runnerDescriptors+2
	})
	if len(l.samples) < flatSamples {
		return
	}
	quarter := len(l.samples) / 4
	early, late := l.samples[quarter:2*quarter], l.samples[3*quarter:]
	for name, of := range memories {
		if was, is := median(early, of), median(late, of); is > was+flatBytes {
			l.t.Errorf("%s grew from %d to %d KiB", name, was>>10, is>>10)
		}
	}
}

var memories = map[string]func(sample) int64{
	"supervisor": func(s sample) int64 { return s.supervisor },
	"runner":     func(s sample) int64 { return s.runner },
	"signer":     func(s sample) int64 { return s.signer },
}

func median(all []sample, of func(sample) int64) int64 {
	var values []int64
	for _, s := range all {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// soakSeed is VEYRA_SEED or a new one.
func soakSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("VEYRA_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}
