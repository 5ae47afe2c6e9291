package runner

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// errDisk is the cause when the host's file system was full below the sparse
// image: what was written answered 0 and is lost, so no result counts.
var errDisk = errors.New("the sandbox's disk lost writes: the host's file system is full")

// errSilent is the cause when init doesn't report a cancelled command.
var errSilent = errors.New("init did not report a cancelled command")

// errClosed is the cause when the Session was closed below a command.
var errClosed = errors.New("the sandbox was closed")

// errLost is the cause when init ended and no limit explains it.
var errLost = errors.New("init ended by itself")

// reached asks the host what happened since the last command and returns the
// limits of the whole sandbox that rose, with the newest counters.
func (s *Session) reached(ctx context.Context) ([]sandbox.Limit, sandbox.Counters, error) {
	now, err := s.counters(ctx)
	if err != nil {
		return nil, now, &sandbox.Error{Kind: sandbox.KindGone, Op: "reading counters of sandbox", Err: err}
	}
	if now.DiskErrors != 0 {
		return nil, now, &sandbox.Error{Kind: sandbox.KindCrashed, Op: "running command", Err: errDisk}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Compared with the last command's counters, not with those of this one's
	// start: what a left-over process did in between is not lost.
	var limits []sandbox.Limit
	if now.OOMKills > s.before.OOMKills {
		limits = append(limits, sandbox.LimitOOM)
	}
	if now.PIDsHits > s.before.PIDsHits {
		limits = append(limits, sandbox.LimitPIDs)
	}
	s.before = now
	return limits, now, nil
}

// finished turns init's report into the contract's words.
func (r *execution) finished(ctx context.Context, e initwire.Exit) (sandbox.Exit, error) {
	took := time.Since(r.started) // without the question to the runner
	limits, now, err := r.s.reached(ctx)
	if err != nil {
		return sandbox.Exit{}, err
	}
	exit := r.exit(now)
	exit.Duration = took
	status := syscall.WaitStatus(e.Status)
	exit.Code = status.ExitStatus()
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		exit.Code = 128 + exit.Signal
	}
	if e.Flags&initwire.LowDisk != 0 {
		limits = append(limits, sandbox.LimitDisk)
	}
	if e.Flags&initwire.LowInodes != 0 {
		limits = append(limits, sandbox.LimitInodes)
	}
	if e.Flags&initwire.FullTasks != 0 && r.s.guest.Load() {
		limits = append(limits, sandbox.LimitPIDs)
	}
	exit.Ended = r.ended(e, exit.Signal, limits)
	exit.Limits = merge(limits, exit.Ended)
	return exit, nil
}

// ended decides which limit, if any, ended the command. A deadline that passed
// while the command was ending by itself ended nothing; the output cap did,
// since part of the output was not kept.
func (r *execution) ended(e initwire.Exit, signal int, limits []sandbox.Limit) sandbox.Limit {
	switch why := r.reason(); {
	case why == sandbox.LimitOutput:
		return why
	case why != "" && e.Flags&initwire.Cancelled != 0:
		return why
	case signal == int(syscall.SIGKILL) && slices.Contains(limits, sandbox.LimitOOM):
		return sandbox.LimitOOM
	}
	return ""
}

// lost decides what the end of the pipe means. PID 1 killed together with
// others for memory is oom: a job can lower its own oom_score_adj. A full pid
// table ends a gVisor sandbox, and can end init where it needs a thread.
func (r *execution) lost(ctx context.Context) (sandbox.Exit, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-r.overdue:
		return r.silent(ctx)
	default:
	}
	if r.s.closed() {
		return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindGone, Op: "running command", Err: errClosed}
	}
	limits, now, err := r.s.reached(ctx)
	if err != nil {
		return sandbox.Exit{}, err
	}
	exit := r.exit(now)
	exit.Code, exit.Gone = -1, true
	switch {
	case len(limits) > 0:
		exit.Ended = limits[0] // oom comes before pids
	case r.reason() != "":
		exit.Ended = r.reason()
	default:
		return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindCrashed, Op: "running command", Err: errLost}
	}
	exit.Limits = merge(limits, exit.Ended)
	return exit, nil
}

// silent is what becomes of a command that init doesn't report in time after
// it was cancelled: the limit that ended it, and no further trust in init.
func (r *execution) silent(ctx context.Context) (sandbox.Exit, error) {
	limits, now, err := r.s.reached(ctx)
	if err != nil {
		return sandbox.Exit{}, err
	}
	exit := r.exit(now)
	exit.Code, exit.Gone, exit.Ended = -1, true, r.reason()
	if exit.Ended == "" {
		return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindCrashed, Op: "cancelling command", Err: errSilent}
	}
	exit.Limits = merge(limits, exit.Ended)
	return exit, nil
}

func (r *execution) exit(now sandbox.Counters) sandbox.Exit {
	return sandbox.Exit{Duration: time.Since(r.started), OutputBytes: r.output, MemoryPeak: now.MemoryPeak}
}

// merge returns limits and ended, sorted, each once.
func merge(limits []sandbox.Limit, ended sandbox.Limit) []sandbox.Limit {
	if ended != "" {
		limits = append(limits, ended)
	}
	slices.Sort(limits)
	return slices.Compact(limits)
}
