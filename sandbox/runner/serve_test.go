package runner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// recorder is a driver that starts nothing and remembers what got through to
// it.
type recorder struct {
	mu     sync.Mutex
	jobs   []sandbox.JobSpec
	specs  []sandbox.Spec
	closed int
}

func (r *recorder) Facts(context.Context) (sandbox.Report, error) { return sandbox.Report{}, nil }
func (r *recorder) Sweep(context.Context) (sandbox.Swept, error)  { return nil, nil }
func (r *recorder) Close() error                                  { return nil }

func (r *recorder) OpenJob(_ context.Context, spec sandbox.JobSpec) (sandbox.DriverJob, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobs = append(r.jobs, spec)
	return recordedJob{r}, nil
}

// slowJob makes a sandbox that is ready when its job is closed.
type slowJob struct {
	recordedJob
	creating, closed chan struct{}
}

func (j slowJob) Create(context.Context, sandbox.Spec) (sandbox.DriverSandbox, error) {
	close(j.creating)
	<-j.closed
	return nil, nil
}

func (j slowJob) Close(context.Context) error {
	close(j.closed)
	return nil
}

// TestSandboxOfAJobThatWasClosedMeanwhile is refused in an answer, and has no name
// that a later request could use.
func TestSandboxOfAJobThatWasClosedMeanwhile(t *testing.T) {
	policy, err := policies.Builtin("strict")
	if err != nil {
		t.Fatal(err)
	}
	slow := slowJob{recordedJob{&recorder{}}, make(chan struct{}), make(chan struct{})}
	s := &server{jobs: map[sandbox.JobID]*openJob{"a": {slow, policy.Limits}}, boxes: map[string]openBox{}}
	go func() {
		<-slow.creating
		_ = s.closeJob(context.Background(), "a")
	}()
	spec := sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: policy.Limits}
	_, err = s.create(t.Context(), request{Job: "a", Spec: &spec})
	var typed *sandbox.Error
	if !errors.As(err, &typed) || typed.Kind != sandbox.KindRefused || len(s.boxes) != 0 {
		t.Errorf("%v, %d sandboxes have names", err, len(s.boxes))
	}
}

// count is how many Specs got through.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.specs)
}

type recordedJob struct{ r *recorder }

func (j recordedJob) Create(_ context.Context, spec sandbox.Spec) (sandbox.DriverSandbox, error) {
	j.r.mu.Lock()
	defer j.r.mu.Unlock()
	j.r.specs = append(j.r.specs, spec)
	return nil, &sandbox.Error{Kind: sandbox.KindStart, Op: "recording"}
}

func (j recordedJob) Close(context.Context) error {
	j.r.mu.Lock()
	defer j.r.mu.Unlock()
	j.r.closed++
	return nil
}

// peer is the supervisor's end of a server over a recorder.
type peer struct {
	t        testing.TB
	conn     *conn
	driver   *recorder
	finished chan error
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	client, err := newConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := newConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := policies.Load("strict")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, conn: client, driver: &recorder{}, finished: make(chan error, 1)}
	s := &server{
		conn: srv, driver: p.driver, policy: policy, log: slog.New(slog.DiscardHandler),
		jobs: map[sandbox.JobID]*openJob{}, boxes: map[string]openBox{},
	}
	go func() {
		err := s.serve(context.Background())
		_ = srv.unix.Close()
		p.finished <- err
	}()
	t.Cleanup(func() { _ = client.unix.Close() })
	return p
}

// raw sends bytes as one packet and returns the reply.
func (p *peer) raw(packet string) (reply, error) {
	p.t.Helper()
	if _, err := p.conn.unix.Write([]byte(packet)); err != nil {
		return reply{}, err
	}
	var r reply
	_, err := p.conn.receive(&r)
	return r, err
}

func (p *peer) ask(r request) reply {
	p.t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		p.t.Fatal(err)
	}
	got, err := p.raw(string(raw))
	if err != nil {
		p.t.Fatalf("asking %s: %v", r.Op, err)
	}
	if got.ID != r.ID {
		p.t.Fatalf("reply %d to request %d", got.ID, r.ID)
	}
	return got
}

func (p *peer) greet() {
	p.t.Helper()
	policy, err := policies.Load("strict")
	if err != nil {
		p.t.Fatal(err)
	}
	if r := p.ask(request{ID: 1, Op: opHello, Policy: policyDigest(policy)}); r.Error != nil {
		p.t.Fatalf("hello: %+v", r.Error)
	}
}

func wantRefused(t testing.TB, what string, r reply) {
	t.Helper()
	if r.Error == nil || r.Error.Kind != sandbox.KindRefused {
		t.Errorf("%s: reply %+v, want a refusal", what, r)
	}
}

func TestA19NothingBeforeHello(t *testing.T) {
	p := newPeer(t)
	wantRefused(t, "facts", p.ask(request{ID: 7, Op: opFacts}))
	wantRefused(t, "another policy", p.ask(request{ID: 8, Op: opHello, Policy: "none"}))
	limits := strictLimits(t)
	wantRefused(t, "open job", p.ask(request{ID: 9, Op: opOpenJob, Job: "j", Limits: &limits}))
	p.greet()
	if r := p.ask(request{ID: 10, Op: opOpenJob, Job: "j", Limits: &limits}); r.Error != nil {
		t.Errorf("after hello: %+v", r.Error)
	}
}

// TestA19HostPathsHaveNoField asks for what a taken-over supervisor would like.
func TestA19HostPathsHaveNoField(t *testing.T) {
	p := newPeer(t)
	p.greet()
	limits := strictLimits(t)
	p.ask(request{ID: 2, Op: opOpenJob, Job: "j", Limits: &limits})
	for _, field := range []string{
		`"mounts":[{"source":"/","destination":"/host"}]`, `"rootfs":"/"`, `"devices":["/dev/sda"]`,
		`"capabilities":["CAP_SYS_ADMIN"]`, `"seccomp":null`, `"uid":0`, `"id_range":0`, `"instance":"other"`,
		`"namespaces":{"net":"host"}`, `"cgroup":"/"`, `"runtime":"/bin/sh"`, `"env":["LD_PRELOAD=x"]`,
	} {
		for _, packet := range []string{
			`{"id":3,"op":"create","job":"j",` + field + `,"spec":{"network":"none","profile":"job"}}`,
			`{"id":3,"op":"create","job":"j","spec":{"network":"none","profile":"job",` + field + `}}`,
		} {
			r, err := p.raw(packet)
			if err != nil || r.ID != 3 {
				t.Fatalf("%s: %+v, %v", field, r, err)
			}
			wantRefused(t, field, r)
		}
	}
	if p.driver.count() != 0 {
		t.Errorf("%d specs reached the driver", p.driver.count())
	}
}

func TestA19BrokenPacketsEndTheConnection(t *testing.T) {
	for name, packet := range map[string]string{
		"no json":        "hello",
		"two messages":   `{"id":1,"op":"facts"}{"id":2,"op":"facts"}`,
		"cut":            `{"id":1,`,
		"over the limit": `{"id":1,"op":"` + strings.Repeat("x", maxPacket) + `"}`,
		"NUL":            "\x00",
		"deep":           strings.Repeat("[", 40_000),
	} {
		p := newPeer(t)
		if _, err := p.raw(packet); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want the connection's end", name, err)
		}
		if err := <-p.finished; !errors.Is(err, ErrMessage) {
			t.Errorf("%s: server ended with %v", name, err)
		}
	}
}

func TestEndOfConnectionClosesJobs(t *testing.T) {
	p := newPeer(t)
	p.greet()
	limits := strictLimits(t)
	for i, id := range []sandbox.JobID{"a", "b", "c"} {
		p.ask(request{ID: uint64(i + 2), Op: opOpenJob, Job: id, Limits: &limits})
	}
	p.ask(request{ID: 9, Op: opCloseJob, Job: "b"})
	_ = p.conn.unix.Close()
	if err := <-p.finished; err != nil {
		t.Errorf("server ended with %v", err)
	}
	if p.driver.closed != 3 {
		t.Errorf("%d jobs were closed, want 3", p.driver.closed)
	}
}

func TestDescriptorsOnlyWhereTheyBelong(t *testing.T) {
	p := newPeer(t)
	p.greet()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := p.conn.send(request{ID: 5, Op: opFacts}, []*os.File{writer}); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	var r reply
	if _, err := p.conn.receive(&r); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "facts with a descriptor", r)
	if _, err := io.ReadAll(reader); err != nil { // ends only when the server has closed its copy
		t.Fatal(err)
	}
}

// TestA19FuzzedSpecs draws Specs of every kind: what reaches the driver keeps
// every rule, and good ones do reach it.
func TestA19FuzzedSpecs(t *testing.T) {
	p := newPeer(t)
	p.greet()
	job := strictLimits(t)
	p.ask(request{ID: 2, Op: opOpenJob, Job: "j", Limits: &job})
	each := 50 // of a hundred draws
	if os.Getenv("VEYRA_SOAK") == "1" {
		each = 1000
	}
	rapid.Check(t, func(t *rapid.T) {
		for range each {
			before := p.driver.count()
			spec := drawSpec(t, job)
			r := p.ask(request{ID: 3, Op: opCreate, Job: "j", Spec: &spec})
			started, good := p.driver.count() > before, allowed(spec, job)
			if started != good {
				t.Fatalf("spec %+v: started %t, allowed %t, reply %+v", spec, started, good, r.Error)
			}
		}
	})
	if p.driver.count() == 0 {
		t.Error("no good spec was drawn: the check is blind")
	}
}

const someDigest = "sha256:21dc9692fddda3ee3e18c8c0fbdc2bf44ed8a4aea017654bbd2ab68ef38bec51"

func drawSpec(t *rapid.T, job policies.Limits) sandbox.Spec {
	l := job
	if rapid.Bool().Draw(t, "other limits") {
		for _, f := range []*int64{
			&l.MemoryBytes, &l.PIDs, &l.DiskBytes, &l.Inodes, &l.ShmBytes, &l.OpenFiles, &l.CoreBytes,
			&l.OutputKeepBytes, &l.OutputReadBytes, &l.ChangeBytes,
		} {
			*f += rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 0, 0, -1, 1, -1 << 62, 1 << 40}).Draw(t, "by")
		}
		l.CPUs = rapid.IntRange(-1, 4).Draw(t, "cpus")
	}
	return sandbox.Spec{
		Image:   images.Digest(rapid.SampledFrom([]string{"", someDigest, someDigest, "/etc", "python", someDigest + "/.."}).Draw(t, "image")),
		Layers:  []sandbox.LayerID{},
		Network: sandbox.Network(rapid.SampledFrom([]string{"none", "none", "none", "host", "", "registries"}).Draw(t, "network")),
		Profile: sandbox.Profile(rapid.SampledFrom([]string{"job", "git", "job", "", "unconfined"}).Draw(t, "profile")),
		Limits:  l,
	}
}

// allowed states the rules once more, in other words than checkSpec.
func allowed(s sandbox.Spec, job policies.Limits) bool {
	if s.Image != "" && s.Image != someDigest || s.Network != "none" || s.Profile != "job" && s.Profile != "git" {
		return false
	}
	l := s.Limits
	for _, n := range [][3]int64{
		{1, l.MemoryBytes, job.MemoryBytes},
		{1, l.PIDs, job.PIDs},
		{1, l.DiskBytes, job.DiskBytes},
		{1, l.Inodes, job.Inodes},
		{1, l.ShmBytes, job.ShmBytes},
		{1, l.OpenFiles, job.OpenFiles},
		{0, l.CoreBytes, job.CoreBytes},
		{0, l.OutputKeepBytes, job.OutputKeepBytes},
		{0, l.OutputReadBytes, job.OutputReadBytes},
		{0, l.ChangeBytes, job.ChangeBytes},
	} {
		if n[1] < n[0] || n[1] > n[2] {
			return false
		}
	}
	return l.CPUs > 0 && l.CPUs <= job.CPUs
}

func strictLimits(t testing.TB) policies.Limits {
	t.Helper()
	policy, err := policies.Load("strict")
	if err != nil {
		t.Fatal(err)
	}
	return policy.Limits
}

// FuzzRequest feeds packets to what reads them: no panic, and what is taken
// prints as something that is taken again.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"id":1,"op":"hello","policy":"x"}`))
	f.Add([]byte(`{"id":2,"op":"create","job":"j","spec":{"image":"","layers":[],"network":"none","profile":"job","limits":{}}}`))
	f.Add([]byte(`{"id":3,"op":"freeze","sandbox":"s","parts":[{"paths":["/workspace"]}]}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		var r request
		if decode(packet, &r) != nil {
			return
		}
		_ = checkParts(r.Parts)
		_ = checkSpec(r.Spec, policies.Limits{})
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again request
		if err := decode(raw, &again); err != nil {
			t.Errorf("%s is not taken again: %v", raw, err)
		}
	})
}

// TestRunnerHasTimeForAllOfItsEnd: one that uses up its jobs' time still gives back
// what it holds beside them; one that never ends is killed.
func TestRunnerHasTimeForAllOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, killed := range map[time.Duration]bool{0: false, teardownTime + 15*time.Second: false, time.Hour: true} {
			exited, kills := make(chan struct{}), 0
			end := sync.OnceFunc(func() { close(exited) })
			timer := time.AfterFunc(after, end)
			err := awaitEnd(exited, func() error { kills++; end(); return nil })
			timer.Stop()
			if errors.Is(err, os.ErrDeadlineExceeded) != killed || (kills > 0) != killed {
				t.Errorf("ended after %s: %v, killed %d times", after, err, kills)
			}
		}
	})
}

func TestSocketHasNoAddress(t *testing.T) {
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	defer ours.Close()
	kind, err := unix.GetsockoptInt(int(ours.Fd()), unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		t.Errorf("socket type %d, %v", kind, err)
	}
}
