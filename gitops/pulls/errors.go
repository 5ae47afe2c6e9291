package pulls

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of failure. Every error of this package wraps exactly one of them,
// except for those of a cancelled context and of the credential source.
var (
	// ErrUnreachable is trouble that may pass, rate limits included.
	ErrUnreachable = errors.New("pull request interface unreachable")
	// ErrRefused means that the host refuses the credential or the request.
	ErrRefused = errors.New("pull request refused")
	// ErrMismatch means that the host shows another branch, commit or list of
	// files than was pushed.
	ErrMismatch = errors.New("pull request does not match")
	// ErrMoved means that the repository is elsewhere now.
	ErrMoved = errors.New("repository moved")
	// ErrInvalid means that an argument is none that may be sent.
	ErrInvalid = errors.New("invalid argument")
)

// Error is a failure with its kind.
type Error struct {
	Kind   error // one of the package's sentinels
	Op     string
	Status int           // HTTP status, 0 when it is not the reason
	After  time.Duration // pause that the host asked for, 0 for none
	Err    error         // cause, nil when the kind says all
}

// Error gives operation, kind, status and cause.
func (e *Error) Error() string {
	s := e.Op + ": " + e.Kind.Error()
	if e.Status != 0 {
		s += fmt.Sprintf(" (status %d)", e.Status)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives kind and cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// RetryAfter gives the pause that the host asked for; 0 when it asked none.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.After
	}
	return 0
}

func fail(kind error, op, format string, args ...any) error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}
