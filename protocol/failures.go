package protocol

import "strings"

// Use is a kind of run in which a failure can occur.
type Use string

// The kinds of runs, and what becomes of a failure there.
const (
	// UseWorker is a paid job: the signed FAILED result.
	UseWorker Use = "W"
	// UseQualification is a qualification: the text of runtime_error, sent only
	// when giving up, because it costs one of two attempts.
	UseQualification Use = "Q"
	// UseVerifier is a verification: the message of its phase.
	UseVerifier Use = "V"
)

// Failure is one row of the table: all that the control plane learns of a
// failure. Detail goes into the summary, which is not searched for retry words.
type Failure struct {
	Code  Code
	Stage Stage
	// Sentence is failure_message, word for word. It is empty for what is never
	// submitted.
	Sentence string
	// Retry says that the control plane gives the job out again.
	Retry bool
	Roles []Use
}

// Submitted tells whether the failure is sent at all; the others are reasons of
// abandoned runs.
func (f Failure) Submitted() bool { return f.Sentence != "" }

// failureByCode indexes the table.
var failureByCode = func() map[Code]Failure {
	m := make(map[Code]Failure, len(failures))
	for _, f := range failures {
		m[f.Code] = f
	}
	return m
}()

// Lookup returns the row of a code. An unknown code gives INTERNAL_ERROR's row:
// a job always has a result.
func Lookup(code Code) Failure {
	f, known := failureByCode[code]
	if !known {
		f = failureByCode[CodeInternalError]
	}
	return f
}

// Failures returns a copy of the table in its order.
func Failures() []Failure {
	return append([]Failure(nil), failures...)
}

// retryWords are the texts whose presence in a case-folded failure_message makes
// the control plane try again. They are theirs, not ours.
var retryWords = []string{
	"[winerror 2]", "file not found", "no such file or directory",
	"connection reset", "connection aborted", "temporarily unavailable",
	"timed out", "timeout", "too many requests", "rate limit", "bad gateway",
	"service unavailable", "gateway timeout",
	"expecting value: line 1 column", "returned malformed json",
	"returned malformed or incomplete json", "could not read as json",
	"returned an empty response", "returned no changed files",
	"returned no valid changed files", "unknown funded path id",
	"instead of json",
}

// HoldsRetryWord tells whether the control plane would give a job out again
// that failed with this message, if its stage allows it.
func HoldsRetryWord(message string) bool {
	message = strings.ToLower(message)
	for _, word := range retryWords {
		if strings.Contains(message, word) {
			return true
		}
	}
	return false
}
