// Package headtail keeps the beginning and the end of a stream of any length in
// bounded memory. Start reading at Buffer.
package headtail

import "fmt"

// Buffer keeps the first and the last half of its limit of what is written, and
// says how much is missing between them. It may not be used by two goroutines
// at once.
type Buffer struct {
	half    int
	head    []byte
	tail    []byte
	dropped int64
}

// New makes a Buffer that keeps limit bytes.
func New(limit int) *Buffer { return &Buffer{half: max(limit/2, 1)} }

// Write never fails: a flood of output is never an error of ours.
func (b *Buffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.half - len(b.head); room > 0 {
		take := min(room, len(p))
		b.head = append(b.head, p[:take]...)
		p = p[take:]
	}
	b.tail = append(b.tail, p...)
	if len(b.tail) > 2*b.half { // in batches: a copy for each write would be slow
		b.cut()
	}
	return n, nil
}

// cut drops what is too much of the tail.
func (b *Buffer) cut() {
	over := len(b.tail) - b.half
	b.dropped += int64(over)
	b.tail = append(b.tail[:0], b.tail[over:]...)
}

// String returns head and tail with a line that marks what was left out.
func (b *Buffer) String() string {
	if b.dropped > 0 && len(b.tail) > b.half {
		b.cut()
	}
	if b.dropped == 0 {
		return string(b.head) + string(b.tail)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", b.head, b.dropped, b.tail)
}
