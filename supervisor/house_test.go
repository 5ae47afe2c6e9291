package supervisor_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == signer.Subcommand {
		os.Exit(signer.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// patience bounds every wait of these tests; none of them waits for it to pass.
const patience = 2 * time.Minute

// house is a host with its state and a control plane of its own. Boot and crash
// may be called again and again. Its tests are not parallel to others: a signer
// that is just being started holds a copy of every descriptor for a moment, and
// with it the lock of another test's journal.
type house struct {
	t     *testing.T
	plane *controlplanetest.Plane
	state string
	role  protocol.Role
	// checks and workers are used from the next boot on.
	checks    []supervisor.Check
	worker    workerFunc
	qualifier qualifierFunc
	verifier  verifierFunc

	// What follows lives from boot to crash.
	sup     *supervisor.Supervisor
	pairing *supervisor.Pairing
	journal *journal.Journal
	signer  signing
	public  string
	stop    context.CancelFunc
	ended   chan error
	control string
	secrets *redact.Set
}

// signing is the real signer, or its stand-in in a build with cgo (-race).
type signing interface {
	supervisor.Signer
	RuntimeID() protocol.RuntimeID
	PublicKey() ed25519.PublicKey
	Close() error
}

type workerFunc func(ctx context.Context, run jobs.Run) jobs.Outcome

func (f workerFunc) Execute(ctx context.Context, run jobs.Run) jobs.Outcome { return f(ctx, run) }

type qualifierFunc func(ctx context.Context, run jobs.QualificationRun) jobs.QualificationOutcome

func (f qualifierFunc) Execute(ctx context.Context, run jobs.QualificationRun) jobs.QualificationOutcome {
	return f(ctx, run)
}

func newHouse(t *testing.T, opts controlplanetest.Options) *house {
	t.Helper()
	h := &house{
		t: t, plane: controlplanetest.New(opts), state: t.TempDir(), role: protocol.RoleWorker,
		worker: success, qualifier: pass,
	}
	if _, err := h.plane.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.plane.Close)
	for _, dir := range []string{"identity", "identity/binding", "jobs"} {
		if err := os.MkdirAll(filepath.Join(h.state, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// boot starts the daemon's centre on the house's state.
func (h *house) boot() {
	h.t.Helper()
	if err := h.tryBoot(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) tryBoot() error {
	h.t.Helper()
	h.signer = startSigner(h.t, h.state)
	if err := h.wire(); err != nil {
		return err
	}
	h.run()
	return nil
}

// rebuild wires everything beside a signer that is there and runs it in the
// foreground, for starts that fail.
func (h *house) rebuild() error {
	if err := h.wire(); err != nil {
		return err
	}
	defer h.journal.Close()
	return h.sup.Run(h.context())
}

func (h *house) wire() (err error) {
	h.t.Helper()
	if h.journal, err = journal.Open(h.state); err != nil {
		return err
	}
	listener := listen(h.t, "tcp", "127.0.0.1:0")
	h.public = listener.Addr().String()
	if err := h.openPairing(); err != nil {
		return err
	}
	// Unix socket paths are short.
	dir, err := os.MkdirTemp("", "veyra")
	if err != nil {
		return err
	}
	h.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.control = filepath.Join(dir, "s")
	h.secrets = redact.New()
	h.sup, err = supervisor.New(supervisor.Config{
		Role: h.role, Version: "1.2.3", Provider: "scripted", Model: "model-1",
		JobsDir: filepath.Join(h.state, "jobs"), SigningLog: h.signingLog(), OwnerUID: os.Getuid(),
	}, supervisor.Parts{
		Pairing: h.pairing, Signer: h.signer, Journal: h.journal, Worker: h.worker, Qualifier: h.qualifier, Verifier: h.verifier,
		Checks: h.checks, Secrets: h.secrets, Metrics: telemetry.New("test"), Log: logger(h.t),
		Public: listener, Control: listen(h.t, "unix", h.control),
	})
	if err != nil {
		return err
	}
	supervisor.Hurry(h.sup)
	return nil
}

func (h *house) openPairing() (err error) {
	origin, err := protocol.ParseOrigin(h.plane.Origin())
	if err != nil {
		return err
	}
	h.pairing, err = supervisor.OpenPairing(supervisor.PairingConfig{
		Dir: filepath.Join(h.state, "identity", "binding"), RuntimeID: h.signer.RuntimeID(),
		PublicKey:  base64.RawURLEncoding.EncodeToString(h.signer.PublicKey()),
		PublicHost: h.public, LinkTTL: time.Minute, Origins: []protocol.Origin{origin}, Log: logger(h.t),
	})
	return err
}

func (h *house) signingLog() string {
	if confine.BuiltWithCgo() {
		return ""
	}
	return filepath.Join(h.state, "signing.log")
}

func (h *house) run() {
	ctx, stop := context.WithCancel(context.Background())
	h.stop, h.ended = stop, make(chan error, 1)
	sup, ended := h.sup, h.ended
	go func() { ended <- sup.Run(ctx) }()
	h.t.Cleanup(h.crash)
}

// crash ends everything at once, as far as a process can do that to itself.
// Without a boot it does nothing.
func (h *house) crash() {
	if h.stop == nil {
		return
	}
	h.stop()
	h.stop = nil
	if err := <-h.ended; err != nil {
		h.t.Errorf("Run: %v", err)
	}
	if err := h.journal.Close(); err != nil {
		h.t.Error(err)
	}
	if err := h.signer.Close(); err != nil {
		h.t.Error(err)
	}
}

func (h *house) reboot() {
	h.t.Helper()
	h.crash()
	h.boot()
}

func (h *house) link() string {
	h.t.Helper()
	link, err := h.sup.Link(false)
	if err != nil {
		h.t.Fatal(err)
	}
	return link
}

// pair introduces the house and returns its agent.
func (h *house) pair() string {
	h.t.Helper()
	id, err := h.plane.Pair(h.context(), h.link())
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

func (h *house) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// wait returns the first view of the plane that meets cond.
func (h *house) wait(what string, cond func(controlplanetest.View) bool) controlplanetest.View {
	h.t.Helper()
	view, err := h.plane.Wait(h.context(), cond)
	if err != nil {
		h.t.Fatalf("waiting until %s: %v\nplane: %+v\nhost: %+v", what, err, view, h.sup.Status())
	}
	return view
}

// until waits for something of the host itself; beats wake it.
func (h *house) until(what string, cond func(supervisor.Status) bool) supervisor.Status {
	h.t.Helper()
	var last supervisor.Status
	h.wait(what, func(controlplanetest.View) bool {
		last = h.sup.Status()
		return cond(last)
	})
	return last
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// logger writes to the test's log until the test ends.
func logger(t *testing.T) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", p)
	}
	return len(p), nil
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

func startSigner(t *testing.T, state string) signing {
	t.Helper()
	if confine.BuiltWithCgo() {
		return standIn(t, state)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	client, err := signer.Start(t.Context(), exe, signer.Config{
		StateDir: state, UID: confine.Stay, GID: confine.Stay, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inProcess signs typed statements in this process: the race detector needs cgo,
// with which the real signer refuses to run.
type inProcess struct {
	id  protocol.RuntimeID
	key ed25519.PrivateKey
}

func standIn(t *testing.T, state string) inProcess {
	t.Helper()
	path := filepath.Join(state, "seed")
	seed, err := os.ReadFile(path)
	if err != nil {
		_, key, _ := ed25519.GenerateKey(nil)
		seed = key.Seed()
		if err := os.WriteFile(path, seed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return inProcess{"runtime-" + someID, ed25519.NewKeyFromSeed(seed)}
}

func (s inProcess) RuntimeID() protocol.RuntimeID { return s.id }
func (s inProcess) PublicKey() ed25519.PublicKey  { return s.key.Public().(ed25519.PublicKey) }
func (s inProcess) Close() error                  { return nil }

func (s inProcess) Sign(_ context.Context, statement signer.Statement) (signer.Signature, error) {
	var text string
	var err error
	switch v := statement.(type) {
	case signer.Connect:
		text, err = protocol.ConnectStatement(v.Challenge, v.RuntimeID)
	case signer.Qualification:
		text, err = protocol.QualificationStatement(v.ID, v.FilesHash, v.Code)
	case signer.JobResult:
		text, err = protocol.JobResultStatement(v.Assignment, v.Lease, v.EvidenceHash)
	case signer.Verifier:
		text, err = protocol.VerifierStatement(string(v.ID), v.Lease, v.ReportHash)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", signer.ErrRefused, err)
	}
	return signer.Signature(base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, []byte(text)))), nil
}

const (
	someID    = "43725ad0-077e-46c3-a4f0-b991a459d879"
	someLease = "d128dc79-35da-483c-98b1-4c25ea91cd39"
)

// pass answers the default qualification well.
func pass(_ context.Context, run jobs.QualificationRun) jobs.QualificationOutcome {
	return jobs.QualificationOutcome{
		Files:  []protocol.File{{Path: run.Qualification.Target, Content: "VEYRA_AGENT_READY_V1\n"}},
		Output: "OK\n",
	}
}

// success is a worker that has changed one file.
func success(ctx context.Context, run jobs.Run) jobs.Outcome {
	run.Progress.Phase(protocol.PhasePushing, "Pushing")
	if _, err := run.Credentials.Credential(ctx, true); err != nil {
		return jobs.Outcome{Abandoned: string(protocol.CodeLeaseLost)}
	}
	return jobs.Outcome{Evidence: evidence(run)}
}

func evidence(run jobs.Run) protocol.Evidence {
	sha := "0123456789abcdef0123456789abcdef01234567"
	return protocol.Evidence{
		"outcome": "SUCCEEDED", "assignment_id": string(run.Job.Assignment), "lease_id": string(run.Job.ID),
		"job_id": run.Job.JobID, "branch": run.Job.Delivery.Branch, "base_branch": run.Job.Repository.TargetBranch,
		"base_commit_sha": sha, "commit_sha": sha, "pull_request_number": 1,
		"pull_request_url": "https://github.example/o/n/pull/1", "changed_files": []string{"a.py"},
		"environment_setup_command": "", "environment_setup_output": "",
		"baseline_test_command": "pytest", "baseline_test_return_code": 1, "baseline_test_output": "$ pytest\n1 failed\n",
		"test_command": "pytest", "test_return_code": 0, "test_output": "$ pytest\nok \u2028 <&>\x01\n",
		"validation_toolchain": "python", "validation_command_source": "funded_policy",
		"validation_commands": []string{"pytest"}, "repair_attempts": 0, "model_output_repair_attempts": 0,
		"provider": "scripted", "model": "model-1", "runtime_version": "1.2.3", "summary": "done",
		"started_at": "2026-11-29T10:00:00Z", "completed_at": "2026-11-29T10:00:01Z",
	}
}
