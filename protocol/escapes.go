package protocol

import (
	"bytes"
	"strconv"
	"unicode/utf16"
)

// scanEscapes refuses U+0000 and lone surrogates in the strings of JSON that is
// otherwise well formed. encoding/json turns a lone surrogate into U+FFFD and
// says nothing; the control plane's database answers both with an error.
func scanEscapes(data []byte) error {
	for {
		at := bytes.IndexByte(data, '\\')
		if at < 0 {
			return nil
		}
		data = data[at+1:]
		if len(data) == 0 {
			return nil
		}
		if data[0] != 'u' {
			// Skipping the escaped byte keeps "\\u0000", an escaped back slash
			// before plain text, apart from a real escape.
			data = data[1:]
			continue
		}
		used, err := scanRune(data)
		if err != nil {
			return err
		}
		data = data[used:]
	}
}

// scanRune reads the escape that data begins with, without its back slash, and
// the second half of a pair. It returns the number of bytes used.
func scanRune(data []byte) (int, error) {
	first, ok := hex4(data)
	switch {
	case !ok:
		return 0, &DecodeError{Why: "not one complete json value"}
	case first == 0:
		return 0, &DecodeError{Why: "a string holds u+0000"}
	case !utf16.IsSurrogate(first):
		return 5, nil
	}
	if len(data) < 11 || data[5] != '\\' {
		return 0, &DecodeError{Why: "a string holds a lone surrogate"}
	}
	second, ok := hex4(data[6:])
	if !ok || utf16.DecodeRune(first, second) == '\uFFFD' {
		return 0, &DecodeError{Why: "a string holds a lone surrogate"}
	}
	return 11, nil
}

// hex4 reads "uXXXX".
func hex4(data []byte) (rune, bool) {
	if len(data) < 5 || data[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(data[1:5]), 16, 16)
	return rune(n), err == nil
}
