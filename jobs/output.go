package jobs

import (
	"bytes"
	"io"
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
