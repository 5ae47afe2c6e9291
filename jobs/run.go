package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// The ports of a run. The supervisor implements them; through them a run gets
// what it may not hold itself and reports what others write down.
type (
	// Credentials hands out the repository token of this run's lease.
	Credentials interface {
		// Credential returns a token that is valid for at least five more
		// minutes where the control plane allows it. fresh asks for a new
		// answer, as before the push. Its error wraps ErrLeaseLost,
		// ErrCredentialRefused or ErrCredentialUnavailable.
		Credential(ctx context.Context, fresh bool) (protocol.RepoToken, error)
	}
	// Checkpoints keeps what a run must know after a crash: one value a name,
	// durable when Save returns.
	Checkpoints interface {
		Save(ctx context.Context, name string, value []byte) error
		// Load returns the last saved value, or false.
		Load(name string) ([]byte, bool)
	}
	// Progress tells the client what a run is doing. It never blocks.
	Progress interface {
		Phase(phase protocol.Phase, message string)
	}
	// Ledger counts model tokens, durably, so that a restart keeps what was
	// spent.
	Ledger interface {
		Spend(ctx context.Context, input, output int64) error
		Spent() (input, output int64)
	}
)

// Errors of Credentials. A caller decides by them.
var (
	// ErrLeaseLost: the control plane no longer grants this lease, or we know
	// that it is over. Nothing may be pushed or submitted for it.
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrCredentialRefused: the credential does not fit the job.
	ErrCredentialRefused = errors.New("the repository credential was refused")
	// ErrCredentialUnavailable: it could not be had now; another try may cure.
	ErrCredentialUnavailable = errors.New("the repository credential is unavailable")
)

// Run is one execution of a paid job: what was leased, and the ports.
type Run struct {
	Job           protocol.Job
	Configuration protocol.Configuration
	// Accepted is the journal's time of acceptance, UTC, whole seconds: the
	// commit's date, so that a retry makes the same id.
	Accepted time.Time
	// Started is when this execution began.
	Started time.Time
	// Deadline is the end of the lease by the supervisor's own clock.
	Deadline time.Time
	// Dir is the run's directory, existing, 0700: log, transcript, patch, pack.
	Dir         string
	Credentials Credentials
	Checkpoints Checkpoints
	Progress    Progress
	Ledger      Ledger
}

// Outcome is what a run came to. A run always has one.
type Outcome struct {
	// Evidence is to be sanitised, sealed and delivered; nil if Abandoned.
	Evidence protocol.Evidence
	// Failure is the code of a FAILED outcome, empty for SUCCEEDED.
	Failure protocol.Code
	// Abandoned is the reason why nothing is to be sent, for example
	// "LEASE_LOST"; else empty.
	Abandoned string
	// rest ends what goes on when the outcome is known; may be nil.
	rest func()
}

// Finish returns once nothing of the run is left on the host. It must be called
// before another execution of the same run begins, and may be called again.
func (o Outcome) Finish() {
	if o.rest != nil {
		o.rest()
	}
}

// QualificationRun is one execution of a qualification attempt.
type QualificationRun struct {
	Qualification protocol.Qualification
	Started       time.Time
	// Deadline is when to give up trying locally. The lease moves with every
	// beat, so this is the owner's limit.
	Deadline time.Time
	Dir      string
	Progress Progress
	Ledger   Ledger
}

// QualificationOutcome is what is submitted for a qualification.
type QualificationOutcome struct {
	// Files is exactly the target file; nil when giving up.
	Files      []protocol.File
	ReturnCode int
	Output     string
	// Failure, when not empty, is sent as runtime_error and costs an attempt.
	Failure protocol.Code
	// Abandoned: cancelled, nothing is to be sent.
	Abandoned string
}

// Intended tells from a run's checkpoints whether its intent is written down:
// then a restart needs neither a sandbox nor the model to finish it.
func Intended(saved map[string][]byte) bool {
	_, found := saved[checkpointIntent]
	return found
}
