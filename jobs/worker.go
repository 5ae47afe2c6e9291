package jobs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Config is what every job of this host shares.
type Config struct {
	Backend sandbox.Backend
	// Report is what the backend's probe measured; evidence names it.
	Report sandbox.Report
	// Proof returns the digest of the host's proof while it holds, else ""; may
	// be nil.
	Proof func() string
	// Image returns the image of a toolchain, or false when there is none.
	Image func(policies.Toolchain) (images.Digest, bool)
	// Policy is the owner's, scaled to what the host has.
	Policy policies.Policy
	// GitOrigins are the pinned addresses of repository hosts: a job dials the one
	// that its clone_url names. API is that of their REST interface.
	GitOrigins []protocol.Origin
	API        string
	Engine     coding.Engine
	Single     *coding.Single
	// Provider, Model and Version are what evidence states.
	Provider, Model, Version string
	Secrets                  *redact.Set
	Log                      *slog.Logger
	// Observe is told how long each phase took; may be nil.
	Observe func(protocol.Phase, time.Duration)
}

// Worker does paid jobs. Its Execute may run once at a time for each run.
type Worker struct{ cfg Config }

// NewWorker makes a worker of a checked configuration.
func NewWorker(cfg Config) *Worker { return &Worker{cfg: cfg} }

// Execute does a paid job from its lease to the evidence of its end. It always
// has an outcome: the first failure is kept. When an earlier execution of the
// same run had got as far as publishing, it goes on there, without a sandbox
// and without the model. The caller finishes the outcome once the evidence is on
// its way: taking the last sandboxes down is no reason to hold it up.
func (w *Worker) Execute(ctx context.Context, run Run) (outcome Outcome) {
	j := newJob(w.cfg, run)
	defer func() {
		if outcome.rest == nil {
			j.close() // a panic: there is no outcome to finish
		}
	}()
	if err := j.work(ctx); err != nil {
		outcome = j.failed(ctx, j.awaitRestart(ctx, err))
	} else {
		outcome = j.succeeded()
	}
	outcome.rest = sync.OnceFunc(j.close)
	return outcome
}

// work is the story. Each step takes the result of the one before it.
func (j *job) work(ctx context.Context) error {
	if intent, found, err := j.loadIntent(); found || err != nil {
		return j.resume(ctx, intent, err)
	}
	rules, err := j.narrow()
	if err != nil {
		return err
	}
	room, err := j.open(ctx, rules)
	if err != nil {
		return err
	}
	repository, err := j.fetchRepository(ctx, room)
	if err != nil {
		return err
	}
	ready, err := j.setUp(ctx, repository)
	if err != nil {
		return err
	}
	base, err := j.baseline(ctx, ready)
	if err != nil {
		return err
	}
	tested, err := j.changeUntilTested(ctx, base)
	if err != nil {
		return err
	}
	intent, err := j.intend(ctx, tested)
	if err != nil {
		return err
	}
	j.leaveRoom()
	return j.publish(ctx, intent)
}

// resume goes on from a journaled intent.
func (j *job) resume(ctx context.Context, intent intent, err error) error {
	if err != nil {
		return err
	}
	j.log.Info("going on from the journaled intent", "commit", intent.Commit)
	return j.publish(ctx, intent)
}
