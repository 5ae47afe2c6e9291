package controlplanetest

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Endpoint is the last part of a path under /api/v1/agent-runtime/, for example
// "job/result".
type Endpoint string

// The endpoints that exist.
const (
	Heartbeat     Endpoint = "heartbeat"
	Configuration Endpoint = "configuration"
	Qualification Endpoint = "qualification/submit"
	JobCredential Endpoint = "job/credential"
	JobResult     Endpoint = "job/result"

	VerificationCredential Endpoint = "verification/credential"
	VerificationResult     Endpoint = "verification/result"
)

// Prefix is the fixed path that every endpoint lies below.
const Prefix = "/api/v1/agent-runtime/"

// Options tune a Plane. The zero value is a control plane on loopback whose
// agents need to qualify.
type Options struct {
	// Origin is what task URLs begin with; Start sets it when it is empty.
	Origin string
	// GitHub answers for pull requests; nil: every result is taken at its word.
	GitHub GitHub
	// RepoToken issues a repository token and tells when it ends; nil: random
	// ones, the same for 50 of their 60 minutes. write is always true here.
	RepoToken func(repository string) (token string, expires time.Time)
	// ReadToken issues a read-only token for a verification; nil: random ones,
	// each another.
	ReadToken func(repository string) (token string, expires time.Time)
	// Verify makes a verification of every accepted success.
	Verify bool
	// Qualified lets agents start without a qualification.
	Qualified bool
	// Attempts is how often a job is given out in all; 0: four.
	Attempts int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// BeforeStore is called between a claim's answer and its being stored.
	BeforeStore func()
	// Transport carries the calls of a pairing, for tests without a network;
	// nil: the network.
	Transport http.RoundTripper
	// Roots check runtimes that are not on loopback; nil: the system's.
	Roots *x509.CertPool
	// Log gets one line a request; nil: none.
	Log *slog.Logger
}

// Plane is the control plane. All its methods may be called at once.
type Plane struct {
	opts Options
	key  []byte // signs lease tokens

	server *http.Server
	served chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever anything changes
	origin  string
	agents  map[string]*agent
	order   []*agent
	jobs    []*job
	nextJob int64
	reviews []*verification
	tokens  map[string]repoToken // by repository
	faults  map[Endpoint][]plannedFault
	calls   map[Endpoint]int
	last    map[Endpoint]*answer
	counts  Counts
}

type repoToken struct {
	text            string
	issued, expires time.Time
}

// New makes a control plane. It is an http.Handler for Prefix; Start serves it
// on a loopback port of its own.
func New(opts Options) *Plane {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Attempts == 0 {
		opts.Attempts = 4
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	p := &Plane{
		opts: opts, origin: opts.Origin, key: make([]byte, 32),
		changed: make(chan struct{}), agents: map[string]*agent{},
		tokens: map[string]repoToken{}, faults: map[Endpoint][]plannedFault{},
		calls: map[Endpoint]int{}, last: map[Endpoint]*answer{}, nextJob: 1,
	}
	_, _ = rand.Read(p.key)
	return p
}

// Start serves the plane over plain HTTP on a loopback port until Close, and
// returns its origin.
func (p *Plane) Start() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	if p.origin == "" {
		p.origin = "http://" + listener.Addr().String()
	}
	origin := p.origin
	p.mu.Unlock()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	p.served = make(chan struct{})
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener)
	}()
	return origin, nil
}

// Close ends what Start began and cuts open connections. Without Start it does
// nothing.
func (p *Plane) Close() {
	if p.server == nil {
		return
	}
	_ = p.server.Close()
	<-p.served
}

// Origin is what task URLs begin with.
func (p *Plane) Origin() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.origin
}

// url is what a task names for an endpoint. p.mu is held.
func (p *Plane) url(e Endpoint) string { return p.origin + Prefix + string(e) + "/" }

// notify wakes every Wait. p.mu is held.
func (p *Plane) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Wait returns the first View for which cond holds, or ctx's error with the
// View at that time. cond is called under no lock.
func (p *Plane) Wait(ctx context.Context, cond func(View) bool) (View, error) {
	for {
		p.mu.Lock()
		view, changed := p.view(), p.changed
		p.mu.Unlock()
		if cond(view) {
			return view, nil
		}
		select {
		case <-ctx.Done():
			return view, ctx.Err()
		case <-changed:
		}
	}
}

// View returns what the plane knows now.
func (p *Plane) View() View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view()
}
