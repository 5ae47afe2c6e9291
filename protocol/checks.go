package protocol

import (
	"strings"
	"time"
	"unicode/utf8"
)

// checks keeps the first broken rule of a task. The rules can then stand below
// each other, and every one of them is looked at in one place.
type checks struct {
	err error
}

// that notes a broken rule unless ok.
func (c *checks) that(ok bool, field, why string) {
	if !ok && c.err == nil {
		c.err = &TaskError{Field: field, Why: why}
	}
}

func (c *checks) uuid(field, s string) string {
	id, err := ParseUUID(s)
	c.that(err == nil, field, "not a lower-case uuid")
	return id
}

// token takes what can stand in a header and in JSON without escapes.
func (c *checks) token(field, s string) {
	c.that(s != "", field, "missing")
	c.that(len(s) <= MaxLeaseTokenBytes, field, "too long")
	c.that(!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }), field,
		"holds white space or a character that is not ascii")
}

// text takes valid UTF-8 of a bounded number of bytes without U+0000. Decode
// has checked that already; tasks read back from our own files come here, too.
func (c *checks) text(field, s string, least, most int) {
	c.that(len(strings.TrimSpace(s)) >= least, field, "missing or empty")
	c.that(len(s) <= most, field, "too long")
	c.that(utf8.ValidString(s) && strings.IndexByte(s, 0) < 0, field, "not valid text")
}

func (c *checks) branch(field, s string) {
	c.that(ValidBranch(s), field, "not a valid branch")
}

// instant takes RFC 3339 with an offset in a sensible year (attack case G07).
// time.Parse refuses a time without offset.
func (c *checks) instant(field, s string) time.Time {
	at, err := time.Parse(time.RFC3339, s)
	c.that(err == nil, field, "not a time with offset")
	c.that(err != nil || at.Year() >= 2000 && at.Year() < 9000, field, "not a sensible year")
	return at
}

// relative takes a clean relative path below the root: no "..", no back slash,
// no white space at its ends, nothing in .git.
func (c *checks) relative(field, path string) {
	c.text(field, path, 1, MaxPathBytes)
	ok := path == strings.TrimSpace(path) && !strings.ContainsFunc(path, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '\\'
	})
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") || len(part) > 255 {
			ok = false
		}
	}
	c.that(ok, field, "not a clean relative path")
}
