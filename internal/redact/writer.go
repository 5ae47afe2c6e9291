package redact

import (
	"fmt"
	"io"
)

// Writer replaces secrets in a stream, also where they come in pieces. Its
// methods may not run at once.
type Writer struct {
	set *Set
	out io.Writer
	// pending is what may still turn out to be the beginning of a secret.
	pending []byte
	// covered is how many bytes at the front of pending belong to secrets that
	// are found already.
	covered int
	err     error
}

// Writer returns a stream that writes to out what it gets, without secrets. It
// holds back what may be the beginning of one until more comes, or Close.
func (s *Set) Writer(out io.Writer) *Writer {
	return &Writer{set: s, out: out}
}

// Write takes all of p, or fails with the error of the stream below, which then
// stays.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.pending = append(w.pending, p...)
	if err := w.pass(false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes what was held back. It does not close the stream below, and a
// second call does nothing.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	return w.pass(true)
}

// pass writes everything that is decided: at the end of the stream all of it.
func (w *Writer) pass(final bool) error {
	ix := w.set.index()
	limit := len(w.pending)
	if !final {
		limit = ix.undecided(w.pending)
	}
	clean := w.sift(ix, limit)
	w.covered = max(w.covered-limit, 0)
	w.pending = append(w.pending[:0], w.pending[limit:]...)
	if len(clean) == 0 {
		return nil
	}
	if _, err := w.out.Write(clean); err != nil {
		w.err = fmt.Errorf("writing redacted stream: %w", err)
	}
	return w.err
}

// sift returns the first limit bytes of pending with secrets replaced. Where
// secrets overlap, all of what they cover becomes one marker: cutting only the
// first would show the rest of the second. covered counts from the front of
// pending throughout.
func (w *Writer) sift(ix *index, limit int) []byte {
	var clean []byte
	for i := range limit {
		n := ix.longest(w.pending[i:])
		if i >= w.covered {
			if n == 0 {
				clean = append(clean, w.pending[i])
				continue
			}
			clean = append(clean, Marker...)
			w.set.found.Add(1)
		}
		w.covered = max(w.covered, i+n)
	}
	return clean
}

// undecided returns where the first beginning of a form stands that reaches the
// end of text, or its length.
func (ix *index) undecided(text []byte) int {
	for i := max(0, len(text)-ix.maxLen+1); i < len(text); i++ {
		if ix.begins(text[i:]) {
			return i
		}
	}
	return len(text)
}
