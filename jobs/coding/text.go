package coding

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
