package jobs

import (
	"log/slog"
	"sync"
	"time"
)

// steps notes when each part of an execution began and how long it took. Parts
// overlap, so their times don't add up: what counts is where nothing else runs.
type steps struct {
	origin time.Time // of the offsets

	mu    sync.Mutex // guards what follows; parts run beside each other
	names []string
	spans map[string]span
}

// span is a part's first begin, after the origin, and the sum of its times.
type span struct{ at, took time.Duration }

// step begins a part and returns what ends it. A part that comes again, as in a
// repair, adds its time.
func (s *steps) step(name string) (end func()) {
	began := time.Now()
	return func() {
		took := time.Since(began)
		s.mu.Lock()
		defer s.mu.Unlock()
		before, again := s.spans[name]
		if !again {
			if s.spans == nil {
				s.spans = map[string]span{}
			}
			s.names = append(s.names, name)
			before.at = began.Sub(s.origin)
		}
		s.spans[name] = span{at: before.at, took: before.took + took}
	}
}

// tell logs all parts in one line, in milliseconds.
func (s *steps) tell(log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at, took []any
	for _, name := range s.names {
		at = append(at, slog.Float64(name, milliseconds(s.spans[name].at)))
		took = append(took, slog.Float64(name, milliseconds(s.spans[name].took)))
	}
	log.Info("steps", slog.Group("at_ms", at...), slog.Group("took_ms", took...))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
