package wire

import (
	"errors"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// The kinds of failure. Every error of this package wraps exactly one of them,
// except for those of a cancelled context and of the caller's own arguments.
var (
	// ErrUnreachable is trouble that may pass: no route, TLS, 5xx, a rate
	// limit, a cut or stalled stream, an answer that is no git. Worth another
	// try; RetryAfter says when, if the server did.
	ErrUnreachable = errors.New("repository host unreachable")
	// ErrRefused means that the credential was refused, also a fresh one.
	ErrRefused = errors.New("repository access refused")
	// ErrMoved means that the repository is elsewhere now.
	ErrMoved = errors.New("repository moved")
	// ErrBranchMissing means that the server has no such ref or commit.
	ErrBranchMissing = errors.New("branch or commit missing")
	// ErrUnsupported means a server or repository of another kind: SHA-256
	// ids, no side band, no report of a push.
	ErrUnsupported = errors.New("repository format unsupported")
	// ErrNoFilter means that the server can't leave objects out of a fetch.
	ErrNoFilter = errors.New("server has no filters")
	// ErrTooLarge means that an answer is over its bound.
	ErrTooLarge = errors.New("repository too large")
	// ErrDiverged means that the branch to push holds another commit.
	ErrDiverged = errors.New("branch holds another commit")
	// ErrPushRefused means that the server's rules refuse the push for good.
	ErrPushRefused = errors.New("push refused")
	// ErrReceiver means that the writer of a fetched pack failed. When that is
	// a sandbox, its own answer says more.
	ErrReceiver = errors.New("receiver of the pack failed")
	// ErrInvalid means that an argument is none that may be sent to a server.
	ErrInvalid = errors.New("invalid argument")
)

// Error is a failure with its kind, one of the sentinels above.
type Error = gitops.HostError

func fail(kind error, op, format string, args ...any) error {
	return gitops.HostErrorf(kind, op, format, args...)
}
