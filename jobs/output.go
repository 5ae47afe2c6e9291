package jobs

import (
	"bytes"
	"fmt"
	"io"
)

// headTail keeps the first and the last half of limit bytes of what is
// written, and says how much is missing between them.
type headTail struct {
	half    int
	head    []byte
	tail    []byte
	dropped int64
}

func newHeadTail(limit int) *headTail { return &headTail{half: max(limit/2, 1)} }

// Write never fails: a flood of output is never an error of ours.
func (h *headTail) Write(p []byte) (int, error) {
	n := len(p)
	if room := h.half - len(h.head); room > 0 {
		take := min(room, len(p))
		h.head = append(h.head, p[:take]...)
		p = p[take:]
	}
	h.tail = append(h.tail, p...)
	if len(h.tail) > 2*h.half { // in batches: a copy for each write would be slow
		over := len(h.tail) - h.half
		h.dropped += int64(over)
		h.tail = append(h.tail[:0], h.tail[over:]...)
	}
	return n, nil
}

// String returns head and tail with a line that marks what was left out.
func (h *headTail) String() string {
	tail, dropped := h.tail, h.dropped
	if over := len(tail) - h.half; over > 0 && dropped > 0 {
		tail, dropped = tail[over:], dropped+int64(over)
	}
	if dropped == 0 {
		return string(h.head) + string(tail)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", h.head, dropped, tail)
}

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
