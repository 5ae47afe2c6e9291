package jobs

import (
	"bytes"
	"io"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
)

// keep holds the first limit bytes and swallows the rest.
type keep struct {
	bytes.Buffer
	left int
}

func newKeep(limit int) *keep { return &keep{left: limit} }

func (k *keep) Write(p []byte) (int, error) {
	n := min(len(p), k.left)
	k.left -= n
	k.Buffer.Write(p[:n])
	return len(p), nil
}

// tee writes to both; neither fails.
type tee struct{ a, b io.Writer }

func (t tee) Write(p []byte) (int, error) {
	_, _ = t.a.Write(p)
	_, _ = t.b.Write(p)
	return len(p), nil
}

// shownHead and shownRest bound what the record shows of one command's output,
// in bytes: a flood must not take the room of what is said after it.
const (
	shownHead = 256 << 10
	shownRest = 256 << 10
)

// shown passes the beginning of a command's output on to the record as it
// comes, and the end of a long one once the command is over. Its Write never
// fails.
type shown struct {
	record io.Writer
	left   int // of the beginning
	rest   *headtail.Buffer
}

func newShown(record io.Writer) *shown {
	return &shown{record: record, left: shownHead, rest: headtail.New(shownRest)}
}

func (s *shown) Write(p []byte) (int, error) {
	n := min(len(p), s.left)
	s.left -= n
	if n > 0 {
		_, _ = s.record.Write(p[:n])
	}
	if n < len(p) {
		_, _ = s.rest.Write(p[n:])
	}
	return len(p), nil
}

// finish passes on what was held back, marked where something is missing.
func (s *shown) finish() { _, _ = io.WriteString(s.record, s.rest.String()) }
