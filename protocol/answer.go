package protocol

import "net/http"

// Class is what an answer of the control plane asks for (protocol section 2).
// The zero value is ClassTrouble, so that a forgotten answer is an unknown one.
type Class int

// The classes of answers.
const (
	// ClassTrouble is their trouble, or something permanent about these bytes:
	// 429, 5xx, HTML, a cut or empty body, no answer at all. Back off and send
	// the same bytes. For a result it is an unknown answer.
	ClassTrouble Class = iota
	// ClassTaken is 200 with JSON: stop resending.
	ClassTaken
	// ClassRevoked is 401 in JSON: the credential is unknown. No new work.
	ClassRevoked
	// ClassRefused is 409 in JSON: state, lease, signature, or passing trouble.
	// Never final while the lease lives.
	ClassRefused
	// ClassMistake is another 4xx or a redirect: a mistake of ours or of a
	// proxy. A log line and growing pauses.
	ClassMistake
)

// String returns the class's name for logs and metrics.
func (c Class) String() string {
	switch c {
	case ClassTaken:
		return "taken"
	case ClassRevoked:
		return "revoked"
	case ClassRefused:
		return "refused"
	case ClassMistake:
		return "mistake"
	}
	return "trouble"
}

// Classify says what an answer asks for, from its status and whether its body
// is whole JSON. Use status 0 when no answer came. A body that turns out not to
// be what its type says makes the answer ClassTrouble; only the reader of the
// body can tell.
func Classify(status int, isJSON bool) Class {
	switch {
	case status == http.StatusOK && isJSON:
		return ClassTaken
	case status == http.StatusUnauthorized && isJSON:
		return ClassRevoked
	case status == http.StatusConflict && isJSON:
		return ClassRefused
	case status == http.StatusTooManyRequests, status == http.StatusConflict:
		return ClassTrouble
	case status >= 300 && status < 500:
		return ClassMistake
	}
	return ClassTrouble
}

// DefiniteRefusal tells whether an answer to a result proves that the result
// was not stored: a 4xx in JSON, but for 429. Only if every answer so far was
// one may a sealed result be replaced by a revision; after any other answer
// nothing but the same bytes may follow (attack cases G09 and G17).
func DefiniteRefusal(status int, isJSON bool) bool {
	return isJSON && status >= 400 && status < 500 && status != http.StatusTooManyRequests
}
