package coding_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestI03TroubleIsWaitedOut: a provider that is down for longer than one
// request's own tries costs time, and neither the job nor what was done.
func TestI03TroubleIsWaitedOut(t *testing.T) {
	s := newSetup(t, providertest.Steps(
		providertest.Step{Edit: &providertest.Edit{Path: "calc.py", Old: "a - b", New: "a + b"}}, providertest.Step{Finish: "done"}))
	for range 5 {
		s.model.Queue(providertest.Fault{Status: 503}, providertest.Fault{Status: 429})
	}
	s.cfg.FirstPause = time.Millisecond
	result, err := s.run(t)
	if err != nil || result.Summary != "done" {
		t.Fatalf("%+v, %v", result, err)
	}
}

// TestI03TroubleThatLastsIsNamed: at the end of the time the code is the
// provider's trouble, whatever the provider asked for, and no used-up budget.
func TestI03TroubleThatLastsIsNamed(t *testing.T) {
	for status, want := range map[int]provider.Kind{503: provider.Unavailable, 429: provider.RateLimited} {
		s := newSetup(t, providertest.Steps(providertest.Step{Finish: "done"}))
		for range 30 {
			s.model.Queue(providertest.Fault{Status: status, Header: map[string]string{"Retry-After": "3600"}})
		}
		s.brief.Deadline = time.Now().Add(5100 * time.Millisecond)
		result, err := s.run(t)
		if provider.KindOf(err) != want {
			t.Errorf("%d: %+v, %v; want %s", status, result, err, want)
		}
		if n := len(s.model.Requests()); n > 2 {
			t.Errorf("%d: %d requests although the provider asked for an hour", status, n)
		}
	}
}

// TestSandboxThatEndsEndsTheRound: a limit of the whole sandbox is an
// observation; no further call is tried in what is gone.
func TestSandboxThatEndsEndsTheRound(t *testing.T) {
	s := newSetup(t, providertest.Steps(providertest.Step{Shell: "eat all memory"}, providertest.Step{Shell: "echo more"}, providertest.Step{Finish: "x"}))
	s.place.gone = true
	result, err := s.run(t)
	if err != nil || !slices.Contains(result.Limits, sandbox.LimitOOM) || len(s.place.ran) != 1 {
		t.Errorf("%+v, %v after %q", result, err, s.place.ran)
	}
}

// TestNearestLinesAreRedacted: what the edit tool shows of a file goes through
// the same filter as a command's output.
func TestNearestLinesAreRedacted(t *testing.T) {
	s := newSetup(t, providertest.Steps(
		providertest.Step{Edit: &providertest.Edit{Path: "notes.txt", Old: "password is wrong", New: "x"}}, providertest.Step{Finish: "x"}))
	if err := os.WriteFile(filepath.Join(s.place.dir, "notes.txt"), []byte("the password is hunter2hunter2\x1b[31m\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.cfg.Redact = func(text string) string { return strings.ReplaceAll(text, "hunter2hunter2", "[redacted]") }
	if _, err := s.run(t); err != nil {
		t.Fatal(err)
	}
	if seen := s.model.Requests()[1].Results[0]; strings.Contains(seen, "hunter2") || strings.Contains(seen, "\x1b") || !strings.Contains(seen, "password") {
		t.Errorf("the model saw %q", seen)
	}
}

// TestRepairShowsTheEndOfTheOutput: what failed stands at the end of a long
// output, behind everything that a noisy test printed.
func TestRepairShowsTheEndOfTheOutput(t *testing.T) {
	s := newSetup(t, providertest.Steps(providertest.Step{Finish: "x"}))
	s.brief.Feedback = &coding.Feedback{Round: 1, Why: "The tests failed.", Output: "$ test\n" + strings.Repeat("noise\x1b[0m\n", 50_000) + "AssertionError: the reason"}
	if _, err := s.run(t); err != nil {
		t.Fatal(err)
	}
	user := s.model.Requests()[0].User
	if !strings.Contains(user, "AssertionError: the reason") || !strings.Contains(user, "$ test") || strings.Contains(user, "\x1b") || len(user) > 20_000 {
		t.Errorf("the prompt of %d bytes lacks the end of the output", len(user))
	}
}
