package jobs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/openai"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

const (
	repoToken   = "ghs_token_of_the_job_for_tests"
	providerKey = "sk-canary-of-the-provider-key"
	leaseToken  = "lease-canary-for-tests-0001"
)

// TestMain is also the runner: the test executes itself for it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == runner.Subcommand {
		os.Exit(runner.Main(os.Args[2:], runner.Parts{Open: oci.Open}))
	}
	code := m.Run()
	stopBackend()
	os.Exit(code)
}

// backend is one runner for all tests of the package: starting it is not what
// they are about.
var backend struct {
	once   sync.Once
	client *runner.Client
	report sandbox.Report
	image  images.Digest
	dir    string
	why    string // not applicable because
	err    error
}

func startBackend() {
	if os.Getuid() != 0 {
		backend.why = "needs root"
		return
	}
	cache := os.Getenv("VEYRA_CACHE_DIR")
	if cache == "" {
		cache = "/var/cache/veyra-sandboxd"
	}
	store, err := images.Open(filepath.Join(cache, "images"))
	if err != nil {
		backend.err = err
		return
	}
	image, err := store.Lookup("python")
	if err != nil {
		backend.why = "no python image (`make image` builds it)"
		return
	}
	backend.image = image.Digest
	backend.err = startRunner(filepath.Join(cache, "images"))
}

func startRunner(store string) (err error) {
	if backend.dir, err = os.MkdirTemp("", "veyra-jobs-"); err != nil {
		return err
	}
	for name, dir := range map[string]string{"init": "../cmd/veyra-init", "git": "../cmd/veyra-git"} {
		build := exec.Command("go", "build", "-o", filepath.Join(backend.dir, name), dir)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w: %s", name, err, out)
		}
	}
	beside, err := filepath.Abs("../executable")
	if err != nil {
		return err
	}
	runtime, err := oci.FindRuntime("runc", beside, os.Getenv("PATH"))
	if err != nil {
		backend.why = err.Error()
		return nil
	}
	backend.client, err = runner.Start(context.Background(), runner.Config{
		Instance: fmt.Sprintf("run-jobs%d", os.Getpid()), Policy: "strict", Images: store, Disks: filepath.Join(backend.dir, "disks"),
		Runtime: runtime, Init: filepath.Join(backend.dir, "init"), Git: filepath.Join(backend.dir, "git"), Stderr: os.Stderr,
	})
	if err != nil {
		return err
	}
	backend.report, err = backend.client.Probe(context.Background())
	return err
}

func stopBackend() {
	if backend.client != nil {
		_ = backend.client.Close()
	}
	_ = os.RemoveAll(backend.dir)
}

// world is one job with everything around it: a real git host with its REST
// interface, a scripted model over HTTP, real sandboxes.
type world struct {
	t      *testing.T
	git    *githosttest.Host
	base   string
	model  *providertest.Model
	config jobs.Config
	run    jobs.Run
	ports  *ports
	logs   *syncBuffer
}

// project is a small Python repository whose one test fails.
func project() map[string]githosttest.File {
	return map[string]githosttest.File{
		"calc.py":            githosttest.Text("def add(a, b):\n    return a - b\n"),
		"old.py":             githosttest.Text("x = 1\n"),
		"run.sh":             {Content: "#!/bin/sh\necho hi\n", Exec: true},
		".gitignore":         githosttest.Text("__pycache__/\n*.log\nignored/\n"),
		"tests/__init__.py":  githosttest.Text(""),
		"tests/test_calc.py": githosttest.Text("import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"),
	}
}

// fix is the edit that makes the project's test pass.
func fix() providertest.Step {
	return providertest.Step{Edit: &providertest.Edit{Path: "calc.py", Old: "a - b", New: "a + b"}}
}

func newWorld(t *testing.T, files map[string]githosttest.File, decide func(providertest.Conversation) providertest.Step) *world {
	t.Helper()
	backend.once.Do(startBackend)
	if backend.err != nil {
		t.Fatal(backend.err)
	}
	if backend.why != "" {
		t.Skip("not applicable: " + backend.why)
	}
	w := &world{t: t, git: githosttest.New(t.TempDir()), model: &providertest.Model{Key: providerKey, Name: "scripted", Decide: decide}, logs: &syncBuffer{}}
	var err error
	if w.base, err = w.git.CreateRepo("acme", "shop", files); err != nil {
		t.Fatal(err)
	}
	w.git.Grant("acme", "shop", repoToken, githosttest.Write)
	w.configure(w.serve(w.git), w.serve(w.model))
	w.lease()
	return w
}

func (w *world) serve(h http.Handler) string {
	server := httptest.NewServer(h)
	w.t.Cleanup(server.Close)
	return server.URL
}

func (w *world) configure(gitURL, modelURL string) {
	client, err := openai.New(openai.Config{BaseURL: modelURL, Model: "scripted", Key: providerKey, FirstPause: time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	policy, err := policies.Load("strict")
	if err != nil {
		w.t.Fatal(err)
	}
	if policy, err = policy.Scaled(policies.Capacity{CPUs: 2, MemoryBytes: 2 << 30, DiskBytes: 3 << 30}); err != nil {
		w.t.Fatal(err)
	}
	secrets := redact.New()
	for _, s := range []string{providerKey, repoToken, leaseToken} {
		if err := secrets.Add(s); err != nil {
			w.t.Fatal(err)
		}
	}
	w.config = jobs.Config{
		Backend: backend.client, Report: backend.report, Policy: policy, GitOrigins: w.origins(gitURL), API: gitURL,
		Image: func(tool policies.Toolchain) (images.Digest, bool) {
			return backend.image, tool == policies.Python
		},
		Engine: coding.NewLoop(client, coding.LoopConfig{}), Single: coding.NewSingle(client, coding.LoopConfig{}),
		Provider: "openai-compatible", Model: "scripted", Version: "0.1.0", Secrets: secrets,
		Log: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
}

// origins are the pinned ones for these addresses.
func (w *world) origins(urls ...string) []protocol.Origin {
	w.t.Helper()
	var all []protocol.Origin
	for _, url := range urls {
		origin, err := protocol.ParseOwnerOrigin(url)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, origin)
	}
	return all
}

func (w *world) lease() {
	w.ports = &ports{saved: map[string][]byte{}}
	w.run = jobs.Run{
		Job: protocol.Job{
			Lease: protocol.Lease{
				Assignment: "43725ad0-077e-46c3-a4f0-b991a459d879", ID: "d128dc79-35da-483c-98b1-4c25ea91cd39", JobID: 7,
				Token: leaseToken, Ends: time.Now().Add(30 * time.Minute),
			},
			Repository: protocol.Repository{Owner: "acme", Name: "shop", FullName: "acme/shop", TargetBranch: "main"},
			Work: protocol.Work{
				Title: "Make add add", Description: "add(2, 3) must be 5",
				AcceptanceCriteria: []protocol.Statement{{Text: "add adds"}},
			},
			Policy:  protocol.TaskPolicy{RequiredCommands: []string{"python -m unittest discover -s tests"}},
			Minutes: 20, Repairs: 1,
			Delivery: protocol.Delivery{Branch: "veyra/job-7-make-add-add-1", PullRequestTitle: "Make add add", PullRequestBodyPrefix: "Funded by Veyra."},
		},
		Configuration: protocol.Configuration{Agent: protocol.AgentConfiguration{AllowNewDependencies: true}},
		Accepted:      time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC), Started: time.Now(), Deadline: time.Now().Add(30 * time.Minute),
		Dir: w.t.TempDir(), Credentials: w.ports, Checkpoints: w.ports, Progress: w.ports, Ledger: w.ports,
	}
}

func (w *world) execute() jobs.Outcome {
	w.t.Helper()
	return w.executeIn(w.t.Context())
}

// executeIn executes to the last sandbox's end.
func (w *world) executeIn(ctx context.Context) jobs.Outcome {
	outcome := jobs.NewWorker(w.config).Execute(ctx, w.run)
	outcome.Finish()
	return outcome
}

// succeed executes and wants success.
func (w *world) succeed() protocol.Evidence {
	w.t.Helper()
	outcome := w.execute()
	if outcome.Failure != "" || outcome.Abandoned != "" {
		w.t.Fatalf("failed: %s %s\nsummary: %v\nlog:\n%s", outcome.Failure, outcome.Abandoned, outcome.Evidence["summary"], w.record("log"))
	}
	return outcome.Evidence
}

// fail executes and wants one failure, with nothing pushed unless the failure
// comes after the push.
func (w *world) fail(want protocol.Code) protocol.Evidence {
	w.t.Helper()
	outcome := w.execute()
	if outcome.Failure != want {
		w.t.Fatalf("failure %q %q, want %q\nsummary: %v\nlog:\n%s", outcome.Failure, outcome.Abandoned, want, outcome.Evidence["summary"], w.record("log"))
	}
	if got := outcome.Evidence[protocol.KeyFailureMessage]; got != protocol.Lookup(want).Sentence {
		w.t.Errorf("failure message %q is not the table's sentence", got)
	}
	return outcome.Evidence
}

func (w *world) record(name string) string {
	text, err := os.ReadFile(filepath.Join(w.run.Dir, name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// pushed tells whether the leased branch exists.
func (w *world) pushed() bool {
	_, err := w.git.Git("acme", "shop", "rev-parse", "--verify", "-q", "refs/heads/"+w.run.Job.Delivery.Branch)
	return err == nil
}

func (w *world) show(path string) string {
	w.t.Helper()
	text, err := w.git.Git("acme", "shop", "show", w.run.Job.Delivery.Branch+":"+path)
	if err != nil {
		w.t.Fatalf("reading %s of the pushed branch: %v", path, err)
	}
	return text
}

// ports is the supervisor's side of a run.
type ports struct {
	mu      sync.Mutex
	saved   map[string][]byte
	phases  []protocol.Phase
	in, out int64
	refuse  error
	onSave  func(name string)
	onPhase func(message string)
	asked   int
}

func (p *ports) Credential(context.Context, bool) (protocol.RepoToken, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	return repoToken, p.refuse
}

func (p *ports) Save(_ context.Context, name string, value []byte) error {
	p.mu.Lock()
	p.saved[name] = value
	hook := p.onSave
	p.mu.Unlock()
	if hook != nil {
		hook(name)
	}
	return nil
}

func (p *ports) Load(name string) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	value, found := p.saved[name]
	return value, found
}

func (p *ports) Phase(phase protocol.Phase, message string) {
	p.mu.Lock()
	p.phases = append(p.phases, phase)
	hook := p.onPhase
	p.mu.Unlock()
	if hook != nil {
		hook(message)
	}
}

func (p *ports) Spend(_ context.Context, in, out int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in, p.out = p.in+in, p.out+out
	return nil
}

func (p *ports) Spent() (int64, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in, p.out
}

// with returns the project with some files replaced or added.
func with(more map[string]githosttest.File) map[string]githosttest.File {
	files := project()
	maps.Copy(files, more)
	return files
}

type syncBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
