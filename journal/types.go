package journal

import (
	"fmt"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// The kinds of runs.
const (
	KindJob           = "job"
	KindQualification = "qualification"
	KindVerification  = "verification"
)

// Key names a run. The same assignment under another lease, or the same
// qualification's next attempt, is another run.
type Key struct {
	// Kind is KindJob, KindQualification or KindVerification.
	Kind string
	// ID is the assignment's, qualification's or verification's id, a lower-case
	// UUID.
	ID string
	// Lease is the lease's id for a job and a verification, the attempt as a
	// decimal number for a qualification, for example "1".
	Lease string
}

// String prints the key for logs: its parts hold no foreign text.
func (k Key) String() string { return k.Kind + " " + k.ID + "/" + k.Lease }

// maxAttempt bounds a qualification's attempt (two are real).
const maxAttempt = 1_000_000

func (k Key) check() error {
	if _, err := protocol.ParseUUID(k.ID); err != nil {
		return fmt.Errorf("run's id: %w: %w", ErrArgument, err)
	}
	switch k.Kind {
	case KindJob, KindVerification:
		if _, err := protocol.ParseUUID(k.Lease); err != nil {
			return fmt.Errorf("run's lease: %w: %w", ErrArgument, err)
		}
		return nil
	case KindQualification:
		n, err := strconv.Atoi(k.Lease)
		if err != nil || n < 0 || n > maxAttempt || strconv.Itoa(n) != k.Lease {
			return fmt.Errorf("run's attempt: %w", ErrArgument)
		}
		return nil
	}
	return fmt.Errorf("run's kind %q: %w", k.Kind, ErrArgument)
}

// State is how far a run is.
type State string

// The states. Delivered and abandoned are final.
const (
	Accepted  State = "accepted"
	Sealed    State = "sealed"
	Delivered State = "delivered"
	Abandoned State = "abandoned"
)

// ReasonUnknown is the reason of a delivered run without a receipt: it was sent,
// no answer came before its lease was over, and afterwards none can tell.
const ReasonUnknown = "unknown"

func (s State) final() bool { return s == Delivered || s == Abandoned }

// Record is a run as the journal knows it. Times are UTC.
type Record struct {
	Key
	State State
	// Task is the task's JSON as it was first seen; nil after Delete.
	Task []byte
	// LeaseToken is the newest one seen.
	LeaseToken protocol.LeaseToken
	// LeaseEnd is by this host's clock, to the millisecond; zero if unknown.
	LeaseEnd time.Time
	// Accepted has whole seconds: commits carry it as their date.
	Accepted time.Time
	// Ended is when the run was delivered or abandoned, else zero.
	Ended time.Time
	// Reason says why a run was abandoned, or is ReasonUnknown.
	Reason string
	// Receipt is the control plane's answer to a delivered run.
	Receipt []byte
	// Deleted says that the owner removed what the run left.
	Deleted bool
	// Seal is the newest sealed evidence, nil before.
	Seal *Evidence
	// Draft is evidence that was stored and is not sealed, newer than Seal; a
	// signature of it may exist.
	Draft *Evidence
}

// Evidence is one revision of what a run submits. A sealed one never changes.
type Evidence struct {
	// Revision counts from 1.
	Revision int
	// Hash is the SHA-256 of Body in lower-case hex, with "0x" before it where
	// the statement that is signed has it so.
	Hash string
	// Signature is "" until sealed.
	Signature string
	// Body is the canonical text. List and a deleted run have none.
	Body []byte
	// Drafted and Sealed are when it was stored and when it was sealed.
	Drafted, Sealed time.Time
}

// Answer is what one attempt of delivery brought.
type Answer struct {
	// Revision of the evidence that was sent.
	Revision int
	// Class is the supervisor's word for it.
	Class string
	// Status is the HTTP status, 0 for none.
	Status int
	At     time.Time
}

// The bounds of what is stored, in bytes. Foreign texts are bounded before they
// come here; these keep a mistake from filling the disk.
const (
	maxTask     = 4 << 20
	maxStep     = 64
	maxValue    = 4 << 20
	maxEvidence = 2_621_440 // a request body (protocol section 1)
	maxReceipt  = 256 << 10
	maxReason   = 2000
	maxClass    = 32
	maxToken    = 16 << 10
)
