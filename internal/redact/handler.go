package redact

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// logHandler takes secrets out of records before the next handler sees them.
type logHandler struct {
	set  *Set
	next slog.Handler
}

var _ slog.Handler = logHandler{}

// Handler returns a handler of logs that gives next every record without the
// secrets of s: in the message, in names and in values of every kind.
func (s *Set) Handler(next slog.Handler) slog.Handler {
	return logHandler{set: s, next: next}
}

// Enabled asks the next handler.
func (h logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle passes a cleaned copy of the record on.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, h.set.String(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.attr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

// WithAttrs cleans the attributes once.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return logHandler{set: h.set, next: h.next.WithAttrs(clean)}
}

// WithGroup passes the group on.
func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{set: h.set, next: h.next.WithGroup(h.set.String(name))}
}

func (h logHandler) attr(a slog.Attr) slog.Attr {
	return slog.Attr{Key: h.set.String(a.Key), Value: h.value(a.Value.Resolve())}
}

func (h logHandler) value(v slog.Value) slog.Value {
	switch v.Kind() {
	case slog.KindString:
		return slog.StringValue(h.set.String(v.String()))
	case slog.KindGroup:
		attrs := v.Group()
		clean := make([]slog.Attr, len(attrs))
		for i, a := range attrs {
			clean[i] = h.attr(a)
		}
		return slog.GroupValue(clean...)
	case slog.KindAny:
		return h.any(v)
	}
	return v
}

// any lets a value pass whose texts, as a handler of either kind would write
// them, hold no secret; else its cleaned text takes its place.
func (h logHandler) any(v slog.Value) slog.Value {
	// An error has no fields for encoding/json, only its text.
	if asJSON, err := json.Marshal(v.Any()); err == nil && h.set.Contains(asJSON) {
		return slog.StringValue(string(h.set.Bytes(asJSON)))
	}
	text := fmt.Sprintf("%+v", v.Any())
	if h.set.Contains([]byte(text)) {
		return slog.StringValue(h.set.String(text))
	}
	return v
}
