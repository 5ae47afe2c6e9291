package protocol_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestSentencesAgreeWithRetryWords: a failure that another try could cure says
// so in the control plane's words, and no other does by accident.
func TestSentencesAgreeWithRetryWords(t *testing.T) {
	stages := map[protocol.Stage]bool{
		protocol.StagePreflight: true, protocol.StageInfrastructure: true, protocol.StageExecution: true,
	}
	for _, f := range protocol.Failures() {
		if !f.Submitted() {
			continue
		}
		if got := protocol.HoldsRetryWord(f.Sentence); got != f.Retry {
			t.Errorf("%s: holds a retry word: %v, to be retried: %v", f.Code, got, f.Retry)
		}
		if !stages[f.Stage] {
			t.Errorf("%s: stage %q", f.Code, f.Stage)
		}
		if f.Retry && f.Stage == protocol.StagePreflight {
			t.Errorf("%s: nothing found in a preflight is cured by time", f.Code)
		}
	}
}

func TestTableIsWellFormed(t *testing.T) {
	code := regexp.MustCompile(`^[A-Z]+(_[A-Z]+)*$`)
	seen := map[string]protocol.Code{}
	for _, f := range protocol.Failures() {
		if !code.MatchString(string(f.Code)) || len(f.Roles) == 0 {
			t.Errorf("row %+v", f)
		}
		if other, twice := seen[string(f.Code)]; twice {
			t.Errorf("%s stands twice, as %s", f.Code, other)
		}
		seen[string(f.Code)] = f.Code
		if other, twice := seen[f.Sentence]; twice && f.Submitted() {
			t.Errorf("%s has the sentence of %s", f.Code, other)
		}
		seen[f.Sentence] = f.Code
		if f.Submitted() && (!strings.HasSuffix(f.Sentence, ".") || strings.ContainsAny(f.Sentence, "{}()|") ||
			utf8.RuneCountInString(f.Sentence) > protocol.MaxFailureMessage) {
			t.Errorf("%s: sentence %q", f.Code, f.Sentence)
		}
	}
	if n := len(protocol.Failures()); n != 65 {
		t.Errorf("%d rows", n)
	}
}

func TestLookup(t *testing.T) {
	got := protocol.Lookup(protocol.CodeSandboxOOM)
	want := protocol.Failure{
		Code: "SANDBOX_OOM", Stage: "runtime_execution",
		Sentence: "A command reached the sandbox's limit of memory.",
		Roles:    []protocol.Use{protocol.UseWorker, protocol.UseQualification, protocol.UseVerifier},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if got := protocol.Lookup("NO_SUCH_CODE").Code; got != protocol.CodeInternalError {
		t.Errorf("unknown code gives %s", got)
	}
	if protocol.Lookup(protocol.CodeLeaseLost).Submitted() {
		t.Error("a lost lease is submitted")
	}
}

func TestRetryWordsFoldCase(t *testing.T) {
	if !protocol.HoldsRetryWord("read: Connection RESET by peer") || protocol.HoldsRetryWord("The tests failed.") {
		t.Error("retry words are not recognised")
	}
}

func TestEvidenceOfFailure(t *testing.T) {
	e := protocol.Evidence{protocol.KeyJobID: 7}
	e.Fail(protocol.CodeEmptyDiff)
	want := protocol.Evidence{
		"job_id": 7, "outcome": "FAILED", "failure_stage": "runtime_execution",
		"failure_code": "EMPTY_DIFF", "failure_message": "The model returned no changed files.",
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("evidence (-want +got):\n%s", diff)
	}
}
