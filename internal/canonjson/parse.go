package canonjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Parse reads one JSON value, written in any form, into strings, json.Number,
// booleans, nil, []any and map[string]any. It refuses what Marshal refuses.
// The caller bounds the number of bytes.
func Parse(text []byte) (any, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("reading json: %w", ErrUTF8)
	}
	p := parser{text: string(text)}
	v, err := p.value(0)
	if err == nil && p.skipSpace() {
		err = ErrSyntax
	}
	if err != nil {
		return nil, fmt.Errorf("reading json at byte %d: %w", p.at, err)
	}
	return v, nil
}

// Canonicalise rewrites JSON of any form in canonical form.
func Canonicalise(text []byte) ([]byte, error) {
	v, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return Marshal(v)
}

// ParseCanonical is Parse for text that must be in canonical form already;
// other JSON is ErrNotCanonical. It is for reading back what was stored to be
// signed, where a byte that changed is a fault and not a matter of style.
func ParseCanonical(text []byte) (any, error) {
	v, err := Parse(text)
	if err != nil {
		return nil, err
	}
	again, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, text) {
		return nil, fmt.Errorf("reading json: %w", ErrNotCanonical)
	}
	return v, nil
}

// parser reads text, which is valid UTF-8, from at onwards.
type parser struct {
	text string
	at   int
}

// skipSpace moves to the next byte that counts and tells whether there is one.
func (p *parser) skipSpace() bool {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
	return p.at < len(p.text)
}

// take moves over c, and space before it, if it comes next.
func (p *parser) take(c byte) bool {
	if p.skipSpace() && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (any, error) {
	if !p.skipSpace() {
		return nil, ErrSyntax
	}
	switch c := p.text[p.at]; {
	case c == '{':
		return p.object(depth + 1)
	case c == '[':
		return p.list(depth + 1)
	case c == '"':
		return p.str()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	return p.word()
}

func (p *parser) word() (any, error) {
	for word, v := range map[string]any{"true": true, "false": false, "null": nil} {
		if strings.HasPrefix(p.text[p.at:], word) {
			p.at += len(word)
			return v, nil
		}
	}
	return nil, ErrSyntax
}

func (p *parser) number() (any, error) {
	rest := p.text[p.at:]
	digits := strings.TrimLeft(rest, "+-.0123456789eE")
	text := rest[:len(rest)-len(digits)]
	if !isInteger(text) {
		return nil, ErrNumber
	}
	p.at += len(text)
	return json.Number(text), nil
}

func (p *parser) list(depth int) (any, error) {
	if depth > MaxDepth {
		return nil, ErrDepth
	}
	p.at++
	list := []any{}
	if p.take(']') {
		return list, nil
	}
	for {
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if p.take(']') {
			return list, nil
		}
		if !p.take(',') {
			return nil, ErrSyntax
		}
	}
}

func (p *parser) object(depth int) (any, error) {
	if depth > MaxDepth {
		return nil, ErrDepth
	}
	p.at++
	object := map[string]any{}
	if p.take('}') {
		return object, nil
	}
	for {
		if err := p.member(object, depth); err != nil {
			return nil, err
		}
		if p.take('}') {
			return object, nil
		}
		if !p.take(',') {
			return nil, ErrSyntax
		}
	}
}

func (p *parser) member(object map[string]any, depth int) error {
	if !p.skipSpace() || p.text[p.at] != '"' {
		return ErrSyntax
	}
	name, err := p.str()
	if err != nil {
		return err
	}
	if _, twice := object[name]; twice {
		return ErrDuplicate
	}
	if !p.take(':') {
		return ErrSyntax
	}
	object[name], err = p.value(depth)
	return err
}

// str reads a string whose quote comes next.
func (p *parser) str() (string, error) {
	p.at++
	var out strings.Builder
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return out.String(), nil
		case c < 0x20:
			return "", ErrSyntax
		case c != '\\':
			p.plain(&out)
		default:
			if err := p.escape(&out); err != nil {
				return "", err
			}
		}
	}
	return "", ErrSyntax
}

// plain copies bytes up to the next one that means something.
func (p *parser) plain(out *strings.Builder) {
	from := p.at
	for p.at < len(p.text) && p.text[p.at] >= 0x20 && p.text[p.at] != '"' && p.text[p.at] != '\\' {
		p.at++
	}
	out.WriteString(p.text[from:p.at])
}

// escape reads one escape sequence, or the two of a surrogate pair.
func (p *parser) escape(out *strings.Builder) error {
	if p.at+1 >= len(p.text) {
		return ErrSyntax
	}
	if p.text[p.at+1] == 'u' {
		r, err := p.unicode()
		out.WriteRune(r)
		return err
	}
	at := strings.IndexByte(`"\/bfnrt`, p.text[p.at+1])
	if at < 0 {
		return ErrSyntax
	}
	out.WriteByte("\"\\/\b\f\n\r\t"[at])
	p.at += 2
	return nil
}

func (p *parser) unicode() (rune, error) {
	first, err := p.hex4()
	switch {
	case err != nil:
		return 0, err
	case first == 0:
		return 0, ErrNUL
	case !utf16.IsSurrogate(first):
		return first, nil
	}
	if !strings.HasPrefix(p.text[p.at:], `\u`) {
		return 0, ErrSurrogate
	}
	second, err := p.hex4()
	if err != nil {
		return 0, err
	}
	// U+FFFD can't come out of a whole pair.
	if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
		return r, nil
	}
	return 0, ErrSurrogate
}

// hex4 reads the six bytes of one \uXXXX.
func (p *parser) hex4() (rune, error) {
	if p.at+6 > len(p.text) {
		return 0, ErrSyntax
	}
	// ParseUint takes neither signs nor underscores in base 16.
	n, err := strconv.ParseUint(p.text[p.at+2:p.at+6], 16, 16)
	if err != nil {
		return 0, ErrSyntax
	}
	p.at += 6
	return rune(n), nil
}
