package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// maxEnvFile bounds an env file, in bytes.
const maxEnvFile = 64 << 10

// assignment is one NAME=value of an env file or of the environment.
type assignment struct{ name, value string }

// readEnvFile applies the names of an .env file as the reference runtime reads
// it. The environment is read after it and wins.
func (s *Settings) readEnvFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: --env-file: %w", errSettings, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	if err != nil || len(text) > maxEnvFile {
		return fmt.Errorf("%w: --env-file: %s can't be read or is over 64 KiB", errSettings, path)
	}
	found, err := parseEnvFile(string(text))
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errSettings, path, err)
	}
	s.envFile = path
	s.noteOpenKey(file, found)
	return s.readNames(found)
}

// noteOpenKey: the key in such a file is as secret as a key file.
func (s *Settings) noteOpenKey(file *os.File, found []assignment) {
	st, err := file.Stat()
	if err != nil || st.Mode().Perm()&0o077 == 0 {
		return
	}
	for _, a := range found {
		if a.name == "AI_API_KEY" && a.value != "" && a.value != keyPlaceholder {
			s.note("%s holds AI_API_KEY and others than its owner may read it: chmod 0600", file.Name())
			return
		}
	}
}

// envError names the line where an env file can't be read.
type envError struct {
	line int
	why  string
}

func (e *envError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.why) }

// parseEnvFile reads NAME=value lines: an "export" before them, white space
// around "=", comments behind white space, values in single quotes (\' and \\
// mean ' and \) or double quotes (the usual escapes), which may span lines.
// Nothing is run and nothing is replaced: "$" is a letter like others. A name
// without "=" sets nothing. Of a name that comes twice the later value counts.
func parseEnvFile(text string) ([]assignment, error) {
	text = strings.TrimPrefix(text, "\uFEFF")
	if strings.ContainsRune(text, 0) {
		return nil, &envError{1, "there is a NUL in it: this is no text"}
	}
	r := &envReader{rest: strings.ReplaceAll(text, "\r\n", "\n"), line: 1}
	var found []assignment
	for r.rest != "" {
		a, err := r.next()
		if err != nil {
			return nil, err
		}
		if a.name != "" {
			found = append(found, a)
		}
	}
	return found, nil
}

// envReader is what is left of an env file, and the line where that begins.
type envReader struct {
	rest string
	line int
}

// next reads one line, or more where a quoted value spans them. The name is
// empty if nothing is set.
func (r *envReader) next() (assignment, error) {
	line, _, _ := strings.Cut(r.rest, "\n")
	statement := strings.TrimSpace(line)
	if statement == "" || statement[0] == '#' {
		r.skip(len(line))
		return assignment{}, nil
	}
	before, _, assigned := strings.Cut(line, "=")
	name := strings.TrimSpace(before)
	if words := strings.Fields(before); len(words) == 2 && words[0] == "export" {
		name = words[1]
	}
	if !assigned {
		name, _, _ = strings.Cut(strings.TrimPrefix(statement, "export "), "#")
		name = strings.TrimSpace(name)
	}
	if !envName(name) {
		return assignment{}, &envError{r.line, "this is no NAME=value"}
	}
	if !assigned {
		r.skip(len(line))
		return assignment{}, nil
	}
	r.rest = r.rest[len(before)+1:]
	value, err := r.value(line[len(before)+1:])
	return assignment{name, value}, err
}

// skip passes over n bytes and the end of the line after them.
func (r *envReader) skip(n int) {
	r.line += strings.Count(r.rest[:n], "\n")
	r.rest = r.rest[n:]
	if strings.HasPrefix(r.rest, "\n") {
		r.rest = r.rest[1:]
		r.line++
	}
}

// value reads what stands behind "=", of which line is the first line.
func (r *envReader) value(line string) (string, error) {
	if start := strings.TrimLeft(line, " \t"); start != "" && (start[0] == '\'' || start[0] == '"') {
		r.rest = r.rest[len(line)-len(start):]
		return r.quoted(start[0])
	}
	r.skip(len(line))
	for i, c := range line {
		if c == '#' && i > 0 && (line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(line), nil
}

// escapes are those of double quotes.
var escapes = map[byte]byte{
	'n': '\n', 'r': '\r', 't': '\t', 'a': '\a', 'b': '\b', 'f': '\f', 'v': '\v', '"': '"', '\'': '\'', '\\': '\\',
}

// quoted reads up to the closing quote, behind which only a comment may stand.
func (r *envReader) quoted(quote byte) (string, error) {
	var value strings.Builder
	for i := 1; i < len(r.rest); i++ {
		switch c := r.rest[i]; {
		case c == quote:
			return value.String(), r.closed(i + 1)
		case c == '\\' && i+1 < len(r.rest):
			next := r.rest[i+1]
			meant, known := escapes[next]
			if quote == '\'' {
				meant, known = next, next == '\'' || next == '\\'
			}
			if !known {
				value.WriteByte(c)
				continue
			}
			value.WriteByte(meant)
			i++
		default:
			value.WriteByte(c)
		}
	}
	return "", &envError{r.line, "the quote is not closed"}
}

// closed ends a quoted value of n bytes.
func (r *envReader) closed(n int) error {
	behind, _, _ := strings.Cut(r.rest[n:], "\n")
	if text := strings.TrimSpace(behind); text != "" && text[0] != '#' {
		return &envError{r.line, "something stands behind the closing quote"}
	}
	r.skip(n + len(behind))
	return nil
}

// envName tells whether a name is one that an environment may hold.
func envName(name string) bool {
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && (c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c))
	})
}

// errControl refuses values that no setting can have.
var errControl = errors.New("the value holds control characters")

// plainValue is a value without the white space around it.
func plainValue(value string) (string, error) {
	value = strings.TrimSpace(value)
	if strings.ContainsFunc(value, unicode.IsControl) {
		return "", errControl
	}
	return value, nil
}

// otherDefault is a default of the reference runtime that is not ours.
type otherDefault struct {
	name, theirs string
	ours         func(*Settings) string
}

var otherDefaults = []otherDefault{
	{"RUNTIME_BIND_HOST", "127.0.0.1", func(s *Settings) string { host, _, _ := strings.Cut(s.Public.Listen, ":"); return host }},
	{"RUNTIME_PUBLIC_HOST", "localhost", func(s *Settings) string { return orWord(s.Public.Host, "the name of this host") }},
	{"CONNECTION_LINK_TTL_SECONDS", "86400", func(s *Settings) string { return wholeSeconds(s.Public.LinkTTL) }},
	{"AI_PROVIDER", "a provider of its own", func(s *Settings) string { return s.provider() }},
	{"AI_BASE_URL", "its provider's", func(s *Settings) string { return orWord(s.Provider.BaseURL, "none: set it") }},
	{"AI_MODEL", "its provider's", func(s *Settings) string { return orWord(s.Provider.Model, "none: set it") }},
	{"VEYRA_MODEL_TIMEOUT_SECONDS", "240", func(s *Settings) string { return wholeSeconds(s.Provider.Timeout) }},
	{"VEYRA_MODEL_CONTEXT_CHARACTERS", "180000", func(s *Settings) string { return strconv.Itoa(s.Provider.ContextCharacters) }},
}

func orWord(text, word string) string {
	if text == "" {
		return word
	}
	return text
}

func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// noteDefaults says once which settings mean something else than under the
// reference runtime, whose file was given: those that nobody has set.
func (s *Settings) noteDefaults() {
	if s.envFile == "" {
		return
	}
	standard := defaultSettings()
	var differ []string
	for _, d := range otherDefaults {
		if ours := d.ours(s); !s.named[d.name] && ours == d.ours(standard) && ours != d.theirs {
			differ = append(differ, fmt.Sprintf("%s %s (there: %s)", d.name, ours, d.theirs))
		}
	}
	if len(differ) > 0 {
		s.note("%s leaves out settings whose defaults here are not the reference runtime's: %s", s.envFile, strings.Join(differ, ", "))
	}
}
