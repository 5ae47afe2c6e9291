// Package journal is the supervisor's memory on disk: which runs were accepted,
// how far each got, which evidence was sealed, what the control plane answered,
// and how each run ended. A run goes
//
//	accepted → (checkpoints) → sealed → delivered | abandoned(reason)
//
// and never back. Each change is one transaction that is synced before its
// method returns. The journal keeps lease tokens, which are worthless without
// the runtime credential, and no other secret.
//
// It is an SQLite file with one writer, under a lock on the state directory. A
// journal that is damaged, of a later version, or older than what was written
// last is ErrState: it is left as it is, and never replaced by an empty one.
// Start reading at types.go, then runs.go.
package journal

import (
	"errors"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

var (
	// ErrState says that the journal can't be trusted or used. Its files were
	// not changed, and the daemon must not start (exit code 78).
	ErrState = errors.New("journal is not usable")
	// ErrLocked says that another daemon uses the state directory; the error's
	// text names its process id.
	ErrLocked = durable.ErrLocked
	// ErrFull says that the disk is full. What was there before is whole, and
	// the call can be made again.
	ErrFull = errors.New("no room for the journal")
	// ErrUnknown says that no run has this key.
	ErrUnknown = errors.New("run is not in the journal")
	// ErrOrder says that the run's state does not allow the call, for example
	// sealing twice with different signatures.
	ErrOrder = errors.New("run is in another state")
	// ErrArgument says that an argument breaks a rule of its method. Nothing
	// was written.
	ErrArgument = errors.New("not for the journal")
)
