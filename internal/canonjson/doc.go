// Package canonjson writes and reads the one text that a JSON value has when it
// is hashed and signed: names sorted by code point, no white space, raw UTF-8,
// and only the escapes that Python's json.dumps(ensure_ascii=False) uses
// (protocol section 1). The control plane parses our body and hashes what it
// parsed, so a value that its parser or its database would change is refused:
// floats, U+0000, lone surrogates, names that occur twice, deep nesting.
// encoding/json escapes more than this and RFC 8785 sorts differently, so
// neither could be used. The package does no I/O. Start reading at Marshal.
package canonjson

import "errors"

// MaxDepth is how many lists and objects may be open at once.
const MaxDepth = 64

// maxDigits bounds an integer. Python refuses to read over 4,300 digits.
const maxDigits = 1_000

// The refusals. Every error of this package wraps exactly one of them.
var (
	// ErrUTF8 is a string or text that is not valid UTF-8.
	ErrUTF8 = errors.New("not utf-8")
	// ErrNUL is a string that holds U+0000.
	ErrNUL = errors.New("string holds u+0000")
	// ErrSurrogate is an escape for half of a surrogate pair.
	ErrSurrogate = errors.New("string holds a lone surrogate")
	// ErrNumber is a float, an integer of absurd length, or no number at all.
	ErrNumber = errors.New("not an integer")
	// ErrDuplicate is a name that occurs twice in one object.
	ErrDuplicate = errors.New("name occurs twice in one object")
	// ErrDepth is nesting over MaxDepth.
	ErrDepth = errors.New("nested too deeply")
	// ErrSyntax is text that is not one JSON value.
	ErrSyntax = errors.New("not one json value")
	// ErrType is a Go value that has no canonical text.
	ErrType = errors.New("type has no canonical text")
	// ErrNotCanonical is JSON that is not written in canonical form.
	ErrNotCanonical = errors.New("not in canonical form")
)
