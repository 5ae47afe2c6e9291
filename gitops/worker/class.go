package worker

import "strings"

// class matches one byte against the bracket expression at g and gives the
// place behind it, 0 when it has no end.
func (m *matcher) class(g int, b byte) (next int, hit bool) {
	i := g + 1
	negated := i < len(m.glob) && (m.glob[i] == '!' || m.glob[i] == '^')
	if negated {
		i++
	}
	for first := true; ; first = false {
		if i >= len(m.glob) {
			return 0, false
		}
		if m.glob[i] == ']' && !first {
			return i + 1, hit != negated
		}
		var in bool
		if i, in = m.member(i, b); i == 0 {
			return 0, false
		}
		hit = hit || in
	}
}

// member matches one element: a byte, a range or a named class.
func (m *matcher) member(i int, b byte) (next int, in bool) {
	if name, ok := strings.CutPrefix(m.glob[i:], "[:"); ok {
		if end := strings.IndexByte(name, ']'); end > 0 && name[end-1] == ':' {
			test, known := named[name[:end-1]]
			if !known {
				return 0, false
			}
			return i + 2 + end + 1, test(b)
		}
	}
	low, i, ok := m.literal(i)
	if !ok {
		return 0, false
	}
	if i+1 >= len(m.glob) || m.glob[i] != '-' || m.glob[i+1] == ']' {
		return i, b == low
	}
	high, i, ok := m.literal(i + 1)
	if !ok {
		return 0, false
	}
	return i, low <= b && b <= high
}

func (m *matcher) literal(i int) (b byte, next int, ok bool) {
	if m.glob[i] == '\\' {
		i++
	}
	if i >= len(m.glob) {
		return 0, 0, false
	}
	return m.glob[i], i + 1, true
}

func lower(b byte) bool { return 'a' <= b && b <= 'z' }
func upper(b byte) bool { return 'A' <= b && b <= 'Z' }
func digit(b byte) bool { return '0' <= b && b <= '9' }
func graph(b byte) bool { return 0x20 < b && b < 0x7f }
func alnum(b byte) bool { return lower(b) || upper(b) || digit(b) }

// named are POSIX's classes over ASCII, as git has them.
var named = map[string]func(byte) bool{
	"alnum": alnum,
	"alpha": func(b byte) bool { return lower(b) || upper(b) },
	"blank": func(b byte) bool { return b == ' ' || b == '\t' },
	"cntrl": func(b byte) bool { return b < 0x20 || b == 0x7f },
	"digit": digit,
	"graph": graph,
	"lower": lower,
	"print": func(b byte) bool { return graph(b) || b == ' ' },
	"punct": func(b byte) bool { return graph(b) && !alnum(b) },
	"space": func(b byte) bool { return strings.IndexByte(" \t\n\r\v\f", b) >= 0 },
	"upper": upper,
	"xdigit": func(b byte) bool {
		return digit(b) || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
	},
}
