package gitops

import (
	"errors"
	"fmt"
	"time"
)

// HostError is a failure of a call to the repository's host, by git (wire) or by
// its REST interface (pulls), with its kind.
type HostError struct {
	Kind   error // a sentinel of the package that made the call
	Op     string
	Status int           // HTTP status, 0 when it is not the reason
	After  time.Duration // pause that the host asked for, 0 for none
	Err    error         // cause, nil when the kind says all; the host's text is quoted
}

// Error gives operation, kind, status and cause.
func (e *HostError) Error() string {
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
func (e *HostError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// HostErrorf makes a HostError of a kind; the format works as in fmt.Errorf.
func HostErrorf(kind error, op, format string, args ...any) error {
	return &HostError{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// RetryAfter gives the pause that the host asked for; 0 when it asked none.
func RetryAfter(err error) time.Duration {
	var e *HostError
	if errors.As(err, &e) {
		return e.After
	}
	return 0
}
