package pulls

import (
	"errors"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
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

// Error is a failure with its kind, one of the sentinels above.
type Error = gitops.HostError

func fail(kind error, op, format string, args ...any) error {
	return gitops.HostErrorf(kind, op, format, args...)
}
