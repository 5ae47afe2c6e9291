package worker

import "strings"

// pattern is one line of a .gitignore (man page gitignore).
type pattern struct {
	glob     string
	negated  bool // the line began with "!"
	dirOnly  bool // the line ended with "/"
	anchored bool // a slash inside: matched against the whole path below its file
}

// maxLine bounds a pattern, in bytes; a longer one is left out.
const maxLine = 4096

// parseIgnore reads all lines. One carriage return before the line's end and a
// byte order mark at the start are dropped, as git does.
func parseIgnore(text string) []pattern {
	var out []pattern
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if p, ok := parsePattern(line); ok {
			out = append(out, p)
		}
	}
	return out
}

func parsePattern(line string) (p pattern, ok bool) {
	line = trimSpaces(strings.TrimSuffix(line, "\r"))
	if line == "" || line[0] == '#' || len(line) > maxLine {
		return p, false
	}
	if line[0] == '!' {
		p.negated, line = true, line[1:]
	}
	if strings.HasSuffix(line, "/") {
		p.dirOnly, line = true, line[:len(line)-1]
	}
	p.anchored = strings.Contains(line, "/")
	p.glob = strings.TrimPrefix(line, "/")
	return p, true
}

// trimSpaces cuts spaces off the end unless a backslash holds them.
func trimSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
			end = min(i+1, len(s))
		case s[i] != ' ':
			end = i + 1
		}
	}
	return s[:end]
}

func (p pattern) match(path string, isDir bool) bool {
	if p.dirOnly && !isDir {
		return false
	}
	if !p.anchored {
		return wildmatch(p.glob, path[strings.LastIndexByte(path, '/')+1:])
	}
	// Git compares the plain start first and globs only what is left, so that
	// "**" behind it counts as the pattern's start.
	plain := strings.IndexAny(p.glob, `*?[\`)
	if plain < 0 {
		return p.glob == path
	}
	rest, ok := strings.CutPrefix(path, p.glob[:plain])
	return ok && wildmatch(p.glob[plain:], rest)
}

// wildmatch is git's glob: "*" and "?" stop at "/", "**" between slashes does
// not, "[...]" is a class. It remembers where it failed behind a star, so that
// its time is bounded whatever the pattern.
func wildmatch(glob, text string) bool {
	m := matcher{glob: glob, text: text}
	return m.match(0, 0)
}

type matcher struct {
	glob, text string
	failed     []uint64 // a bit for each place behind a star and each of text
}

func (m *matcher) match(g, t int) bool {
	for g < len(m.glob) && m.glob[g] != '*' {
		if t == len(m.text) {
			return false
		}
		next, hit := m.one(g, m.text[t])
		if !hit {
			return false
		}
		g, t = next, t+1
	}
	if g == len(m.glob) {
		return t == len(m.text)
	}
	return m.star(g, t)
}

// one matches everything but a star against one byte.
func (m *matcher) one(g int, b byte) (next int, hit bool) {
	switch c := m.glob[g]; c {
	case '?':
		return g + 1, b != '/'
	case '[':
		next, hit := m.class(g, b)
		return next, hit && b != '/'
	case '\\':
		return g + 2, g+1 < len(m.glob) && m.glob[g+1] == b
	default:
		return g + 1, c == b
	}
}

// star matches a run of stars. Two of them that fill the space between slashes
// cross directories; with a slash behind them they may stand for nothing.
func (m *matcher) star(g, t int) bool {
	end := g
	for end < len(m.glob) && m.glob[end] == '*' {
		end++
	}
	whole := end-g >= 2 && (g == 0 || m.glob[g-1] == '/') &&
		(end == len(m.glob) || m.glob[end] == '/' || strings.HasPrefix(m.glob[end:], "\\/"))
	if whole && end < len(m.glob) && m.glob[end] == '/' && m.retry(end+1, t) {
		return true
	}
	for ; ; t++ {
		if m.retry(end, t) {
			return true
		}
		if t == len(m.text) || (m.text[t] == '/' && !whole) {
			return false
		}
	}
}

func (m *matcher) retry(g, t int) bool {
	if m.failed == nil {
		m.failed = make([]uint64, (len(m.glob)+1)*(len(m.text)+1)/64+1)
	}
	at := g*(len(m.text)+1) + t
	word, bit := &m.failed[at/64], uint64(1)<<(at%64)
	if *word&bit != 0 {
		return false
	}
	if m.match(g, t) {
		return true
	}
	*word |= bit
	return false
}
