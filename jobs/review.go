package jobs

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// ran is a commit whose tests ran: as they stand in it, and, where it changes
// test files, with the base versions of those.
type ran struct {
	commit commitTree
	ready  ready
	first  testRun
	old    *testRun // nil: nothing to put back, or the first run failed
	// settings is the run with the base versions of changed settings, too, where
	// another decides already; nil: the change touches none.
	settings *testRun
}

// sound: the commands passed, and each runner came to its end.
func (t testRun) sound() bool { return t.passed() && !t.cut }

// test is the clean room: the commit's layer, measured in a sandbox that never
// saw a pack, and a fresh sandbox for each run.
func (v *verification) test(ctx context.Context, c commitTree, r ready) (ran, error) {
	v.review(protocol.VerificationValidation, "Running the tests on the commit")
	layers := append(r.deps, r.base)
	seen, err := v.hashLayers(ctx, r.room, gitops.NewHashRequest(r.manifest, nil, false), layers)
	if err != nil {
		return ran{}, err
	}
	if seen != c.claim.tree {
		return ran{}, otherTree(seen, c.claim.tree)
	}
	v.facts.cleanRoom, v.facts.tree = true, seen
	first, err := v.runUnlimited(ctx, r, "")
	if err != nil {
		return ran{}, err
	}
	if first.empty && detected(r.plan) {
		return ran{}, fail(protocol.CodeNoTestsRun, "running the tests", errors.New("the detected command ran no tests"))
	}
	out := ran{commit: c, ready: r, first: first}
	if !first.sound() {
		return out, nil
	}
	if err := v.testOld(ctx, &out); err != nil || out.old != nil && !out.old.sound() {
		return out, err
	}
	if c.restoreAll != "" {
		if err := v.testSettings(ctx, &out); err != nil {
			return out, err
		}
	}
	if c.cross == nil || out.old != nil && !out.old.sound() {
		return out, nil
	}
	return out, v.crossCheck(ctx, &out)
}

// testOld runs the tests that the change replaced.
func (v *verification) testOld(ctx context.Context, out *ran) error {
	if out.commit.restore == "" {
		return nil
	}
	old, err := v.runUnlimited(ctx, out.ready, out.commit.restore)
	if err == nil && !old.empty {
		out.old = &old
	}
	return err
}

// testSettings runs the tests with the base versions of changed settings as
// well. Where none of the replaced tests ran without those, since the change
// hides them from the runner, it is this run that decides. Else the change may
// need its settings for other reasons, and what comes of it is told.
func (v *verification) testSettings(ctx context.Context, out *ran) error {
	c, decides := out.commit, out.old == nil && out.commit.restore != ""
	if decides {
		run, err := v.runUnlimited(ctx, out.ready, c.restoreAll)
		if err == nil && !run.empty {
			out.old = &run
		}
		return err
	}
	run, err := again(ctx, func() (testRun, error) { return v.runFresh(ctx, out.ready, c.restoreAll) })
	if err == nil && !run.empty {
		out.settings = &run
	}
	return err
}

// runUnlimited runs the tests and, when a limit of this host kept them from
// passing, once more. What another host could run is not held against the
// change.
func (v *verification) runUnlimited(ctx context.Context, r ready, restore string) (run testRun, err error) {
	for range 2 {
		run, err = again(ctx, func() (testRun, error) { return v.runFresh(ctx, r, restore) })
		if err != nil || run.passed() || len(run.limits) == 0 {
			break
		}
	}
	switch {
	case err != nil:
		return run, err
	case !run.passed() && len(run.limits) > 0:
		return run, testsFailure(run, false)
	case toolMissing(run):
		return run, fail(protocol.CodeToolchainUnavailable, "running the tests", fmt.Errorf("exit status %d", run.code))
	}
	return run, nil
}

// noModule is what python says of "-m NAME" when the image has no such module.
var noModule = regexp.MustCompile(`(?m)^\S*python[0-9.]*: No module named (pytest|unittest)\s*$`)

// toolMissing: the image lacks what the command needs, which says nothing about
// the commit. A job that feigns it only keeps itself from a verdict.
func toolMissing(run testRun) bool {
	return run.code == 126 || run.code == 127 || run.code == 1 && noModule.MatchString(run.output)
}

// runFresh runs all commands in a sandbox of its own, over the commit with what
// is to be put back.
func (v *verification) runFresh(ctx context.Context, r ready, restore string) (testRun, error) {
	place, err := v.create(ctx, r.room, v.spec(r.room, sandbox.ProfileJob, r.image, append(r.deps, r.base)...))
	if err != nil {
		return testRun{}, err
	}
	defer v.end(place)
	if restore == "" {
		run, err := v.runTests(ctx, r, place)
		if err == nil {
			v.noteTouched(ctx, r.manifest, place)
		}
		return run, err
	}
	v.files.say("once more with base versions of changed files")
	if err := v.pour(ctx, place, restore, r.rules.Policy.Limits, everything()); err != nil {
		return testRun{}, err
	}
	return v.runTests(ctx, r, place)
}
