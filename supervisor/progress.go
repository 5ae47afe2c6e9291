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
	last atomic.Pointer[protocol.JobProgress]
}

// read is the progress that the next beat reports.
func (b *board) read() protocol.JobProgress {
	if p := b.last.Load(); p != nil {
		return *p
	}
	return protocol.JobProgress{}
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
	p.run.phase.Store(&phase)
	if p.run.key.Kind == journal.KindJob {
		p.board.show(protocol.AssignmentID(p.run.key.ID), p.run.jobID, protocol.JobRunning, phase, message)
	}
}
