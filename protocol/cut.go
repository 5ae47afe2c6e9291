package protocol

import (
	"fmt"
	"unicode/utf8"
)

// maxLine is the largest limit that means one line of text rather than an
// output.
const maxLine = 500

// CutText returns s if it has at most limit code points. Else an output is cut
// to its first third and its last two thirds with a line between them that says
// how much is missing: the end counts for more, because that is where test
// runners report. Limits up to 500 are those of names, commands and messages,
// which end with an ellipsis instead. The result never has more than limit code
// points.
func CutText(s string, limit int) string {
	limit = max(limit, 0)
	// A string never has more code points than bytes.
	if len(s) <= limit {
		return s
	}
	total := utf8.RuneCountInString(s)
	switch {
	case total <= limit:
		return s
	case limit == 0:
		return ""
	case limit <= maxLine:
		return s[:runeIndex(s, limit-1)] + "…"
	}
	return cutMiddle(s, total, limit)
}

func cutMiddle(s string, total, limit int) string {
	// The marker takes room itself, so more is missing than was over; a number
	// of one more digit than expected costs one more character.
	room := limit - utf8.RuneCountInString(cutMarker(total))
	head := room / 3
	tail := room - head
	return s[:runeIndex(s, head)] + cutMarker(total-room) + s[runeIndex(s, total-tail):]
}

func cutMarker(missing int) string {
	return fmt.Sprintf("\n[... %d characters left out ...]\n", missing)
}

// runeIndex returns the byte at which code point n of s begins, or len(s).
func runeIndex(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}
