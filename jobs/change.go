package jobs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// round is one try at the change: its number, why the last one did not do, and
// the tree it goes on from (a spool file, or none for the base tree).
type round struct {
	number   int
	feedback *coding.Feedback
	tree     string
	// returned counts rounds that came back without a change worth testing;
	// one is allowed besides the funded repairs.
	returned int
}

// changeUntilTested makes the change, commits it and runs the tests on the
// commit in the clean room; what fails goes back to the model, up to the funded
// number of repairs.
func (j *job) changeUntilTested(ctx context.Context, b based) (tested, error) {
	next := round{}
	for {
		made, err := j.changeOnce(ctx, b, next)
		var back *returnedError
		if errors.As(err, &back) && next.returned == 0 && time.Until(b.ends) > leastTime {
			next = round{number: next.number, feedback: back.feedback(next.number), tree: back.tree, returned: 1}
			continue
		}
		if err != nil {
			return tested{}, err
		}
		again, err := j.judgeTests(b, made, next)
		if err != nil || again == nil {
			return made, err
		}
		next = *again
	}
}

func (j *job) changeOnce(ctx context.Context, b based, r round) (tested, error) {
	change, err := j.change(ctx, b, r)
	if err != nil {
		return tested{}, err
	}
	commit, err := j.commit(ctx, change)
	if err != nil {
		return tested{}, err
	}
	return again(ctx, func() (tested, error) { return j.validate(ctx, commit) })
}

// judgeTests returns the next round, nil for a pass, or the failure that ends
// the job.
func (j *job) judgeTests(b based, made tested, last round) (*round, error) {
	after := made.after
	if after.sound() && !(after.empty && detected(b.plan)) {
		return nil, nil
	}
	if err := j.noMoreRounds(b, made, last); err != nil {
		return nil, err
	}
	j.facts.repairs++
	return &round{
		number: last.number + 1, tree: made.spool,
		feedback: &coding.Feedback{Round: last.number + 1, Why: whyTests(after), Output: after.output},
	}, nil
}

// noMoreRounds tells why a change whose tests fail can't be repaired. Where the
// tests alone fail, what kept the model from repairing them is the cause.
func (j *job) noMoreRounds(b based, made tested, last round) error {
	spent := made.ended
	if spent == "" && time.Until(b.engineEnds()) < leastTime/2 {
		spent = coding.BudgetTime
	}
	used := spent == coding.BudgetTokens || spent == coding.BudgetTime
	if last.number < b.rules.Repairs && !used {
		return nil
	}
	failure := testsFailure(made.after, detected(b.plan))
	if used && codeOf(failure) == protocol.CodeTestsFailedAfterRepair && (last.number < b.rules.Repairs || made.ended != "") {
		return &coding.Error{Kind: coding.BudgetUsed, Budget: spent, Err: errors.New("the tests fail")}
	}
	return failure
}

func whyTests(t testRun) string {
	if t.ended != "" {
		return fmt.Sprintf("A test command was ended by the limit %q.", t.ended)
	}
	if t.empty {
		return "The test command ran no tests."
	}
	if t.passed() {
		return "The tests ended before their runner told a result: what they run must not end the process."
	}
	return fmt.Sprintf("The tests failed with exit status %d.", t.code)
}

// returnedError is a change that can't be tested and may be mended: nothing
// changed, or a path against the rules.
type returnedError struct {
	cause error
	why   string
	tree  string
}

func (e *returnedError) Error() string { return e.cause.Error() }
func (e *returnedError) Unwrap() error { return e.cause }

func (e *returnedError) feedback(number int) *coding.Feedback {
	return &coding.Feedback{Round: number + 1, Why: e.why}
}

// change lets the engine work in a fresh sandbox over the base tree, or over
// the last collected one, and collects what it wrote.
func (j *job) change(ctx context.Context, b based, r round) (collected, error) {
	phase := protocol.PhaseGenerating
	if r.feedback != nil {
		phase = protocol.PhaseRepairing
	}
	j.enter(phase, "Working on the change")
	got := j.step("change_start")
	place, err := j.changePlace(ctx, b, r)
	got()
	if err != nil {
		return collected{}, err
	}
	defer j.end(place)
	next := b.firstCommit
	if r.feedback != nil {
		next = j.ahead(ctx, b.room, j.commitSpec(b.ready), nil)
	}
	made, err := j.changeIn(ctx, place, b, r)
	if err != nil {
		next.drop()
		return made, err
	}
	made.next = next
	return made, nil
}

func (j *job) changeIn(ctx context.Context, place sandbox.Sandbox, b based, r round) (collected, error) {
	if r.tree != "" {
		if err := j.pour(ctx, place, r.tree, b.rules.Policy.Limits, everything()); err != nil {
			return collected{}, err
		}
	}
	changed := j.step("change")
	result, err := j.cfg.Engine.Change(ctx, place, j.brief(b, r), j.run.Ledger)
	changed()
	j.facts.noteRound(result)
	if err != nil {
		return collected{}, fmt.Errorf("making the change: %w", err)
	}
	return j.collect(ctx, b, place, result)
}

// changePlace: the first sandbox was started during the baseline; a later round
// gets a fresh one.
func (j *job) changePlace(ctx context.Context, b based, r round) (sandbox.Sandbox, error) {
	if r.feedback == nil {
		return b.first.get(ctx)
	}
	return j.create(ctx, b.room, j.baseSpec(b.ready))
}

// brief is what the engine gets. Whether a path may change is asked of the same
// rules that judge the collected change.
func (j *job) brief(b based, r round) coding.Brief {
	work := j.run.Job.Work
	return coding.Brief{
		Title: work.Title, Description: work.Description,
		Requirements: work.TechnicalRequirements, Criteria: work.AcceptanceCriteria,
		Commands: b.plan.Commands, Rules: ruleSentences(b.rules),
		Editable: func(path string) bool {
			return len(b.rules.Judge([]policies.Change{{Path: path, Kind: policies.ChangeModify}})) == 0
		},
		Feedback: r.feedback, Deadline: b.engineEnds(), Transcript: j.files.transcript,
	}
}

func ruleSentences(rules *policies.Effective) []string {
	var said []string
	for _, allowed := range rules.Allowed {
		said = append(said, "Only these paths may change: "+strings.Join(allowed, ", "))
	}
	if len(rules.Forbidden)+len(rules.Protected) > 0 {
		said = append(said, "These paths must not change: "+strings.Join(append(append([]string{}, rules.Forbidden...), rules.Protected...), ", "))
	}
	if !rules.NewDependencies {
		said = append(said, "No dependency may be added: manifests and lock files must not change.")
	}
	if !rules.DatabaseMigrations {
		said = append(said, "Nothing under a migrations directory may change.")
	}
	return append(said, "Symbolic links can't be delivered.")
}

// spoolPath names a file of the run's directory.
func (j *job) spoolPath(name string) string { return filepath.Join(j.run.Dir, name) }
