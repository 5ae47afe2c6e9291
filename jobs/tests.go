package jobs

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// testRun is one run of all validation commands in one fresh sandbox.
type testRun struct {
	code   int
	output string
	limits []sandbox.Limit
	ended  sandbox.Limit // the limit that ended the run, or ""
	empty  bool          // a runner said that it ran no tests
	cut    bool          // a runner ended with 0 and had told no result
	took   time.Duration // of all commands together
}

// passed: a limit that ended a command is never a pass, whatever its code.
func (t testRun) passed() bool { return t.code == 0 && t.ended == "" }

// runTests runs the commands in order and stops at the first that fails. Before
// each, init kills whatever an earlier one left behind.
func (j *job) runTests(ctx context.Context, r ready, place sandbox.Sandbox) (testRun, error) {
	var run testRun
	keep := int(min(r.rules.Policy.Limits.OutputKeepBytes, 16<<20))
	output := headtail.New(keep) // of all commands together: many that flood are one flood
	deadline := time.Now().Add(min(r.budgets.Test, r.left()))
	for i, args := range r.commands {
		kept := headtail.New(keep)
		exit, err := j.runCommand(ctx, place, args, time.Until(deadline), kept)
		if err != nil {
			return run, fmt.Errorf("running the tests: %w", err)
		}
		text := kept.String()
		fmt.Fprintf(output, "$ %s\n%s", r.plan.Commands[i], text)
		run.add(args, exit, text)
		if !run.passed() || exit.Gone {
			break
		}
		fmt.Fprintln(output)
	}
	run.output = output.String()
	slices.Sort(run.limits)
	run.limits = slices.Compact(run.limits)
	return run, nil
}

func (j *job) runCommand(ctx context.Context, place sandbox.Sandbox, args []string, left time.Duration, kept *headtail.Buffer) (sandbox.Exit, error) {
	j.files.say("$ %s", strings.Join(args, " "))
	log := newShown(j.files.log)
	exit, err := place.Run(ctx, sandbox.Command{
		Argv: args, Stdout: tee{kept, log}, Timeout: max(left, time.Second), Alone: true,
	})
	log.finish()
	if err == nil {
		j.files.say("exit status %d after %s, limits %v", exit.Code, exit.Duration.Round(time.Millisecond), exit.Limits)
	}
	return exit, err
}

func (t *testRun) add(args []string, exit sandbox.Exit, output string) {
	t.took += exit.Duration
	t.limits = append(t.limits, exit.Limits...)
	if exit.Ended != "" {
		t.ended = exit.Ended
		t.limits = append(t.limits, exit.Ended)
	}
	t.code = exit.Code
	if exit.Ended != "" && t.code == 0 {
		t.code = -1
	}
	t.empty = t.empty || ranNothing(exit.Code, output)
	t.cut = t.cut || exit.Code == 0 && endedEarly(args, output)
}

// noTests are the words of the runners for "there was nothing to run". A job
// that prints them by itself only harms its own result.
var noTests = regexp.MustCompile(`(?m)^(Ran 0 tests in |NO TESTS RAN|(=+ )?no tests ran in )`)

// ranNothing: unittest (since 3.12) and pytest end with 5 when there was no
// test; older ones end with 0 and say so.
func ranNothing(code int, output string) bool {
	return (code == 5 || code == 0) && noTests.MatchString(output)
}

// results are what runners that came to their end have always printed, however
// quiet they were asked to be. That a job can print it, too, is no reason to
// believe those who don't.
var results = map[string]*regexp.Regexp{
	"unittest": regexp.MustCompile(`(?m)^(Ran \d+ tests? in |NO TESTS RAN)`),
	"pytest":   regexp.MustCompile(`\b\d+ (passed|skipped|xfailed|xpassed|deselected)\b|\[100%\]|no tests ran in `),
}

// endedEarly tells whether a runner's process ended, by what it ran, before the
// runner did.
func endedEarly(args []string, output string) bool {
	if len(args) < 3 || args[1] != "-m" {
		return false
	}
	result, known := results[args[2]]
	return known && !result.MatchString(output)
}

// detected tells whether the commands were found by us: then an empty run is
// a failure of its own.
func detected(plan policies.Plan) bool { return plan.Source == "repository_detection" }

// baseline runs the tests before any change. They may fail, reach a limit or
// be missing: it is an observation for evidence and for the model.
func (j *job) baseline(ctx context.Context, r ready) (based, error) {
	j.enter(protocol.PhaseBaseline, "Running the tests before the change")
	b := based{ready: r}
	before, err := again(ctx, func() (testRun, error) { return j.testBase(ctx, &b) })
	if err != nil {
		return based{}, err
	}
	j.facts.baseline = &before
	return b, nil
}

// baseSpec is a sandbox over the base tree with the tests' tools.
func (j *job) baseSpec(r ready) sandbox.Spec {
	return j.spec(r.room, sandbox.ProfileJob, r.image, append(r.deps, r.base)...)
}

// commitSpec is a sandbox where git works on the base tree and its objects.
func (j *job) commitSpec(r ready) sandbox.Spec {
	return j.spec(r.room, sandbox.ProfileGit, "", r.base, r.objects)
}

// testBase starts the sandboxes of the first change and of its commit while the
// tests run: not earlier, since two starts at once only hold each other up.
func (j *job) testBase(ctx context.Context, b *based) (testRun, error) {
	created := j.step("baseline_start")
	place, err := j.create(ctx, b.room, j.baseSpec(b.ready))
	created()
	if err != nil {
		return testRun{}, err
	}
	defer j.end(place)
	if b.first == nil {
		b.first = j.ahead(ctx, b.room, j.baseSpec(b.ready), nil)
		b.firstCommit = j.ahead(ctx, b.room, j.commitSpec(b.ready), b.first)
	}
	defer j.step("baseline_run")()
	return j.runTests(ctx, b.ready, place)
}
