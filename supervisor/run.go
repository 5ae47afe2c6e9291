package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Worker does paid jobs; jobs.Worker is the real one.
type Worker interface {
	Execute(ctx context.Context, run jobs.Run) jobs.Outcome
}

// Qualifier does qualifications; jobs.Qualifier is the real one.
type Qualifier interface {
	Execute(ctx context.Context, run jobs.QualificationRun) jobs.QualificationOutcome
}

// qualificationPatience is how long a qualification is tried here before giving
// up, which costs one of two attempts: the lease moves with every beat, so only
// the owner's patience ends it.
const qualificationPatience = 2 * time.Hour

// run is one execution of a task, in a goroutine of its own, from acceptance to
// seal.
type run struct {
	key     runKey
	jobID   int64
	lease   *lease
	started time.Time
	log     *slog.Logger
	phase   atomic.Pointer[string] // a Phase or VerificationPhase
	done    chan struct{}
}

func (s *Supervisor) newRun(l *lease, jobID int64) *run {
	return &run{
		key: l.key, jobID: jobID, lease: l, started: time.Now(), done: make(chan struct{}),
		log: s.log.With("kind", l.key.Kind, "assignment", l.key.ID, "lease", l.key.Lease),
	}
}

// dir makes the run's directory, STATE/jobs/<assignment>/<lease>; both names
// are UUIDs or numbers by now.
func (s *Supervisor) dir(key runKey) (string, error) {
	dir := filepath.Join(s.config.JobsDir, key.ID, key.Lease)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the run's directory: %w", err)
	}
	return dir, nil
}

// executeJob works on a job and seals what came out. It returns when the
// result is in the outbox, abandoned, or left in the journal for a restart.
func (s *Supervisor) executeJob(ctx context.Context, r *run, job protocol.Job, accepted time.Time) {
	outcome := s.workOn(ctx, r, job, accepted)
	defer outcome.Finish()
	if r.lease.left() <= 0 {
		r.lease.lose(errLeaseOver) // whoever noticed it first
	}
	s.measure(r, string(outcome.Failure), outcome.Abandoned)
	if outcome.Abandoned != "" || r.lease.ctx.Err() != nil {
		s.abandon(r, reasonOf(r.lease.ctx, outcome.Abandoned), s.unsent(r, outcome.Evidence))
		return
	}
	s.sealJob(ctx, r, outcome.Evidence)
}

// unsent is the text of evidence that came too late to be sent, for the owner, or
// nil.
func (s *Supervisor) unsent(r *run, e protocol.Evidence) []byte {
	if e == nil || stopped(r.lease.ctx) {
		return nil
	}
	body, err := s.canonicalEvidence(e)
	if err != nil {
		r.log.Warn("the unsent evidence can't be kept", "error", err)
		return nil
	}
	return body
}

// workOn calls the worker; a panic of ours becomes INTERNAL_ERROR.
func (s *Supervisor) workOn(ctx context.Context, r *run, job protocol.Job, accepted time.Time) (outcome jobs.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a job panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			outcome = s.failedOutcome(r, protocol.CodeInternalError, "")
		}
	}()
	dir, err := s.dir(r.key)
	if err != nil {
		r.log.Error("the run can't begin", "error", err)
		return s.failedOutcome(r, protocol.CodeInternalError, "")
	}
	configuration, _ := s.settings.read()
	deadline := *r.lease.end.Load()
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errLeaseOver)
	defer cancel()
	return s.parts.Worker.Execute(ctx, jobs.Run{
		Job: job, Configuration: configuration, Accepted: accepted, Started: r.started,
		Deadline: deadline, Dir: dir,
		Credentials: s.jobCredentials(job.Repository, r.lease),
		Checkpoints: s.checkpoints(r), Progress: progress{s.board, r}, Ledger: openSpending(s.checkpoints(r)),
	})
}

func (s *Supervisor) checkpoints(r *run) checkpoints {
	return checkpoints{s.parts.Journal, r.key, r.log}
}

// keepSecret makes a secret one that no log, evidence or beat shows.
func (s *Supervisor) keepSecret(secret string) {
	// ErrShort is the only error: too short to be looked for.
	_ = s.parts.Secrets.Add(secret)
}

// executeQualification works on a qualification and seals what came out.
func (s *Supervisor) executeQualification(ctx context.Context, r *run, q protocol.Qualification) {
	outcome := s.qualify(ctx, r, q)
	s.measure(r, string(outcome.Failure), outcome.Abandoned)
	if outcome.Abandoned != "" || r.lease.ctx.Err() != nil {
		s.abandon(r, reasonOf(r.lease.ctx, outcome.Abandoned), nil)
		return
	}
	s.sealQualification(ctx, r, outcome)
}

func (s *Supervisor) qualify(ctx context.Context, r *run, q protocol.Qualification) (outcome jobs.QualificationOutcome) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a qualification panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			outcome = jobs.QualificationOutcome{Failure: protocol.CodeInternalError}
		}
	}()
	dir, err := s.dir(r.key)
	if err != nil {
		r.log.Error("the run can't begin", "error", err)
		return jobs.QualificationOutcome{Failure: protocol.CodeInternalError}
	}
	deadline := r.started.Add(qualificationPatience)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return s.parts.Qualifier.Execute(ctx, jobs.QualificationRun{
		Qualification: q, Started: r.started, Deadline: deadline, Dir: dir,
		Progress: progress{s.board, r}, Ledger: openSpending(s.checkpoints(r)),
	})
}

// reasonOf says why nothing is sent, in the words of the table of failures.
func reasonOf(ctx context.Context, said string) string {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errNewerLease):
		return string(protocol.CodeLeaseLost)
	case errors.Is(cause, errCancelled):
		return string(protocol.CodeCancelled)
	case errors.Is(cause, errLeaseOver):
		return string(protocol.CodeLeaseLost)
	case said != "":
		return said
	}
	return string(protocol.CodeCancelled)
}

// stopped tells whether a run's context ended because this process ends, and not
// because of something known about the lease.
func stopped(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != nil && !errors.Is(cause, errNewerLease) &&
		!errors.Is(cause, errCancelled) && !errors.Is(cause, errLeaseOver)
}

// abandon ends a run for which nothing is sent; unsent is what it found all the
// same, nil for nothing. A shutdown without a word is not an end: the run stays in
// the journal and goes on after the restart.
func (s *Supervisor) abandon(r *run, reason string, unsent []byte) {
	if stopped(r.lease.ctx) {
		r.log.Info("the run stays in the journal for the next start")
		return
	}
	r.log.Warn("the run is abandoned", "reason", reason)
	if err := s.storeEnd(r, reason, unsent); err != nil {
		r.log.Error("the end of the run could not be stored", "error", err)
	}
	s.leases.remove(r.key)
	id := protocol.AssignmentID(r.key.ID)
	switch r.key.Kind {
	case journal.KindJob:
		s.board.show(id, r.jobID, protocol.JobFailed, protocol.PhaseFailed, "Not submitted: "+reason)
	case journal.KindVerification:
		s.board.showReview(id, protocol.VerificationUnfinished, protocol.VerificationFailed, "Not submitted: "+reason)
	}
}

// storeEnd journals the end of a run with what it found, or at least the end.
func (s *Supervisor) storeEnd(r *run, reason string, unsent []byte) error {
	ctx := context.WithoutCancel(r.lease.ctx)
	if unsent != nil {
		err := s.parts.Journal.AbandonUnsent(ctx, r.key, reason, unsent, "0x"+hashOf(unsent))
		if err == nil {
			return nil
		}
		r.log.Warn("what the run found could not be kept", "error", err)
	}
	return s.parts.Journal.Abandon(ctx, r.key, reason)
}

// violations are the failures that mean a change broke a rule of the policy.
var violations = map[protocol.Code]bool{
	protocol.CodePolicyPathViolation: true, protocol.CodeProtectedFileChanged: true,
	protocol.CodeChangeUnsupported: true, protocol.CodeChangeTooLarge: true, protocol.CodeSecretsFound: true,
}

// measure counts a run that ended.
func (s *Supervisor) measure(r *run, failure, abandoned string) {
	outcome, stage := protocol.OutcomeSucceeded, ""
	switch {
	case abandoned != "" || r.lease.ctx.Err() != nil:
		outcome = "ABANDONED"
	case failure != "":
		outcome, stage = protocol.OutcomeFailed, string(protocol.Lookup(protocol.Code(failure)).Stage)
	}
	if violations[protocol.Code(failure)] {
		s.parts.Metrics.Violation(failure)
	}
	s.parts.Metrics.Job(string(s.config.Role), outcome, stage, time.Since(r.started))
	r.log.Info("the run ended", "outcome", outcome, "failure", failure, "took", time.Since(r.started).String())
}

// failedOutcome is the result of a run that the worker never saw, or that broke
// in a way it can't describe.
func (s *Supervisor) failedOutcome(r *run, code protocol.Code, summary string) jobs.Outcome {
	if summary == "" {
		summary = protocol.Lookup(code).Sentence
	}
	now := time.Now().UTC().Format(time.RFC3339)
	e := protocol.Evidence{
		protocol.KeyAssignmentID: r.key.ID, protocol.KeyLeaseID: r.key.Lease, protocol.KeyJobID: r.jobID,
		protocol.KeyProvider: orUnset(s.config.Provider), protocol.KeyModel: orUnset(s.config.Model),
		protocol.KeyRuntimeVersion: s.config.Version,
		protocol.KeyStartedAt:      r.started.UTC().Format(time.RFC3339), protocol.KeyCompletedAt: now,
		protocol.KeySummary:   summary,
		protocol.KeyLimitsHit: []string{}, protocol.KeyPolicy: s.config.Policy,
		protocol.KeyUsage:              map[string]any{"input_tokens": 0, "output_tokens": 0},
		protocol.KeyValidationCommands: []string{}, protocol.KeyValidationSource: "", protocol.KeyValidationToolchain: "",
	}
	e.Fail(code)
	return jobs.Outcome{Evidence: e, Failure: code}
}
