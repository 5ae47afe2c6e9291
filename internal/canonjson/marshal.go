package canonjson

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Marshal returns the canonical text of v: strings, integers of every kind,
// json.Number and *big.Int, booleans, nil, slices (but not of bytes) and maps
// with string keys, nested at will. Structs have no canonical text, so that
// nothing is signed by accident. Equal values give equal bytes.
func Marshal(v any) ([]byte, error) {
	out, err := appendValue(nil, reflect.ValueOf(v), 0)
	if err != nil {
		return nil, fmt.Errorf("writing canonical json: %w", err)
	}
	return out, nil
}

// Hash returns the SHA-256 of v's canonical text as 64 lower-case hex digits.
func Hash(v any) (string, error) {
	text, err := Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func appendValue(out []byte, v reflect.Value, depth int) ([]byte, error) {
	if !v.IsValid() {
		return append(out, "null"...), nil
	}
	switch x := v.Interface().(type) {
	case json.Number:
		return appendNumber(out, string(x))
	case *big.Int:
		if x == nil {
			return append(out, "null"...), nil
		}
		return appendNumber(out, x.String())
	}
	return appendKind(out, v, depth)
}

func appendKind(out []byte, v reflect.Value, depth int) ([]byte, error) {
	switch v.Kind() {
	case reflect.String:
		return appendString(out, v.String())
	case reflect.Bool:
		return strconv.AppendBool(out, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(out, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(out, v.Uint(), 10), nil
	case reflect.Float32, reflect.Float64:
		return nil, ErrNumber
	case reflect.Interface:
		return appendValue(out, v.Elem(), depth)
	case reflect.Slice:
		return appendList(out, v, depth+1)
	case reflect.Map:
		return appendObject(out, v, depth+1)
	}
	return nil, fmt.Errorf("%s: %w", v.Type(), ErrType)
}

// appendList writes a nil slice as [], since a list that happens to be empty
// must not change its text with how it was made.
func appendList(out []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return nil, fmt.Errorf("%s: %w", v.Type(), ErrType)
	}
	if depth > MaxDepth {
		return nil, ErrDepth
	}
	out = append(out, '[')
	var err error
	for i := range v.Len() {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendValue(out, v.Index(i), depth); err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

func appendObject(out []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Type().Key().Kind() != reflect.String {
		return nil, fmt.Errorf("%s: %w", v.Type(), ErrType)
	}
	if depth > MaxDepth {
		return nil, ErrDepth
	}
	keys := v.MapKeys()
	// Bytes of UTF-8 sort as its code points do; UTF-16 units would not.
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		return strings.Compare(a.String(), b.String())
	})
	out = append(out, '{')
	var err error
	for i, key := range keys {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendMember(out, key.String(), v.MapIndex(key), depth); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func appendMember(out []byte, name string, v reflect.Value, depth int) ([]byte, error) {
	out, err := appendString(out, name)
	if err != nil {
		return nil, err
	}
	return appendValue(append(out, ':'), v, depth)
}

// appendNumber writes an integer given as text the way Python prints it after
// reading it: "-0" is 0.
func appendNumber(out []byte, text string) ([]byte, error) {
	if !isInteger(text) {
		return nil, ErrNumber
	}
	if text == "-0" {
		text = "0"
	}
	return append(out, text...), nil
}

func isInteger(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || len(digits) > maxDigits || digits[0] == '0' && len(digits) > 1 {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// escapes holds the text of every byte that Python escapes.
var escapes = func() (table [128]string) {
	for c := range 0x20 {
		table[c] = fmt.Sprintf(`\u%04x`, c)
	}
	table['\b'], table['\t'], table['\n'] = `\b`, `\t`, `\n`
	table['\f'], table['\r'] = `\f`, `\r`
	table['"'], table['\\'] = `\"`, `\\`
	return table
}()

func appendString(out []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, ErrUTF8
	}
	if strings.IndexByte(s, 0) >= 0 {
		return nil, ErrNUL
	}
	out = append(out, '"')
	from := 0
	for i := range len(s) {
		if s[i] < utf8.RuneSelf && escapes[s[i]] != "" {
			out = append(append(out, s[from:i]...), escapes[s[i]]...)
			from = i + 1
		}
	}
	return append(append(out, s[from:]...), '"'), nil
}
