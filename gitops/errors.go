package gitops

import (
	"errors"
	"fmt"
)

// Kind says what a caller may do about an Error.
type Kind uint8

// The kinds. Their numbers travel in error frames and never change.
const (
	// KindInternal is a fault of ours or of the sandbox's file system.
	KindInternal Kind = 1
	// KindTooLarge means that a bound was reached, disk space included.
	KindTooLarge Kind = 2
	// KindUnsupported means that the repository holds names, data or a format
	// that cannot be worked with, a wrong checksum included.
	KindUnsupported Kind = 3
	// KindCut means that the pack ended before its end: worth another fetch.
	KindCut Kind = 4
	// KindChange means that the change set cannot become a commit.
	KindChange Kind = 5
	// KindBroken means that the other side broke the rules of the frames or
	// gave an answer that does not fit the request.
	KindBroken Kind = 6
	// KindIncomplete means that a history ends before the answer is certain:
	// worth a deeper fetch.
	KindIncomplete Kind = 7
)

var kindNames = map[Kind]string{
	KindInternal: "internal", KindTooLarge: "too large", KindUnsupported: "unsupported",
	KindCut: "cut short", KindChange: "change unsupported", KindBroken: "broken answer",
	KindIncomplete: "history incomplete",
}

// String names the kind for logs.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Error is how every failure of this package and of the git worker reaches a
// caller. Text from inside a sandbox is kept escaped in Err and belongs in the
// local log only.
type Error struct {
	Kind Kind
	Op   string
	Err  error
}

// Error gives operation, kind and cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Op + ": " + e.Kind.String()
	}
	return fmt.Sprintf("%s: %s: %v", e.Op, e.Kind, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf gives the kind of the first Error in err's chain, KindInternal for
// any other error and 0 for nil.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Kind
	}
	return KindInternal
}

// Errorf makes an Error of a kind; the format works as in fmt.Errorf.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}
