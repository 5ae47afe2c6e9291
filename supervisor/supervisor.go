package supervisor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Config is what the owner chose.
type Config struct {
	Role protocol.Role
	// Version of this program, Provider and Model as they are shown; Model may
	// be empty, which a Check should name.
	Version, Provider, Model string
	// Policy is the name of the owner's policy, for evidence of what was refused
	// before any work.
	Policy string
	// Accepted are the advisories about runtimes that the owner has accepted, a
	// sentence each, for status.
	Accepted []string
	// Heartbeat is the pause between beats; it is kept between the floor of 2 s
	// and 8 s, so that one lost beat leaves no gap over 10 s.
	Heartbeat time.Duration
	// JobsDir is STATE/jobs, SigningLog STATE/signing.log.
	JobsDir, SigningLog string
	// Git are the pinned origins of the repositories; a task whose clone_url lies
	// elsewhere is invalid. Without any nothing is compared.
	Git []protocol.Origin
	// OwnerUID may ask over the control socket besides root and ourselves.
	OwnerUID int
	// BehindProxy says that TLS ends before the public listener.
	BehindProxy bool
	// Roots replaces the system's certificates; nil: the system's.
	Roots *x509.CertPool
}

// Parts are what a Supervisor is made of. Listeners may be nil: then that part
// is not served. Public is wrapped in TLS by the caller where TLS ends here.
type Parts struct {
	Pairing   *Pairing
	Signer    Signer
	Journal   *journal.Journal
	Worker    Worker
	Qualifier Qualifier
	// Verifier is needed by the role VERIFIER only, Worker and Qualifier by the
	// other.
	Verifier Verifier
	Checks   []Check
	Secrets  *redact.Set
	Metrics  *telemetry.Metrics
	Log      *slog.Logger

	Public, Admin, Control net.Listener
}

// Supervisor is the daemon. New wires it, Run runs it once.
type Supervisor struct {
	config Config
	parts  Parts
	log    *slog.Logger
	// transport replaces the network in tests; nil: the network.
	transport http.RoundTripper

	heart    *heart
	watch    *watch
	settings *settings
	board    *board
	clock    *clock
	leases   *leases
	outbox   *outbox
	mail     mailbox[delivery]

	// client belongs to the current binding; the heart replaces it.
	client  atomic.Pointer[controlplane.Client]
	running atomic.Pointer[run]
	noted   atomic.Pointer[string]
	// lastReceipt is what the last qualification came to.
	lastReceipt atomic.Pointer[protocol.QualificationReply]

	draining, cancelling atomic.Bool
	// idle is closed by the dispatcher when a drain has nothing left to do.
	idle chan struct{}
	// scribe carries durable writes off the heart's goroutine.
	scribe chan func()
	// hard is the parent of all leases; it ends when Run stops.
	hard context.Context
	runs sync.WaitGroup
}

// New wires a supervisor. It does no I/O; the error names a missing part.
func New(config Config, parts Parts) (*Supervisor, error) {
	if parts.Pairing == nil || parts.Signer == nil || parts.Journal == nil || parts.Log == nil ||
		parts.Secrets == nil || parts.Metrics == nil {
		return nil, errors.New("a supervisor needs pairing, signer, journal, secrets, metrics and log")
	}
	switch config.Role {
	case protocol.RoleWorker, protocol.RoleVerifier:
	default:
		return nil, fmt.Errorf("a supervisor's role is %q or %q", protocol.RoleWorker, protocol.RoleVerifier)
	}
	if config.Role == protocol.RoleWorker && (parts.Worker == nil || parts.Qualifier == nil) {
		return nil, errors.New("a worker needs a worker and a qualifier")
	}
	if config.Role == protocol.RoleVerifier && parts.Verifier == nil {
		return nil, errors.New("a verifier needs a verifier")
	}
	config.Provider = cut(config.Provider, protocol.MaxProvider)
	config.Model = cut(config.Model, protocol.MaxModel)
	config.Version = cut(config.Version, protocol.MaxRuntimeVersion)
	s := &Supervisor{
		config: config, parts: parts, log: parts.Log, board: &board{}, clock: newClock(parts.Log),
		leases: newLeases(), mail: newMailbox[delivery](), idle: make(chan struct{}),
		scribe: make(chan func(), 1), hard: context.Background(),
	}
	parts.Pairing.tellSecrets(s.keepSecret)
	s.outbox = newOutbox(s)
	s.heart = s.newHeart()
	// The control plane should know as soon as everybody else: what is assigned
	// meanwhile could only wait.
	s.watch = newWatch(parts.Checks, s.heart.urge)
	s.settings = &settings{
		role: config.Role, pairing: parts.Pairing, log: parts.Log, client: s.configurer, changed: s.heart.urge,
	}
	parts.Metrics.Follow(s.present)
	return s, nil
}

func (s *Supervisor) configurer() configurer {
	if c := s.client.Load(); c != nil {
		return c
	}
	return nil
}

func (s *Supervisor) newHeart() *heart {
	m := s.parts.Metrics
	interval := s.config.Heartbeat
	if interval == 0 {
		interval = protocol.HeartbeatDefault
	}
	return &heart{
		interval:   min(max(interval, protocol.HeartbeatFloor), 8*time.Second),
		afterClaim: afterClaim, untilFirst: untilFirst,
		pairing: s.parts.Pairing, dial: s.dial, compose: s.compose, clock: s.clock, log: s.log,
		woken:   s.parts.Pairing.watch(),
		urged:   make(chan struct{}, 1),
		deliver: s.mail.put,
		later: func(write func()) bool {
			select {
			case s.scribe <- write:
				return true
			default:
				return false
			}
		},
		note: heartNotes{
			beat: m.Beat,
			gap:  func(d time.Duration) { m.BeatGap.Observe(d.Seconds()) },
			stored: func(at time.Time) {
				m.LastBeat.Set(float64(at.UnixMilli()) / 1000)
			},
			offset: func(d time.Duration) { m.ClockOffset.Set(d.Seconds()) },
		},
	}
}

// dial makes the client of a new binding.
func (s *Supervisor) dial(b *binding) beater {
	s.keepSecret(string(b.Credential))
	next := controlplane.New(controlplane.Config{
		Origin: b.Origin, AgentID: b.AgentID, Credential: b.Credential, Version: s.config.Version,
		Roots: s.config.Roots, Transport: s.transport, Log: s.log,
		Observe: func(e controlplane.Endpoint, code int, took time.Duration) {
			s.parts.Metrics.ControlPlane(string(e), code, took)
		},
	})
	if old := s.client.Swap(next); old != nil {
		old.Close()
	}
	return next
}

// compose makes the body of a beat from snapshots; it waits for nothing.
func (s *Supervisor) compose(now time.Time) protocol.HeartbeatRequest {
	ready := s.readiness(now)
	job, review := s.board.read(), s.board.readReview()
	job.JobMessage = s.parts.Secrets.String(job.JobMessage)
	review.VerificationMessage = s.parts.Secrets.String(review.VerificationMessage)
	beat := protocol.HeartbeatRequest{
		Health: protocol.Healthy, ProviderReady: ready.Provider == "",
		Provider:       cut(orUnset(s.config.Provider), protocol.MaxProvider),
		Model:          cut(orUnset(s.config.Model), protocol.MaxModel),
		RuntimeVersion: cut(s.config.Version, protocol.MaxRuntimeVersion),
		Message:        oneLine(s.parts.Secrets.String(ready.Sentence), protocol.MaxProgressMessage),
		JobProgress:    job, VerificationProgress: review,
	}
	if b := s.parts.Pairing.current.Load(); b != nil {
		beat.AgentID = b.AgentID
	}
	if !ready.ok() {
		beat.Health = protocol.Unhealthy
	}
	return beat
}

// Run works until ctx ends or a drain is done. ErrState: what is on disk doesn't
// fit together, nothing was begun. Run may be called once.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.hard = ctx
	if b := s.parts.Pairing.current.Load(); b != nil {
		s.heart.meet(b) // sealed results are sent at once, before any beat
	}
	resume, err := s.recover(ctx)
	switch {
	case ctx.Err() != nil:
		return nil // stopped before it began; nothing was changed
	case err != nil:
		return err
	}
	var loops sync.WaitGroup
	failed := make(chan error, 3)
	for _, loop := range s.loops(resume) {
		loops.Go(func() { loop(ctx) })
	}
	for _, serve := range s.servers() {
		loops.Go(func() {
			if err := serve(ctx); err != nil {
				failed <- err
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-s.idle:
		s.log.Info("drained: nothing is left to do")
	case err = <-failed:
		err = fmt.Errorf("serving a listener: %w", err)
	}
	stop()
	loops.Wait()
	s.runs.Wait()
	s.outbox.waiting.Wait()
	if c := s.client.Load(); c != nil {
		c.Close()
	}
	return err
}

// loops are the goroutines of Run.
func (s *Supervisor) loops(resume []resumable) []func(context.Context) {
	dispatcher := newDispatcher(s, resume)
	woken := s.parts.Pairing.watch()
	return []func(context.Context){
		s.heart.run, s.watch.run, dispatcher.run, s.write,
		func(ctx context.Context) { s.settings.run(ctx, woken) },
	}
}

// write makes the heart's durable writes.
func (s *Supervisor) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case write := <-s.scribe:
			write()
		}
	}
}

// servers are the listeners of Run.
func (s *Supervisor) servers() []func(context.Context) error {
	var all []func(context.Context) error
	if l := s.parts.Public; l != nil {
		intro := Introduction{
			Role: s.config.Role, Version: s.config.Version, Provider: s.config.Provider, Model: s.config.Model,
			Provide: func() (bool, string) {
				why := s.parts.Secrets.String(s.watch.now(time.Now()).Provider)
				return why == "", why
			},
		}
		public := NewPublic(s.parts.Pairing, s.parts.Signer, intro, s.config.BehindProxy, s.log)
		all = append(all, func(ctx context.Context) error {
			return serveUntil(ctx, PublicServer(public, s.log), limitCallers(l, s.config.BehindProxy))
		})
	}
	if l := s.parts.Admin; l != nil {
		admin := NewAdmin(l.Addr().String(), s.parts.Metrics.Handler(), s.notReady)
		all = append(all, func(ctx context.Context) error {
			server := &http.Server{Handler: admin, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
			return serveUntil(ctx, server, limitConnections(l, maxAdminConnections))
		})
	}
	if l := s.parts.Control; l != nil {
		control := newControl(s, s.config.OwnerUID, s.log)
		all = append(all, func(ctx context.Context) error { return control.serve(ctx, l) })
	}
	return all
}

// Drain takes no new work; Run returns once what runs is finished and
// delivered. Beats go on meanwhile. A second call does nothing.
func (s *Supervisor) Drain() {
	s.draining.Store(true)
	s.heart.urge()
}

// Cancel abandons what runs and makes Run return; sealed results stay in the
// journal for the next start. A second call does nothing.
func (s *Supervisor) Cancel() {
	s.draining.Store(true)
	s.cancelling.Store(true)
	if r := s.running.Load(); r != nil {
		r.lease.lose(errCancelled)
	}
}
