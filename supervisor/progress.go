package supervisor

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// board shows what the current run does. Runs write it and beats read it, by
// one pointer and no lock.
type board struct {
	last   atomic.Pointer[protocol.JobProgress]
	review atomic.Pointer[protocol.VerificationProgress]
}

// read is the progress that the next beat reports.
func (b *board) read() protocol.JobProgress {
	if p := b.last.Load(); p != nil {
		return *p
	}
	return protocol.JobProgress{}
}

// readReview is the progress of a verification that the next beat reports.
func (b *board) readReview() protocol.VerificationProgress {
	if p := b.review.Load(); p != nil {
		return *p
	}
	return protocol.VerificationProgress{}
}

// showReview replaces the progress of a verification.
func (b *board) showReview(
	id protocol.AssignmentID, status protocol.VerificationStatus, phase protocol.VerificationPhase, message string,
) {
	b.review.Store(&protocol.VerificationProgress{
		VerificationAssignmentID: id,
		VerificationStatus:       status,
		VerificationPhase:        phase,
		VerificationMessage:      oneLine(message, protocol.MaxProgressMessage),
		VerificationUpdatedAt:    time.Now().UTC().Format(time.RFC3339),
	})
}

// show replaces the progress. Texts are cut to what the control plane keeps.
func (b *board) show(id protocol.AssignmentID, jobID int64, status protocol.JobStatus, phase protocol.Phase, message string) {
	b.last.Store(&protocol.JobProgress{
		JobAssignmentID: id,
		JobOnchainID:    strconv.FormatInt(jobID, 10),
		JobStatus:       status,
		JobPhase:        phase,
		JobMessage:      oneLine(message, protocol.MaxProgressMessage),
		JobUpdatedAt:    time.Now().UTC().Format(time.RFC3339),
	})
}

// progress is jobs.Progress for one run. The run measures and logs its phases
// by itself; here they are only shown.
type progress struct {
	board *board
	run   *run
}

var _ jobs.Progress = progress{}

// Phase notes that a phase began.
func (p progress) Phase(phase protocol.Phase, message string) {
	name := string(phase)
	p.run.phase.Store(&name)
	if p.run.key.Kind == journal.KindJob {
		p.board.show(protocol.AssignmentID(p.run.key.ID), p.run.jobID, protocol.JobRunning, phase, message)
	}
}

// reviewProgress is jobs.VerificationProgress for one run.
type reviewProgress struct {
	board *board
	run   *run
}

var _ jobs.VerificationProgress = reviewProgress{}

// Phase notes that a phase began.
func (p reviewProgress) Phase(phase protocol.VerificationPhase, message string) {
	name := string(phase)
	p.run.phase.Store(&name)
	p.board.showReview(protocol.AssignmentID(p.run.key.ID), protocol.VerificationRunning, phase, message)
}
