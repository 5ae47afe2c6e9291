// Package coding makes the change: it shows a model the task, lets it act in a
// sandbox through a few tools, and stops at its budgets. An engine's word is
// never success: what counts is the change that is collected afterwards and the
// tests that run on it. Task and repository text are data in marked blocks of
// the prompt and decide nothing else. Start reading at Engine; loop.go is the
// default one, single.go the one-answer engine for qualifications.
package coding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Place is where an engine acts: a live sandbox whose workspace holds the tree.
type Place interface {
	Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error)
}

// Meter counts tokens over all rounds of a job, across restarts.
type Meter interface {
	Spend(ctx context.Context, input, output int64) error
	Spent() (input, output int64)
}

// Engine makes one round of changes in place. It returns a Result also when a
// budget ended the round: a change that is there still goes to the tests. The
// error is a *provider.Error, an *Error, a *sandbox.Error or ctx's.
type Engine interface {
	Change(ctx context.Context, place Place, brief Brief, meter Meter) (Result, error)
}

// Brief is what a round is about. All its texts but Rules and Commands are
// foreign and shown to the model as data.
type Brief struct {
	Title        string
	Description  string
	Requirements []protocol.Statement
	Criteria     []protocol.Statement
	// Commands are the validation commands that will judge the change.
	Commands []string
	// Rules are our own sentences: which paths may change and which may not.
	Rules []string
	// Editable tells whether the edit tool may write a path; what counts is
	// the check of the collected change, this only saves turns.
	Editable func(path string) bool
	// Feedback is the last round's outcome, for a repair; nil in round one.
	Feedback *Feedback
	// Deadline ends the round.
	Deadline time.Time
	// Transcript receives one JSON line a message, redacted; may be nil.
	Transcript io.Writer
}

// Feedback tells a repair round why the last one did not do.
type Feedback struct {
	Round  int    // 1 for the first repair
	Why    string // our own words: tests failed, a path against the rules, nothing changed
	Output string // the tests' output, head and tail
}

// Result is what a round came to.
type Result struct {
	Summary string // the model's words: foreign text
	Steps   int
	// FormatRepairs counts answers that had to be asked for again.
	FormatRepairs int
	// Ended is the budget that ended the round, or empty for a finish.
	Ended Budget
	// Limits are sandbox limits that the model's commands ran into.
	Limits []sandbox.Limit
}

// Budget names what a round may use up.
type Budget string

// The budgets of a round.
const (
	BudgetSteps  Budget = "steps"
	BudgetTokens Budget = "tokens"
	BudgetTime   Budget = "time"
)

// Kind says why an engine gave up.
type Kind string

// The kinds of an Error.
const (
	Stuck         Kind = "stuck"
	OutputInvalid Kind = "output_invalid"
	Empty         Kind = "empty"
	BudgetUsed    Kind = "budget_used"
)

// Error is why an engine gave up without a change worth testing.
type Error struct {
	Kind   Kind
	Budget Budget // of BudgetUsed
	Err    error
}

// Error tells the kind and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("coding engine: %s %s: %v", e.Kind, e.Budget, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
