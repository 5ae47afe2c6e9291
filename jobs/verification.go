package jobs

import (
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// VerificationProgress tells the control plane what a verification is doing. It
// never blocks.
type VerificationProgress interface {
	Phase(phase protocol.VerificationPhase, message string)
}

// VerificationRun is one execution of a verification: what was leased, and the
// ports. Nothing in it can push: its credentials are read-only.
type VerificationRun struct {
	Verification  protocol.Verification
	Configuration protocol.Configuration
	// Accepted is the journal's time of acceptance, UTC, whole seconds.
	Accepted time.Time
	// Started is when this execution began.
	Started time.Time
	// Deadline is the end of the lease by the supervisor's own clock.
	Deadline time.Time
	// Dir is the run's directory, existing, 0700: log and transcript.
	Dir string
	// Credentials refuse every token with write access before it is returned.
	Credentials Credentials
	Checkpoints Checkpoints
	Progress    VerificationProgress
	Ledger      Ledger
}

// VerificationOutcome is what a verification came to. Exactly one of Report,
// Failure and Abandoned says how it ended.
type VerificationOutcome struct {
	// Report is to be sanitised, checked, sealed and delivered; nil: no report
	// is sent, and the lease runs out.
	Report protocol.Report
	// Verdict is the report's, empty without one.
	Verdict protocol.Verdict
	// Failure says why there is no report: the sentence of its phase.
	Failure protocol.Code
	// Abandoned is the reason why nothing more is to be said, for example
	// "LEASE_LOST"; else empty.
	Abandoned string
}
