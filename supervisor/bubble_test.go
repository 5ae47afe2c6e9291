package supervisor_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// faultySigner is the stand-in, which may be made to fail.
type faultySigner struct {
	inProcess
	err error
}

func (s *faultySigner) Sign(ctx context.Context, statement signer.Statement) (signer.Signature, error) {
	if s.err != nil {
		return "", s.err
	}
	return s.inProcess.Sign(ctx, statement)
}

// lab is a house in a bubble: the whole supervisor and the whole control plane
// under one clock that only moves when nobody has anything to do. The journal is
// real; the network is a function call.
type lab struct {
	*house
	opts   controlplanetest.Options
	signer *faultySigner
	door   *door
	way    http.RoundTripper
	beats  time.Duration
	// metrics are the present supervisor's.
	metrics *telemetry.Metrics
}

// inLab runs a test in a bubble with a plane made of opts.
func inLab(t *testing.T, opts controlplanetest.Options, test func(l *lab)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{opts: opts, house: &house{
			t: t, state: t.TempDir(), role: protocol.RoleWorker, worker: success, qualifier: pass,
		}}
		chmod(t, l.state, 0o700)
		l.opts.Origin = origin
		l.opts.Transport = controlplanetest.Direct{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = stranger
			l.door.public.ServeHTTP(w, r)
		})}
		l.plane = controlplanetest.New(l.opts)
		l.way = controlplanetest.Direct{Handler: l.plane}
		l.door = newDoor(t)
		l.signer = &faultySigner{inProcess: inProcess{"runtime-" + someID, l.door.key}}
		l.start()
		defer l.crash()
		test(l)
	})
}

// start boots the supervisor.
func (l *lab) start() {
	l.t.Helper()
	var err error
	if l.journal, err = journal.Open(l.state); err != nil {
		l.t.Fatal(err)
	}
	l.door.open()
	l.secrets = redact.New()
	git, err := protocol.ParseOwnerOrigin(origin)
	if err != nil {
		l.t.Fatal(err)
	}
	l.metrics = telemetry.New("test")
	l.sup, err = supervisor.New(supervisor.Config{
		Git:  []protocol.Origin{git},
		Role: l.role, Version: "1.2.3", Provider: "scripted", Model: "model-1",
		JobsDir: l.state + "/jobs", Heartbeat: l.beats,
	}, supervisor.Parts{
		Pairing: l.door.pairing, Signer: l.signer, Journal: l.journal, Worker: l.worker, Qualifier: l.qualifier, Verifier: l.verifier,
		Checks: l.checks, Secrets: l.secrets, Metrics: l.metrics, Log: logger(l.t),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	supervisor.Reach(l.sup, l.way)
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.ended = stop, make(chan error, 1)
	sup, ended := l.sup, l.ended
	go func() { ended <- sup.Run(ctx) }()
}

// crash ends the supervisor; what it was doing is left where it is.
func (l *lab) crash() {
	if l.stop == nil {
		return
	}
	l.stop()
	l.stop = nil
	if err := <-l.ended; err != nil {
		l.t.Errorf("Run: %v", err)
	}
	if err := l.journal.Close(); err != nil {
		l.t.Error(err)
	}
}

func (l *lab) restart() {
	l.t.Helper()
	l.crash()
	l.start()
}

// pair introduces the lab and waits until it is active.
func (l *lab) pair() string {
	l.t.Helper()
	id := l.introduce("")
	l.wait("the agent is active", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
	l.pass(1100 * time.Millisecond)
	if s := l.sup.Status(); s.Pairing != supervisor.Paired {
		l.t.Fatalf("not paired: %+v", s)
	}
	return id
}

func (l *lab) introduce(agent string) string {
	l.t.Helper()
	id, err := l.tryIntroduce(agent)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

func (l *lab) tryIntroduce(agent string) (string, error) {
	l.t.Helper()
	link, err := l.sup.Link(false)
	if err != nil {
		return "", err
	}
	return l.plane.PairWith(context.Background(), link, controlplanetest.PairOptions{AgentID: agent})
}

// wait lets time pass until the plane's view meets cond.
func (l *lab) wait(what string, cond func(controlplanetest.View) bool) controlplanetest.View {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Hour)
	defer cancel()
	view, err := l.plane.Wait(ctx, cond)
	if err != nil {
		l.t.Fatalf("waiting until %s: %v\nplane: %+v\nhost: %+v", what, err, view, l.sup.Status())
	}
	return view
}

// pass lets time pass.
func (l *lab) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// sentence is what a Check says, changed while it is asked.
type sentence struct{ text atomic.Pointer[string] }

func newSentence(text string) *sentence {
	s := &sentence{}
	s.set(text)
	return s
}

func (s *sentence) set(text string) { s.text.Store(&text) }
func (s *sentence) say() string     { return *s.text.Load() }
