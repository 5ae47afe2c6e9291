package policies

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// errWords is the one reason why a text can't be split.
var errWords = errors.New("quote or escape is not closed")

// word is one argument, with what a shell would have seen in it.
type word struct {
	text string
	// operator says that an unquoted character in it, or an expansion outside
	// single quotes, would have had a meaning to a shell.
	operator bool
}

// splitter follows Python's shlex.split (posix, no comments) character by
// character, and notes on the way what only a real shell would act upon.
type splitter struct {
	words   []word
	current strings.Builder
	inWord  bool // a word has begun, though it may be empty ('')
	special bool
	quote   rune // ' or " inside quotes, else 0
}

const (
	shlexSpace = " \t\r\n"
	// shellOperators end, join or redirect commands; a newline ends one.
	shellOperators = ";|&<>()\n\r"
)

// splitWords returns the words of a command as Python's shlex.split does.
func splitWords(command string) ([]word, error) {
	var s splitter
	escaped := false
	for i, r := range command {
		switch {
		case escaped:
			s.escape(r)
			escaped = false
		case r == '\\' && s.quote != '\'':
			escaped, s.inWord = true, true
		case s.quote != 0:
			s.quoted(r, command[i:])
		default:
			s.plain(r, command[i:])
		}
	}
	if escaped || s.quote != 0 {
		return nil, errWords
	}
	s.end()
	return s.words, nil
}

// escape takes the character after a backslash; within double quotes only a
// quote and a backslash lose the backslash.
func (s *splitter) escape(r rune) {
	if s.quote == '"' && r != '"' && r != '\\' {
		s.current.WriteByte('\\')
	}
	s.current.WriteRune(r)
}

func (s *splitter) quoted(r rune, rest string) {
	if r == s.quote {
		s.quote = 0
		return
	}
	s.special = s.special || s.quote == '"' && expands(rest)
	s.current.WriteRune(r)
}

func (s *splitter) plain(r rune, rest string) {
	// A line end between words is a space to shlex and the end of a command to
	// a shell: it taints the word before it.
	s.special = s.special || strings.ContainsRune(shellOperators, r) || expands(rest)
	switch {
	case strings.ContainsRune(shlexSpace, r):
		s.end()
	case r == '\'' || r == '"':
		s.quote, s.inWord = r, true
	default:
		s.inWord = true
		s.current.WriteRune(r)
	}
}

// expands says whether a shell would run or insert something at the start of
// the text. A "$" before anything else is kept: it ends regular expressions.
func expands(rest string) bool {
	return rest[0] == '`' || strings.HasPrefix(rest, "$(") || strings.HasPrefix(rest, "${")
}

func (s *splitter) end() {
	if s.inWord {
		s.words = append(s.words, word{s.current.String(), s.special})
	} else if s.special && len(s.words) > 0 {
		s.words[len(s.words)-1].operator = true
	}
	s.current.Reset()
	s.inWord, s.special = false, false
}

// validText says whether a command is text at all.
func validText(command string) bool {
	return utf8.ValidString(command) && !strings.ContainsRune(command, 0)
}
