package jobs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// A failure that another try may cure brings the job back to this runtime
// within seconds, four attempts in all. So waiting is done here, inside the
// lease, and only what lasts is told.

// patience tries again what may pass, with growing pauses, until the work's
// time is over; every other error ends it at once.
func patience(ctx context.Context, log *slog.Logger, until time.Time, passing func(error) bool, try func() error) error {
	pause := time.Second
	for {
		err := try()
		if err == nil || !passing(err) || ctx.Err() != nil {
			return err
		}
		rest := max(pause, wished(err))
		left := time.Until(until)
		if left <= 0 {
			return err
		}
		// A wish beyond the end gets one more try at the end.
		rest = min(rest, left)
		log.Warn("trying again", "after", rest.String(), "error", err)
		if waitErr := wait.For(ctx, rest); waitErr != nil {
			return errors.Join(waitErr, err)
		}
		pause = min(2*pause, 30*time.Second)
	}
}

// wished is the pause that the other side asked for.
func wished(err error) time.Duration {
	var model *provider.Error
	if errors.As(err, &model) {
		return model.RetryAfter
	}
	return gitops.RetryAfter(err)
}

// passingStart: what is in the way of a sandbox mostly passes, other jobs'
// bookings for example.
func passingStart(err error) bool {
	kind := sandbox.KindOf(err)
	return kind == sandbox.KindNoRoom || kind == sandbox.KindStart
}

// crashTries is how often a step is tried whose sandbox ends by itself. More
// would let a repository that brings it about hold the host.
const crashTries = 3

// again repeats a step that has no effect outside of its own sandboxes.
func again[T any](ctx context.Context, step func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		made, err := step()
		if sandbox.KindOf(err) != sandbox.KindCrashed || try == crashTries || ctx.Err() != nil {
			return made, err
		}
	}
}

// awaitRestart holds a run whose runner is gone until the daemon is restarted,
// which ends ctx and goes on with the same lease, or until the lease is nearly
// over. It returns err.
func (j *job) awaitRestart(ctx context.Context, err error) error {
	if sandbox.KindOf(err) != sandbox.KindGone {
		return err
	}
	if _, swept := j.cfg.Backend.Sweep(ctx); sandbox.KindOf(swept) != sandbox.KindGone {
		return err // one sandbox is gone, not the runner
	}
	j.log.Error("the runner is gone: the run waits for a restart of the daemon", "error", err)
	j.run.Progress.Phase(j.phase, protocol.Lookup(protocol.CodeHostNotReady).Sentence)
	_ = wait.For(ctx, time.Until(j.run.Deadline.Add(-2*protocol.ResendUntil)))
	return err
}
