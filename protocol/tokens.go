package protocol

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted is what every secret type of this package prints, in every verb and
// in every log line (attack case D05). Two places are out of its reach, because
// fmt calls no method there: a field that is not exported, and what lies behind
// a pointer inside a value that is printed with a verb for texts. So nothing
// that holds a secret is printed whole; internal/redact stands behind that.
const redacted = "[redacted]"

type (
	// LeaseToken proves the lease of one task. It is worthless without the
	// runtime credential, yet never shown.
	LeaseToken string
	// RepoToken is a job-scoped GitHub App installation token.
	RepoToken string
	// RuntimeCredential authenticates this runtime at the control plane.
	RuntimeCredential string
	// PairingToken is the one-time token of a connection link.
	PairingToken string
)

func printRedacted(w io.Writer) { _, _ = io.WriteString(w, redacted) }

// Format prints "[redacted]" for every verb. To use the text itself convert
// the value to string, where it is sent and nowhere else.
func (LeaseToken) Format(s fmt.State, _ rune) { printRedacted(s) }

// Format prints "[redacted]" for every verb.
func (RepoToken) Format(s fmt.State, _ rune) { printRedacted(s) }

// Format prints "[redacted]" for every verb.
func (RuntimeCredential) Format(s fmt.State, _ rune) { printRedacted(s) }

// Format prints "[redacted]" for every verb.
func (PairingToken) Format(s fmt.State, _ rune) { printRedacted(s) }

// LogValue prints "[redacted]" in structured logs.
func (LeaseToken) LogValue() slog.Value { return slog.StringValue(redacted) }

// LogValue prints "[redacted]" in structured logs.
func (RepoToken) LogValue() slog.Value { return slog.StringValue(redacted) }

// LogValue prints "[redacted]" in structured logs.
func (RuntimeCredential) LogValue() slog.Value { return slog.StringValue(redacted) }

// LogValue prints "[redacted]" in structured logs.
func (PairingToken) LogValue() slog.Value { return slog.StringValue(redacted) }
