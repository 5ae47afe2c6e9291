package jobs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// crossing is what the cross-check needs: the base's tests, each file with one
// more that must fail, on the base and on the commit.
type crossing struct {
	base sandbox.LayerID
	// plants holds the planted files alone; tests also the base versions of
	// changed tests; all those of settings, too, "" as in commitTree.
	plants, tests, all string
	planted            string // the name of the test that must fail
	// functions are what the planted files define.
	functions map[string]bool
}

// Bounds of the files that get a test planted.
const (
	maxPlanted     = 400
	maxPlantedFile = 1 << 20
)

// plantTests prepares the cross-check, where a command's runner names its tests
// and the base has files of tests.
func (v *verification) plantTests(c *commitTree, base tree) error {
	commands, err := policies.ParseValidations(c.plan.Commands, len(c.plan.Commands))
	if err != nil || !slices.ContainsFunc(commands, func(args []string) bool { return runnerOf(args) != "" }) {
		return nil // what can't be parsed is told where it is run
	}
	x := &crossing{planted: "test_" + randomName(), functions: map[string]bool{}}
	planted, err := x.plantIn(base, c.tests)
	if err != nil || len(planted) == 0 {
		return err
	}
	if err := v.spoolPlants(c, base, x, planted); err != nil {
		return err
	}
	layers, err := base.place.Freeze(base.ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	if err != nil {
		return fmt.Errorf("freezing the base tree: %w", err)
	}
	x.base, c.cross = layers[0], x
	return nil
}

// plantIn gives the base's files of tests, each with the test that must fail.
func (x *crossing) plantIn(base tree, tests testRules) (map[string]plainFile, error) {
	planted := map[string]plainFile{}
	for _, p := range base.Paths() {
		if !strings.HasSuffix(p, ".py") || path.Base(p) == "__init__.py" || isTestControl(p) || !tests.covers(p) {
			continue
		}
		entry, _ := base.manifest.Lookup(p)
		if entry.Size > maxPlantedFile || len(planted) == maxPlanted {
			continue
		}
		text, ok := readInside(base.ctx, base.place, p, maxPlantedFile)
		if !ok {
			return nil, fail(protocol.CodeSandboxCrashed, "reading a test file", fmt.Errorf("%q of the base", p))
		}
		x.note(text)
		planted[p] = plainFile{path: p, exec: entry.Mode.IsExec(), text: append(text, plant(x.planted)...)}
	}
	return planted, nil
}

func (v *verification) spoolPlants(c *commitTree, base tree, x *crossing, planted map[string]plainFile) (err error) {
	none := func(string) bool { return false }
	if x.plants, err = v.keepBase(c.claim, base, "plants", none, planted); err != nil {
		return err
	}
	if x.tests, err = v.keepBase(c.claim, base, "plants-tests", c.tests.covers, planted); err == nil && c.restoreAll != "" {
		x.all, err = v.keepBase(c.claim, base, "plants-settings", c.tests.orSetting, planted)
	}
	return err
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// defined matches the functions that a Python file defines, at any depth.
var defined = regexp.MustCompile(`(?m)^[ \t]*(?:async +)?def +(\w+)`)

func (x *crossing) note(text []byte) {
	for _, m := range defined.FindAllSubmatch(text, -1) {
		x.functions[string(m[1])] = true
	}
}

// plant is a test that must fail. It passes, and so is seen, where what asserts
// was made harmless.
func plant(name string) string {
	class := "T" + strings.TrimPrefix(name, "test_")
	return fmt.Sprintf(`


import unittest as %[2]s_unittest


class %[2]s(%[2]s_unittest.TestCase):
    def %[1]s(self):
        def bare():
            assert 1 == 2

        def raising():
            with self.assertRaises(KeyError):
                pass

        tries = [(bare,), (raising,), (self.fail,), (self.assertEqual, 1, 2), (self.assertNotEqual, 1, 1),
                 (self.assertTrue, False), (self.assertFalse, True), (self.assertIs, 1, None), (self.assertIn, 1, []),
                 (self.assertIsNone, 1), (self.assertIsNotNone, None), (self.assertGreater, 1, 2)]
        failed = 0
        for check, *values in tries:
            try:
                check(*values)
            except AssertionError:
                failed += 1
        if failed == len(tries):
            raise AssertionError("planted")
`, name, class)
}

// crossCheck runs the base's tests, with one planted that must fail, on the base
// and on the commit, and holds what the runner tells of each against the other:
// the same tests must run, and the planted one must fail. A status of 0 says
// neither, since what is tested runs in the runner's own process.
func (v *verification) crossCheck(ctx context.Context, out *ran) error {
	x := out.commit.cross
	if out.ready.left() < 4*out.first.took+leastTime {
		v.noteUnchecked("There was not enough time.")
		return nil
	}
	layers := append(slices.Clone(out.ready.deps), x.base)
	base, err := v.callRoll(ctx, out.ready, layers, x.plants, 2*out.first.took+30*time.Second)
	if err != nil {
		return err
	}
	layers = append(slices.Clone(out.ready.deps), out.ready.base)
	commit, err := v.callRoll(ctx, out.ready, layers, x.tests, out.ready.budgets.Test)
	if err != nil {
		return err
	}
	if commit.limit != "" {
		v.noteUnchecked(fmt.Sprintf("A command reached the limit %q.", commit.limit))
		return nil
	}
	found := x.compare(base, commit)
	if x.fails(commit) && !found.unfailing {
		if found.unfailing, err = v.contradicted(ctx, out, layers); err != nil {
			return err
		}
	}
	if len(found.lost) == 0 || x.all == "" || found.unfailing {
		v.noteAbsence(found)
		return nil
	}
	settled, err := v.callRoll(ctx, out.ready, layers, x.all, out.ready.budgets.Test)
	if err == nil {
		v.noteHidden(slices.DeleteFunc(found.lost, x.isPlanted), settled, x.compare(base, settled))
	}
	return err
}

// contradicted runs once more without what was planted, after a test failed by
// name that had passed in runs that ended with 0: options may be the reason, or
// one of the two is a lie.
func (v *verification) contradicted(ctx context.Context, out *ran, layers []sandbox.LayerID) (bool, error) {
	plain, err := v.callRoll(ctx, out.ready, layers, out.commit.restore, out.ready.budgets.Test)
	return err == nil && plain.contradict(), err
}

// rolls are the roll calls of all commands, nil where a runner is not known.
type rolls struct {
	of    []*rollCall
	limit sandbox.Limit // that ended a command
}

func (x *crossing) compare(base, commit rolls) (all absence) {
	for i, b := range base.of {
		if b == nil || commit.of[i] == nil {
			continue
		}
		one := compareRolls(*b, *commit.of[i], x.planted, func(name string) bool { return x.functions[name] })
		all.lost, all.unfailing = append(all.lost, one.lost...), all.unfailing || one.unfailing
	}
	return all
}

// fails tells whether a test of ours failed that was not planted.
func (x *crossing) fails(commit rolls) bool {
	return slices.ContainsFunc(commit.of, func(r *rollCall) bool {
		return r != nil && r.hasFailed(func(name string) bool { return !x.isPlanted(name) })
	})
}

// contradict tells whether a command ended with 0 although a test failed.
func (r rolls) contradict() bool {
	return slices.ContainsFunc(r.of, func(one *rollCall) bool {
		return one != nil && one.code == 0 && one.hasFailed(func(string) bool { return true })
	})
}

func (x *crossing) isPlanted(name string) bool { return functionOf(name) == x.planted }

// maxRoll bounds the output of one roll call, in bytes.
const maxRoll = 32 << 20

// callRoll runs each command to its end, also after one that failed.
func (v *verification) callRoll(ctx context.Context, r ready, layers []sandbox.LayerID, spool string, most time.Duration) (rolls, error) {
	return again(ctx, func() (rolls, error) {
		place, err := v.create(ctx, r.room, v.spec(r.room, sandbox.ProfileJob, r.image, layers...))
		if err != nil {
			return rolls{}, err
		}
		defer v.end(place)
		if spool != "" {
			if err := v.pour(ctx, place, spool, r.rules.Policy.Limits, everything()); err != nil {
				return rolls{}, err
			}
		}
		out := rolls{of: make([]*rollCall, len(r.commands))}
		deadline := time.Now().Add(min(most, r.left()))
		for i, args := range r.commands {
			if runnerOf(args) == "" || out.limit != "" {
				continue
			}
			kept := headtail.New(maxRoll)
			exit, err := v.runCommand(ctx, place, aloud(args), time.Until(deadline), kept)
			if err != nil {
				return out, fmt.Errorf("calling the roll of tests: %w", err)
			}
			roll := readRoll(args, exit.Code, kept.String())
			out.of[i], out.limit = &roll, exit.Ended
		}
		return out, nil
	})
}

func (v *verification) noteUnchecked(why string) {
	v.note(protocol.SeverityMedium, "Whether the tests still run could not be checked", why)
}

// noteAbsence tells of what nothing but the code can have caused.
func (v *verification) noteAbsence(found absence) {
	if found.unfailing {
		v.note(protocol.SeverityHigh, "A test that fails does not fail the run on the commit",
			"Either one that was planted beside the tests of the merge base, where it fails, or one of those: a status of 0 says nothing on this commit.")
	}
	if len(found.lost) > 0 {
		v.note(protocol.SeverityHigh, "Tests that run on the merge base do not run on the commit", whatIsLost(found.lost))
	}
}

// noteHidden tells of tests that don't run with the change's settings, once they
// were called with the base versions of those: the change may rename tests, or
// need its settings to be tested at all, but it may not fail what it hides.
func (v *verification) noteHidden(lost []string, settled rolls, left absence) {
	var failed []string
	for _, name := range lost {
		for _, roll := range settled.of {
			if roll != nil && roll.find(name) == answerFailed && !slices.Contains(left.lost, name) {
				failed = append(failed, name)
			}
		}
	}
	broken := slices.ContainsFunc(settled.of, func(r *rollCall) bool { return r != nil && r.broken })
	switch {
	case left.unfailing || len(left.lost) > 0 && !broken && settled.limit == "":
		v.noteAbsence(left)
	case len(failed) > 0:
		v.note(protocol.SeverityHigh, "The change fails tests that its settings keep from being run", whatIsLost(failed))
	case len(left.lost) > 0:
		v.noteUnchecked("With the base versions of the files that say how tests are run, they can't be read.")
	}
}

func whatIsLost(names []string) string {
	if names[0] == "" {
		return "None is told to have passed."
	}
	shown := make([]string, 0, 5)
	for _, name := range names[:min(len(names), cap(shown))] {
		shown = append(shown, fmt.Sprintf("%q", name))
	}
	return fmt.Sprintf("%d in all: %s", len(names), strings.Join(shown, ", "))
}
