package controlplane

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// maxDetail bounds the text of a refusal, in code points.
	maxDetail = 500
	// maxRetryAfter caps what the other side may make us wait.
	maxRetryAfter = 30 * time.Second
)

// Answer is what became of one call, whatever it was. A call never fails in
// another way: a caller decides by Class.
type Answer[T any] struct {
	// Class says what to do (protocol section 2).
	Class protocol.Class
	// Status is the HTTP status, 0 when no answer came.
	Status int
	// Definite says that the answer proves that nothing was stored: only then
	// may a sealed result be replaced by a revision.
	Definite bool
	// Reply is the parsed body of an answer that was taken, else zero.
	Reply T
	// Detail is what a refusal said: cut, on one line, without control
	// characters. Foreign text: show it, never decide by it.
	Detail string
	// RetryAfter is how long the other side asks to wait, at most 30 s.
	RetryAfter time.Duration
	// RequestID is the answer's X-Request-ID, cut and escaped.
	RequestID string
	// Offset is the other side's clock minus ours, if Dated; it is good to
	// about a second.
	Offset time.Duration
	Dated  bool
	// Err is why no whole answer came.
	Err error
}

// Say describes an answer in one line for people and logs. The request id is
// what the control plane's people ask for.
func (a Answer[T]) Say() string {
	if a.RequestID == "" {
		return a.say()
	}
	return a.say() + " (request " + a.RequestID + ")"
}

func (a Answer[T]) say() string {
	switch {
	case a.Err != nil && a.Status == 0:
		return fmt.Sprintf("no answer: %s", cleanText(a.Err.Error(), maxDetail))
	case a.Err != nil:
		return fmt.Sprintf("answer %d is broken: %s", a.Status, cleanText(a.Err.Error(), maxDetail))
	case a.Detail != "":
		return fmt.Sprintf("answer %d: %s", a.Status, a.Detail)
	}
	return fmt.Sprintf("answer %d", a.Status)
}

// cleanText makes foreign text fit for one line of a log or a terminal.
func cleanText(s string, most int) string {
	var out strings.Builder
	n := 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if n++; n > most {
			out.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		out.WriteRune(r)
	}
	return strings.TrimSpace(out.String())
}

// detailOf reads what an error body says in either JSON shape; HTML says
// nothing.
func detailOf(body []byte) string {
	var said protocol.ErrorBody
	if !utf8.Valid(body) || protocol.Decode(body, &said, maxErrorBytes) != nil {
		return ""
	}
	return cleanText(said.Text(), maxDetail)
}

// retryAfter reads the header in both of its forms. A date is one of the other
// side's clock, as its Date header is; now stands in where that is missing.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		// Compared before it is multiplied: huge numbers are long, not negative.
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// offset compares the Date header with the middle of the call.
func offset(h http.Header, sent, received time.Time) (time.Duration, bool) {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0, false
	}
	middle := sent.Add(received.Sub(sent) / 2)
	// The header is cut to whole seconds: on average half a second too early.
	return date.Add(time.Second / 2).Sub(middle), true
}
