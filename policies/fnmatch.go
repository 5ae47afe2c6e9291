package policies

import (
	"slices"
	"unicode/utf8"
)

// pattern is a compiled wildcard text with the meaning of Python's
// fnmatch.fnmatchcase: "*" is any run of characters, "/" included, "?" any one,
// "[ab-d]" one of a set, "[!ab]" one outside it, and a "[" that is never closed
// stands for itself.
type pattern []token

type token struct {
	kind   tokenKind
	char   rune
	negate bool
	ranges [][2]rune // both ends included
}

type tokenKind uint8

const (
	tokenChar tokenKind = iota
	tokenAny
	tokenStar
	tokenSet
)

// compilePattern never fails: every text is a pattern to fnmatch.
func compilePattern(text string) pattern {
	in := []rune(text)
	var p pattern
	for i := 0; i < len(in); {
		switch in[i] {
		case '*':
			// A run of stars is one star; keeping one bounds the matching.
			if len(p) == 0 || p[len(p)-1].kind != tokenStar {
				p = append(p, token{kind: tokenStar})
			}
		case '?':
			p = append(p, token{kind: tokenAny})
		case '[':
			if end := setEnd(in, i+1); end >= 0 {
				p = append(p, compileSet(in[i+1:end]))
				i = end
				break
			}
			fallthrough
		default:
			p = append(p, token{kind: tokenChar, char: in[i]})
		}
		i++
	}
	return p
}

// setEnd returns the index of the "]" that closes the set whose content begins
// at from, or -1. A "]" in the first place belongs to the set.
func setEnd(in []rune, from int) int {
	j := from
	if j < len(in) && in[j] == '!' {
		j++
	}
	if j < len(in) && in[j] == ']' {
		j++
	}
	for ; j < len(in); j++ {
		if in[j] == ']' {
			return j
		}
	}
	return -1
}

// compileSet reads the content of a set as Python's fnmatch.translate does:
// split at the hyphens that can be ranges, then drop the ranges that are empty,
// together with their two ends.
func compileSet(in []rune) token {
	t := token{kind: tokenSet}
	chunks := setChunks(in)
	for k := len(chunks) - 1; k > 0; k-- {
		before, after := chunks[k-1], chunks[k]
		if before[len(before)-1] > after[0] {
			chunks[k-1] = slices.Concat(before[:len(before)-1], after[1:])
			chunks = slices.Delete(chunks, k, k+1)
		}
	}
	if len(chunks[0]) > 0 && chunks[0][0] == '!' {
		t.negate = true
		chunks[0] = chunks[0][1:]
	}
	for k, chunk := range chunks {
		for i, r := range chunk {
			switch {
			case i == len(chunk)-1 && k < len(chunks)-1: // the range's lower end
				t.ranges = append(t.ranges, [2]rune{r, chunks[k+1][0]})
			case i > 0 || k == 0:
				t.ranges = append(t.ranges, [2]rune{r, r})
			}
		}
	}
	return t
}

// setChunks cuts a set's content at each hyphen that has a character on both
// sides; the parts on both sides of a cut are the ends of a range.
func setChunks(in []rune) [][]rune {
	var chunks [][]rune
	start, k := 0, 1
	if in[0] == '!' {
		k = 2
	}
	for k < len(in) {
		at := slices.Index(in[k:], '-')
		if at < 0 {
			break
		}
		k += at
		chunks = append(chunks, in[start:k])
		start, k = k+1, k+3
	}
	if start < len(in) || len(chunks) == 0 {
		return append(chunks, in[start:])
	}
	last := len(chunks) - 1
	chunks[last] = append(slices.Clone(chunks[last]), '-')
	return chunks
}

func (t token) matches(r rune) bool {
	switch t.kind {
	case tokenChar:
		return r == t.char
	case tokenSet:
		in := slices.ContainsFunc(t.ranges, func(x [2]rune) bool { return r >= x[0] && r <= x[1] })
		return in != t.negate
	}
	return true
}

// match says whether the pattern matches the whole text. On a mismatch it goes
// back to the last star only, so that no pattern takes more than the product of
// both lengths.
func (p pattern) match(text string) bool {
	at, star, resume := 0, -1, 0
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case at < len(p) && p[at].kind == tokenStar:
			star, resume = at, i
			at++
		case at < len(p) && p[at].matches(r):
			at++
			i += n
		case star >= 0:
			_, n = utf8.DecodeRuneInString(text[resume:])
			resume += n
			at, i = star+1, resume
		default:
			return false
		}
	}
	for at < len(p) && p[at].kind == tokenStar {
		at++
	}
	return at == len(p)
}
