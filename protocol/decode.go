package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// DecodeError says why foreign bytes were not taken. Nothing in it repeats
// what was sent, but for the name of one of our own fields.
type DecodeError struct {
	// Field is the path of the member with the wrong type, or empty.
	Field string
	Why   string
}

// Error returns the reason in one line.
func (e *DecodeError) Error() string {
	if e.Field == "" {
		return "decoding json: " + e.Why
	}
	return fmt.Sprintf("decoding json member %q: %s", e.Field, e.Why)
}

// Decode reads one JSON value of at most limit bytes into v. It refuses with a
// *DecodeError what two readers could understand differently or what would not
// survive being signed and stored (attack case G12): more than MaxDepth levels,
// names that are equal but for their case, bytes that are not UTF-8, lone
// surrogates, U+0000, anything after the value. Unknown members are allowed,
// because the other side may grow. If a member has the wrong type the others
// are filled in and the error names the first such member.
func Decode(data []byte, v any, limit int) error {
	if len(data) > limit {
		return &DecodeError{Why: fmt.Sprintf("longer than %d bytes", limit)}
	}
	if err := scan(data); err != nil {
		return err
	}
	return decodeChecked(data, v)
}

// decodeChecked translates what encoding/json says, since its texts may repeat
// foreign bytes.
func decodeChecked(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return &DecodeError{Field: wrong.Field, Why: "wrong type or out of range"}
	}
	return &DecodeError{Why: "not what was expected"}
}

// scan checks everything about the bytes that needs no knowledge of the type.
func scan(data []byte) error {
	if !utf8.Valid(data) {
		return &DecodeError{Why: "not utf-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := scanLevels(dec); err != nil {
		return err
	}
	// More is true for a second value and for stray text alike.
	if dec.More() || len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		return &DecodeError{Why: "something follows the value"}
	}
	return scanEscapes(data)
}

// level is one open list or object of a value being scanned. names is nil in a
// list; wantName says that the next token of an object is a member's name.
type level struct {
	names    map[string]struct{}
	wantName bool
}

// scanLevels walks the tokens of one value without building it, so that its
// cost is bounded by the bytes and MaxDepth.
func scanLevels(dec *json.Decoder) error {
	var open []level
	for {
		token, err := dec.Token()
		if err != nil {
			return &DecodeError{Why: "not one complete json value"}
		}
		if open, err = step(open, token); err != nil {
			return err
		}
		if len(open) == 0 {
			return nil
		}
	}
}

// step takes one token into account and returns the levels that are open now.
func step(open []level, token json.Token) ([]level, error) {
	if n := len(open); n > 0 && open[n-1].wantName && token != json.Delim('}') {
		open[n-1].wantName = false
		return open, noteName(open[n-1].names, token)
	}
	switch token {
	case json.Delim('{'):
		open = append(open, level{names: map[string]struct{}{}, wantName: true})
	case json.Delim('['):
		open = append(open, level{})
	case json.Delim('}'), json.Delim(']'):
		return closeLevel(open[:len(open)-1]), nil
	default:
		return closeLevel(open), nil
	}
	if len(open) > MaxDepth {
		return nil, &DecodeError{Why: fmt.Sprintf("nested over %d levels", MaxDepth)}
	}
	return open, nil
}

// closeLevel ends a value: in an object a name must come next.
func closeLevel(open []level) []level {
	if n := len(open); n > 0 && open[n-1].names != nil {
		open[n-1].wantName = true
	}
	return open
}

// noteName refuses a second name that encoding/json would put into the same
// field: it folds case, the control plane does not.
func noteName(names map[string]struct{}, token json.Token) error {
	name, _ := token.(string)
	name = strings.ToLower(strings.ToUpper(name))
	if _, twice := names[name]; twice {
		return &DecodeError{Why: "a name occurs twice in one object"}
	}
	names[name] = struct{}{}
	return nil
}
