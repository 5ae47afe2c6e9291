package supervisor

import (
	"errors"
	"fmt"
)

// ErrState is wrapped by every error that means: what is on disk can't be read
// or doesn't fit together. The process ends with 78 and replaces nothing.
var ErrState = errors.New("state is not usable")

// ErrPaired is returned when a link is asked for while this instance is paired.
var ErrPaired = errors.New("already paired")

// ErrUnreachable is wrapped by the sentence that says why no link is made: the
// control plane could not come here with it.
var ErrUnreachable = errors.New("the control plane can't reach this host")

// unreachable is that sentence, for the owner.
type unreachable string

// Error returns the sentence.
func (u unreachable) Error() string { return string(u) }

// Unwrap lets callers find ErrUnreachable.
func (u unreachable) Unwrap() error { return ErrUnreachable }

// ErrNoJob answers for an id that no record has.
var ErrNoJob = errors.New("no run of this id is known")

// ErrDeleted answers for the log of a run whose files the owner has deleted, or
// whose time in the archive was over.
var ErrDeleted = errors.New("the log was deleted; hash and signature are kept (see `veyra-sandboxd jobs list`)")

// ErrNoLog answers for a run that ended, or goes on, without a log.
var ErrNoLog = errors.New("the run has no log")

// ErrBusyJob refuses to delete what still runs.
var ErrBusyJob = errors.New("the job has not ended")

// stateError names the file and what is wrong with it.
func stateError(path, format string, args ...any) error {
	return fmt.Errorf("reading %s: %s: %w", path, fmt.Sprintf(format, args...), ErrState)
}
