// Package signer keeps the identity key in a process of its own that can do
// nothing but sign. It answers four typed statements whose fields it validates
// by itself, and never signs bytes that it is given; each signature is in its
// log, synced, before it is answered (invariant 10).
//
// The same program is both sides: Start runs the executable again with a hidden
// subcommand, which calls Main. Main opens the key, or makes it on the very
// first start together with the runtime id, then gives up files, network,
// capabilities and most system calls. A signer that died is never replaced by
// another way to sign: Sign returns ErrGone for ever.
//
// Start reading at statement.go, then process.go.
package signer

import "errors"

var (
	// ErrState says that the identity or the signing log is missing in part,
	// unreadable, readable for others or inconsistent. Nothing was changed, and
	// the daemon must not start (exit code 78).
	ErrState = errors.New("signer state is not usable")
	// ErrRefused says that a statement's field is not valid: asking again is
	// useless. Nothing was signed.
	ErrRefused = errors.New("statement refused")
	// ErrLog says that the signing log could not be written, so nothing was
	// answered. It may heal, for example when the disk has room again.
	ErrLog = errors.New("signing log not written")
	// ErrGone says that the signer process has ended.
	ErrGone = errors.New("signer is gone")
)
