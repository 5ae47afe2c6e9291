package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// forms returns the texts in which a secret of MinLength or more may show: as
// it is, and as base64, hexadecimal, URLs and JSON write it. All have at least
// MinLength bytes, and none occurs twice.
func forms(secret string) []string {
	all := []string{secret}
	all = append(all, base64Forms(secret)...)
	all = append(all, hexForms(secret)...)
	all = append(all, urlForms(secret)...)
	all = append(all, quotedForms(secret)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// base64Forms returns the characters that depend on the secret alone when it
// stands somewhere inside a text that was encoded: at the three places in a
// group of three bytes, in both alphabets.
func base64Forms(secret string) []string {
	var all []string
	for before := range 3 {
		padded := append(make([]byte, before), secret...)
		// Character i holds the bits from 6i to 6i+5.
		first := (8*before + 5) / 6
		end := 8 * len(padded) / 6
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, enc.EncodeToString(padded)[first:end])
		}
	}
	return all
}

// hexForms holds the forms that write each byte as a number.
func hexForms(secret string) []string {
	lower := hex.EncodeToString([]byte(secret))
	// fmt shows a slice of bytes as numbers.
	numbers := strings.Trim(fmt.Sprint([]byte(secret)), "[]")
	return []string{lower, strings.ToUpper(lower), numbers}
}

// urlForms covers both ways to write a space, both cases of hexadecimal, and
// programs that escape every byte.
func urlForms(secret string) []string {
	var every strings.Builder
	for _, b := range []byte(secret) {
		fmt.Fprintf(&every, "%%%02X", b)
	}
	all := []string{url.QueryEscape(secret), url.PathEscape(secret), every.String()}
	for _, form := range all[:3] {
		all = append(all, lowerEscapes(form))
	}
	return all
}

func lowerEscapes(s string) string {
	out := []byte(s)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:i+3], strings.ToLower(s[i+1:i+3]))
		}
	}
	return string(out)
}

// quotedForms returns what stands between the quotes of the secret as a string
// of JSON and of Go, as encoders with different habits write it.
func quotedForms(secret string) []string {
	var plain strings.Builder
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	// Strings always encode.
	_ = enc.Encode(secret)
	html, _ := json.Marshal(secret)
	inner := func(s string) string { return strings.TrimSpace(s)[1 : len(strings.TrimSpace(s))-1] }
	noSlash := inner(plain.String())
	return []string{
		noSlash, inner(string(html)), strings.ReplaceAll(noSlash, "/", `\/`),
		ascii(noSlash), inner(strconv.Quote(secret)), inner(strconv.QuoteToASCII(secret)),
	}
}

// ascii writes everything beyond ASCII as \uXXXX, as Python does by default.
func ascii(s string) string {
	var out strings.Builder
	for _, r := range s {
		switch {
		case r < 0x7f:
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}
