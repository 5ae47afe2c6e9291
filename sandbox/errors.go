package sandbox

import (
	"errors"
	"fmt"
)

// Kind says what a caller may do about an error of a backend.
type Kind string

// The kinds of errors. Each has one meaning for every backend.
const (
	// KindRefused: the Spec or the request breaks a rule; nothing was started.
	KindRefused Kind = "refused"
	// KindStart: the sandbox could not be started, or a control could not be
	// applied and read back.
	KindStart Kind = "start"
	// KindCrashed: the sandbox ended by itself, no limit explains it.
	KindCrashed Kind = "crashed"
	// KindGone: the runner or the engine is gone; nothing runs any more.
	KindGone Kind = "gone"
	// KindBusy: another Run of this sandbox is going on.
	KindBusy Kind = "busy"
	// KindNoRoom: memory, disk or id ranges of this host are booked up.
	KindNoRoom Kind = "no_room"
	// KindTooLarge: a collection holds more entries or bytes than allowed.
	KindTooLarge Kind = "too_large"
)

// Error is what every method of the contract returns when it fails, besides the
// error of its own context.
type Error struct {
	Kind Kind
	Op   string // the operation and its operand, for example "mounting overlay"
	Err  error  // the cause; may be nil
}

// Error tells the operation and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Op, e.Kind)
	}
	return fmt.Sprintf("%s: %v (%s)", e.Op, e.Err, e.Kind)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
