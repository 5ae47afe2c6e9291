package policies

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Casefold returns s as Python's str.casefold does, since the control plane
// compares paths with that function: "ß" becomes "ss", and nothing is
// normalised. Bytes that are not UTF-8 stay as they are.
func Casefold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		piece := s[i : i+n]
		if foldsToItself(r) || r == utf8.RuneError && n == 1 {
			b.WriteString(piece)
		} else {
			b.WriteString(cases.Fold().String(piece))
		}
		i += n
	}
	return b.String()
}

// foldsToItself names the one place where golang.org/x/text differs from
// Unicode's CaseFolding.txt and from Python: Cherokee folds to its upper case.
// A test compares all code points with python3.
func foldsToItself(r rune) bool { return r >= 0x13A0 && r <= 0x13F5 }

// wideFold is Casefold after which also composed and decomposed, full-width and
// other compatible spellings are one. Only what forbids may use it: it makes
// rules cover more than the control plane's comparison does (attack case E12).
func wideFold(s string) string {
	s = strings.Map(visible, s)
	return norm.NFKC.String(Casefold(norm.NFKC.String(Casefold(norm.NFD.String(s)))))
}

// visible drops the characters that some file systems ignore in names.
func visible(r rune) rune {
	switch {
	case r >= 0x200B && r <= 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2060 && r <= 0x206F, r == 0xFEFF:
		return -1
	}
	return r
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isPythonSpace says what Python's str.strip takes off: Unicode white space and
// the four ASCII separators, which Go's unicode.IsSpace leaves.
func isPythonSpace(r rune) bool {
	switch {
	case r >= 0x09 && r <= 0x0D, r >= 0x1C && r <= 0x20, r == 0x85, r == 0xA0:
		return true
	case r == 0x1680, r >= 0x2000 && r <= 0x200A, r == 0x2028, r == 0x2029, r == 0x202F, r == 0x205F, r == 0x3000:
		return true
	}
	return false
}

// pythonStrip is Python's s.strip().
func pythonStrip(s string) string { return strings.TrimFunc(s, isPythonSpace) }
