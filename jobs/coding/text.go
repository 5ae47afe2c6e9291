package coding

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// headTail keeps the first half and the last half of what is written to it.
type headTail struct {
	limit   int
	head    []byte
	tail    []byte
	dropped int64
}

func newHeadTail(limit int) *headTail { return &headTail{limit: limit} }

// Write never fails; a command's output is never an error of ours.
func (h *headTail) Write(p []byte) (int, error) {
	n := len(p)
	room := h.limit/2 - len(h.head)
	if room > 0 {
		take := min(room, len(p))
		h.head = append(h.head, p[:take]...)
		p = p[take:]
	}
	h.tail = append(h.tail, p...)
	if over := len(h.tail) - h.limit/2; over > h.limit/2 {
		h.dropped += int64(over)
		h.tail = append(h.tail[:0], h.tail[over:]...)
	}
	return n, nil
}

// String marks what was left out.
func (h *headTail) String() string {
	if h.dropped == 0 {
		return string(h.head) + string(h.tail)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", h.head, h.dropped, h.tail)
}

// Observe makes a stranger's text fit for a prompt: valid UTF-8, no control
// characters but line ends and tabs, head and tail within 10,000 bytes.
func Observe(s string) string {
	s = strings.Map(printable, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxObservation {
		return s
	}
	head, tail := cutAt(s, maxObservation/2), s[len(s)-maxObservation/2:]
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", head, len(s)-len(head)-len(tail), tail)
}

func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return -1
	}
	return r
}

// cutAt cuts to at most n bytes without splitting a character.
func cutAt(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
