package provider

import (
	"fmt"
	"io"
	"log/slog"
)

// Key is the owner's key at a provider. It prints "[redacted]" in every verb
// and log line; convert it to string where it is sent and nowhere else.
type Key string

// Format prints "[redacted]" for every verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "[redacted]") }

// LogValue prints "[redacted]" in structured logs.
func (Key) LogValue() slog.Value { return slog.StringValue("[redacted]") }
