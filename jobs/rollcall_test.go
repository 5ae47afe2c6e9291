package jobs

import (
	"maps"
	"slices"
	"testing"
)

// What the runners print when each test is named, as they were seen to.
func TestRollsAreRead(t *testing.T) {
	passed, failed, skipped, none := answerPassed, answerFailed, answerSkipped, answerRan
	for name, c := range map[string]struct {
		runner, output string
		code           int
		want           map[string]answer
		broken         bool
	}{
		"pytest": {"pytest", "collected 4 items\n\ntests/test_a.py::T::test_x PASSED   [ 25%]\ntests/test_a.py::test_p[a b] FAILED [ 50%]\n" +
			"tests/test_a.py::test_p[c] SKIPPED (no) [ 75%]\ntests/test_a.py::test_w XFAIL\na.py::a.add PASSED\n", 1, map[string]answer{
			"tests/test_a.py::T::test_x": passed, "tests/test_a.py::test_p[a b]": failed, "tests/test_a.py::test_p[c]": skipped, "tests/test_a.py::test_w": skipped,
		}, false},
		"pytest, passed and torn down": {"pytest", "a/test_b.py::test PASSED\na/test_b.py::test ERROR\n", 1, map[string]answer{"a/test_b.py::test": failed}, false},
		"pytest, not loaded":           {"pytest", "ERROR tests/test_b.py\n", 2, map[string]answer{}, true},
		"unittest": {"unittest", "test_s (a.T.test_s) ... \n  test_s (a.T.test_s) (i=1) ... skipped 'sub'\ntest_w (a.T.test_w) ... expected failure\n" +
			"test_x (a.T.test_x)\nDocs here ... ok\ntest_y (a.T.test_y) ... \n  test_y (a.T.test_y) (i=0) ... FAIL\ntest_z (a.T.test_z) ... skipped 'no'\n" +
			"test_b (unittest.loader._FailedTest.test_b) ... ERROR\nsetUpClass (a.U) ... ERROR\ntest_n (a.T.test_n) ... ", 1, map[string]answer{
			"a.T.test_s": skipped, "a.T.test_w": skipped, "a.T.test_x": passed, "a.T.test_y": failed, "a.T.test_z": skipped, "a.T.test_n": none,
		}, true},
		"unittest, its report is no roll": {"unittest", "test_x (a.T.test_x) ... ok\n\n======\nFAIL: ...\ntest_y (a.T.test_y)\n", 0, map[string]answer{"a.T.test_x": passed}, false},
		"ended at once":                   {"unittest", "", 3, map[string]answer{}, true},
		"nothing to run":                  {"pytest", "no tests ran in 0.01s\n", 5, map[string]answer{}, false},
	} {
		got := readRoll([]string{"python", "-m", c.runner}, c.code, c.output)
		if !maps.Equal(got.answers, c.want) || got.broken != c.broken {
			t.Errorf("%s: %v, broken %v", name, got.answers, got.broken)
		}
	}
}

func TestRollsAreCompared(t *testing.T) {
	roll := func(code int, parts ...string) rollCall {
		r := rollCall{code: code, answers: map[string]answer{}}
		for i := 0; i < len(parts); i += 2 {
			r.answers[parts[i]] = answer(parts[i+1])
		}
		return r
	}
	broken := rollCall{code: 1, broken: true}
	base := roll(1, "a.T.test_a", "failed", "a.T.test_b", "passed", "a.T.test_c", "skipped", "a.P.test_0", "failed", "a.T.test_made", "passed")
	for name, c := range map[string]struct {
		base, commit rollCall
		lost         []string
		unfailing    bool
	}{
		"all there":           {base, roll(1, "a.T.test_a", "passed", "a.T.test_b", "passed", "a.P.test_0", "failed"), nil, false},
		"one skipped":         {base, roll(1, "a.T.test_a", "skipped", "a.T.test_b", "passed", "a.P.test_0", "failed"), []string{"a.T.test_a"}, false},
		"one missing":         {base, roll(1, "a.T.test_a", "passed", "a.P.test_0", "failed"), []string{"a.T.test_b"}, false},
		"status 0":            {base, roll(0, "a.T.test_a", "passed", "a.T.test_b", "passed", "a.P.test_0", "failed"), nil, true},
		"planted passes":      {base, roll(1, "a.T.test_a", "passed", "a.T.test_b", "passed", "a.P.test_0", "passed"), nil, true},
		"nothing told":        {base, roll(0), []string{"a.P.test_0", "a.T.test_a", "a.T.test_b"}, false},
		"other parameters":    {roll(0, "t.py::test_a[1]", "passed"), roll(0, "t.py::test_a[2]", "passed"), nil, false},
		"a parameter skipped": {roll(0, "t.py::test_a[1]", "passed"), roll(0, "t.py::test_a[1]", "skipped", "t.py::test_a[2]", "passed"), []string{"t.py::test_a[1]"}, false},
		"not loaded before":   {broken, roll(1, "a.T.test_a", "passed", "a.P.test_0", "failed"), nil, false},
		"skipped instead":     {broken, roll(1, "a.T.test_a", "skipped", "a.P.test_0", "failed"), []string{""}, false},
		"silent both times":   {roll(5), roll(0), nil, false},
	} {
		got := compareRolls(c.base, c.commit, "test_0", func(f string) bool { return f != "test_made" })
		if !slices.Equal(got.lost, c.lost) || got.unfailing != c.unfailing {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWaysOfLinks(t *testing.T) {
	for _, c := range [][3]string{{"tests", "a/b.py", "../a/b.py"}, {".", "a/b.py", "a/b.py"}, {"a/tests", "a/b.py", "../b.py"}, {"a/b", "a/b/c.py", "c.py"}} {
		if got := way(c[0], c[1]); got != c[2] {
			t.Errorf("from %s to %s: %s", c[0], c[1], got)
		}
	}
}
