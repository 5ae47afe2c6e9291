package policies

import (
	"bytes"
	"strings"
)

// maxTOMLNesting bounds brackets within brackets and the dots of one key. The
// TOML module takes time and memory by the square of either: a hundred
// kilobytes of "[" would else end the process.
const maxTOMLNesting = 32

// boundedTOML says whether a TOML text is shallow enough to be parsed. It reads
// strings and comments as TOML does, so that nothing can hide in them; a text
// that is no TOML may get either answer.
func boundedTOML(text []byte) bool {
	depth, dots := 0, 0
	for len(text) > 0 {
		skip := 1
		switch c := text[0]; c {
		case '#':
			if skip = bytes.IndexByte(text, '\n'); skip < 0 {
				skip = len(text)
			}
		case '"', '\'':
			skip = tomlString(text, c)
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(0, depth-1)
		case '.':
			dots++
		case '\n', '=', ',':
			dots = 0
		}
		if depth > maxTOMLNesting || dots > maxTOMLNesting {
			return false
		}
		text = text[skip:]
	}
	return true
}

// tomlString returns the length of the string that the text begins with. One
// that isn't closed goes to the end of its line, or of the text.
func tomlString(text []byte, quote byte) int {
	long := strings.Repeat(string(quote), 3)
	multi := bytes.HasPrefix(text, []byte(long))
	i := 1
	if multi {
		i = 3
	}
	for i < len(text) {
		switch {
		case quote == '"' && text[i] == '\\':
			i++
		case !multi && text[i] == '\n':
			return i
		case !multi && text[i] == quote:
			return i + 1
		case multi && bytes.HasPrefix(text[i:], []byte(long)):
			// Up to two quotes before the closing three belong to the string.
			i += 3
			for extra := 0; extra < 2 && i < len(text) && text[i] == quote; extra++ {
				i++
			}
			return i
		}
		i++
	}
	return len(text)
}
