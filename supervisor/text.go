package supervisor

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// maxQuoted bounds foreign text in a log line.
const maxQuoted = 200

// cut bounds a text by code points.
func cut(s string, most int) string { return protocol.CutText(s, most) }

// quoted makes foreign text fit for a log line: cut, without control characters.
func quoted(s string) string {
	short := []rune(strings.ToValidUTF8(s, "\uFFFD"))
	if len(short) > maxQuoted {
		short = short[:maxQuoted]
	}
	return strings.Trim(strconv.Quote(string(short)), `"`)
}

// oneLine makes foreign text fit for a terminal and for a beat's message.
func oneLine(s string, most int) string {
	mapped := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "\uFFFD"))
	runes := []rune(strings.Join(strings.Fields(mapped), " "))
	return string(runes[:min(len(runes), most)])
}
