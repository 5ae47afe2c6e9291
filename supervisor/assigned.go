package supervisor

import (
	"context"
	"encoding/json"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// assigned is a job or a verification as a beat brought it or the journal kept
// it: what dispatching must know of either.
type assigned struct {
	kind  string // of its run
	raw   json.RawMessage
	lease protocol.Lease
	// minutes is what the task asks for, not yet checked.
	minutes int64
	// prepare checks the whole task, which came from origin, and returns what
	// does it.
	prepare func(origin protocol.Origin) (work, error)
	// refuse ends a run of it that nobody works on.
	refuse func(r *run, code protocol.Code, why string)
}

// work executes a run that was accepted at a time.
type work func(ctx context.Context, r *run, accepted time.Time)

// readAssigned reads a task of a kind. The error says that it has no valid ids
// or token: then no run can be named after it.
func (s *Supervisor) readAssigned(kind string, raw json.RawMessage) (assigned, error) {
	if kind == journal.KindVerification {
		return s.readVerification(raw)
	}
	task, broken := protocol.DecodeJobTask(raw)
	lease, err := task.Lease()
	return assigned{
		kind: kind, raw: raw, lease: lease, minutes: task.Policy.MaximumExecutionMinutes, refuse: s.refuse,
		prepare: func(origin protocol.Origin) (work, error) {
			if broken != nil {
				return nil, broken
			}
			job, err := task.Validate(origin, s.theirNow())
			if err == nil {
				err = s.checkClone(job.Repository)
			}
			return func(ctx context.Context, r *run, accepted time.Time) { s.executeJob(ctx, r, job, accepted) }, err
		},
	}, err
}

func (s *Supervisor) readVerification(raw json.RawMessage) (assigned, error) {
	task, broken := protocol.DecodeVerificationTask(raw)
	lease, err := task.Lease()
	return assigned{
		kind: journal.KindVerification, raw: raw, lease: lease, minutes: task.Policy.MaximumReviewMinutes,
		refuse: s.withoutReport,
		prepare: func(origin protocol.Origin) (work, error) {
			if broken != nil {
				return nil, broken
			}
			v, err := task.Validate(origin, s.theirNow())
			if err == nil {
				err = s.checkClone(v.Repository)
			}
			return func(ctx context.Context, r *run, accepted time.Time) { s.executeVerification(ctx, r, v, accepted) }, err
		},
	}, err
}

// theirNow is the control plane's time.
func (s *Supervisor) theirNow() time.Time { return time.Now().Add(s.clock.known()) }

// checkClone wants the repository on a git host that this runtime dials.
func (s *Supervisor) checkClone(r protocol.Repository) error {
	if len(s.config.Git) == 0 {
		return nil
	}
	_, err := r.CloneOrigin(s.config.Git)
	return err
}
