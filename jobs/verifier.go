package jobs

import (
	"context"
	"errors"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Verifier judges what a worker delivered, by its own fetch, its own tests and
// a model's judgement. Nothing of it can push: what it holds of the repository
// host has no such method, whatever a credential allows. Its Execute may run
// once at a time for each run.
type Verifier struct{ cfg Config }

// NewVerifier makes a verifier of a checked configuration.
func NewVerifier(cfg Config) *Verifier { return &Verifier{cfg: cfg} }

// verification is one execution. It does a job's steps on a tree that somebody
// else committed; one goroutine owns it.
type verification struct {
	*job
	task protocol.Verification
	// noted are our own findings so far.
	noted []finding
}

// newVerification makes a job of the verification's lease. What the owner keeps
// his own worker from touching is no fault of a stranger's change, so that of
// his path rules only the names of tool settings stay, for a note.
func newVerification(cfg Config, run VerificationRun) *verification {
	cfg.Policy.Paths = policies.PathRules{ProtectedNames: cfg.Policy.Paths.ProtectedNames}
	run.Configuration.Agent.ProtectedPaths = nil
	task := run.Verification
	return &verification{task: task, job: newJob(cfg, Run{
		Job: protocol.Job{
			Lease: task.Lease, Repository: task.Repository, Work: task.Work, Minutes: task.Minutes,
			Policy: protocol.TaskPolicy{AllowedPaths: task.Policy.AllowedPaths, ForbiddenPaths: task.Policy.ForbiddenPaths},
		},
		Configuration: run.Configuration, Accepted: run.Accepted, Started: run.Started, Deadline: run.Deadline, Dir: run.Dir,
		Credentials: run.Credentials, Checkpoints: run.Checkpoints, Progress: reviewProgress{run.Progress}, Ledger: run.Ledger,
	})}
}

// reviewProgress shows the steps that a job and a verification share under the
// verification's phases, which have the same words.
type reviewProgress struct{ to VerificationProgress }

func (p reviewProgress) Phase(phase protocol.Phase, message string) {
	p.to.Phase(protocol.VerificationPhase(phase), message)
}

func (v *verification) review(phase protocol.VerificationPhase, message string) {
	v.enter(protocol.Phase(phase), message)
}

// Execute judges one submission. It always has an outcome; a restart begins
// anew, with the tokens spent still counted.
func (w *Verifier) Execute(ctx context.Context, run VerificationRun) VerificationOutcome {
	v := newVerification(w.cfg, run)
	defer v.close()
	done, err := v.work(ctx)
	if err == nil {
		return v.conclude(done)
	}
	return v.ended(ctx, v.awaitRestart(ctx, err))
}

// work is the story. Each step takes the result of the one before it.
func (v *verification) work(ctx context.Context) (judged, error) {
	rules, err := v.prepare()
	if err != nil {
		return judged{}, err
	}
	room, err := v.open(ctx, rules)
	if err != nil {
		return judged{}, err
	}
	claim, err := v.compare(ctx, room)
	if err != nil {
		return judged{}, err
	}
	commit, err := v.checkOut(ctx, claim)
	if err != nil {
		return judged{}, err
	}
	ready, err := v.setUp(ctx, commit.repository)
	if err != nil {
		return judged{}, err
	}
	ran, err := v.test(ctx, commit, ready)
	if err != nil {
		return judged{}, err
	}
	return v.evaluate(ctx, ran)
}

// prepare narrows the policy. The funded commands are read only once the pull
// request is known to be the one that was submitted: without that there is no
// report, whatever they are.
func (v *verification) prepare() (room, error) {
	v.review(protocol.VerificationPreparing, "Checking the task")
	rules, err := v.rules()
	if err != nil {
		return room{}, err
	}
	v.facts.rules = rules
	return v.budget(room{rules: rules})
}

// neverTested are the failures after which no host could test this commit:
// INCONCLUSIVE, which is final. All others leave the lease to run out, so that
// the submission is given to this verifier once more and then to another.
var neverTested = []protocol.Code{
	protocol.CodeAmbiguousToolchain, protocol.CodeUnsupportedToolchain, protocol.CodeInvalidProjectManifest,
	protocol.CodeUnsafeValidationCommand, protocol.CodeNoTestsRun, protocol.CodeDependencyPreparationFailed,
}

// ended names the end of a verification that could not be carried through.
func (v *verification) ended(ctx context.Context, err error) VerificationOutcome {
	if reason := abandonment(ctx, err, v.run.Deadline); reason != "" {
		v.files.say("abandoned: %s: %q", reason, err.Error())
		v.log.Warn("verification abandoned", "reason", reason, "error", err)
		return VerificationOutcome{Abandoned: reason}
	}
	code := codeOf(err)
	v.leave()
	v.log.Warn("verification failed", "code", code, "error", err)
	v.files.say("failed: %s: %q", code, err.Error())
	// A host without the phase that dependencies need says nothing about them.
	if slices.Contains(neverTested, code) && !errors.Is(err, errNeedsRegistry) {
		return v.inconclusive(code, err)
	}
	v.run.Progress.Phase(protocol.PhaseFailed, protocol.Lookup(code).Sentence)
	return VerificationOutcome{Failure: code}
}
