package protocol

import (
	"fmt"
	"unicode/utf8"
)

// CutText returns s if it has at most limit code points; else its first third
// and its last two thirds with a line between them that says how much is
// missing, limit code points in all. The end counts for more, because that is
// where test runners report. A limit without room for the line cuts hard.
func CutText(s string, limit int) string {
	limit = max(limit, 0)
	// A string never has more code points than bytes.
	if len(s) <= limit {
		return s
	}
	total := utf8.RuneCountInString(s)
	if total <= limit {
		return s
	}
	marker := cutMarker(total - limit)
	room := limit - utf8.RuneCountInString(marker)
	if room < 3 {
		return s[:runeIndex(s, limit)]
	}
	// The marker itself takes room, so that more is missing than was over.
	marker = cutMarker(total - room)
	room = limit - utf8.RuneCountInString(marker)
	head := room / 3
	tail := room - head
	return s[:runeIndex(s, head)] + marker + s[runeIndex(s, total-tail):]
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
