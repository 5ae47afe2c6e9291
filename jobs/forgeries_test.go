package jobs_test

import (
	"maps"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	discover = "python -m unittest discover -s tests"
	twoTests = "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n" +
		"    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n\n    def test_true(self):\n        \"It is.\"\n        self.assertTrue(True)\n"
	told = "import os\nprint('Ran 2 tests in 0.001s\\n\\nOK, 2 passed', flush=True)\nos._exit(0)\n"
	info = "Metadata-Version: 1.0\nName: x\nVersion: 1\n"
)

// edited is a tree with some files of texts replaced, added or ("-") taken out.
func edited(base map[string]githosttest.File, more ...string) map[string]githosttest.File {
	files := maps.Clone(base)
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = githosttest.Text(more[i+1])
		if more[i+1] == "-" {
			delete(files, more[i])
		}
	}
	return files
}

// Attack case I06: code that runs in the runner's own process, or beside it, can
// end it with any words and any status, leave tests out or make failing ones
// pass. What it can't do by any of these is to run the base's tests and to have
// one fail that must.
func TestI06ForgedTestRuns(t *testing.T) {
	base := texts("tests/test_calc.py", twoTests)
	for name, c := range map[string]struct {
		command string
		change  []string
	}{
		"words of unittest":          {discover, []string{"calc.py", told}},
		"words of pytest":            {pytest, []string{"calc.py", "import _pytest.terminal\n" + told}},
		"status at exit of pytest":   {pytest, []string{"calc.py", "import atexit, os\natexit.register(os._exit, 0)\n" + wrongSum}},
		"status at exit of unittest": {discover, []string{"calc.py", "import atexit, os\natexit.register(os._exit, 0)\n" + wrongSum}},
		"asserts made harmless":      {discover, []string{"calc.py", "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n" + wrongSum}},
		"skipped in pytest":          {pytest, []string{"calc.py", "import unittest\n\n\ndef add(a, b):\n    raise unittest.SkipTest('later')\n"}},
		"skipped in unittest":        {discover, []string{"calc.py", "import unittest\n\n\ndef add(a, b):\n    raise unittest.SkipTest('later')\n"}},
		"expected to fail":           {pytest, []string{"calc.py", "import pytest\n\n\ndef add(a, b):\n    pytest.xfail('later')\n"}},
		"failures forgotten one by one": {pytest, []string{"calc.py", "import gc\nfrom _pytest.main import Session\n\n\ndef add(a, b):\n    for s in gc.get_objects():\n" +
			"        if isinstance(s, Session):\n            s.__class__ = type('S', (Session,), {'testsfailed': property(lambda s: 0, lambda s, n: None)})\n    return a * b\n"}},
		"a module in the runner's way": {discover, []string{"calc.py", wrongSum, "argparse.py", told}},
		"a package in pytest's way":    {pytest, []string{"calc.py", wrongSum, "pluggy.py", told}},
		"a plugin from the workspace": {pytest, []string{
			"calc.py", wrongSum, "x.egg-info/PKG-INFO", info, "x.egg-info/entry_points.txt", "[pytest11]\nx = plug\n",
			"plug.py", "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if i.name != 'test_add']\n",
		}},
		"settings that leave one out": {pytest, []string{"calc.py", wrongSum, "pyproject.toml", "[tool.pytest.ini_options]\naddopts = \"-k 'not test_add'\"\n"}},
		"replaced and skipped": {pytest, []string{
			"calc.py", "import unittest\n\n\ndef add(a, b):\n    raise unittest.SkipTest('later')\n",
			"tests/test_calc.py", weakTest,
		}},
	} {
		t.Run(name, func(t *testing.T) { wantOf(t, protocol.VerdictRejected, c.command, base, edited(base, c.change...)) })
	}
}

// Attack case I06: failures that are forgotten before the planted one comes.
func TestI06ForgottenFailures(t *testing.T) {
	base := texts("tests/test_calc.py", twoTests+"\n    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n")
	forgets := "import gc\nfrom _pytest.main import Session\n\n\ndef add(a, b):\n    for s in gc.get_objects():\n" +
		"        if isinstance(s, Session):\n            s.testsfailed = 0\n    return a * b\n"
	wantOf(t, protocol.VerdictRejected, pytest, base, edited(base, "calc.py", forgets))
}

// Attack case I06: a file is one of tests by the command's or the base's word,
// too, not by its name alone.
func TestI06TestsOfOtherNames(t *testing.T) {
	weak := "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        pass\n"
	for name, c := range map[string]struct{ command, file, ini string }{
		"found by unittest":    {"python -m unittest discover", "testcalc.py", ""},
		"by a pattern":         {"python -m unittest discover -s . -p 'check*.py'", "checkcalc.py", ""},
		"named as a module":    {"python -m unittest sums.calcs", "sums/calcs.py", ""},
		"named as a test":      {"python -m unittest sums.calcs.T.test_add", "sums/calcs.py", ""},
		"by pytest's settings": {pytest, "checks/check_calc.py", "[pytest]\npython_files =\n    check_*.py\n    t_*.py\n"},
	} {
		t.Run(name, func(t *testing.T) {
			base := texts("tests/test_calc.py", "-", "tests/__init__.py", "-", c.file, twoTests)
			if c.ini != "" {
				base = edited(base, "pytest.ini", c.ini)
			}
			wantOf(t, protocol.VerdictRejected, c.command, base, edited(base, "calc.py", wrongSum, c.file, weak))
		})
	}
	base := texts("tests/test_calc.py", "-", "sums/calc_checks.py", twoTests)
	base["tests/test_calc.py"] = githosttest.File{Link: "../sums/calc_checks.py"}
	t.Run("in a link's place", func(t *testing.T) {
		wantOf(t, protocol.VerdictRejected, pytest, base, edited(base, "calc.py", wrongSum, "tests/test_calc.py", weak))
	})
	t.Run("behind a link", func(t *testing.T) {
		wantOf(t, protocol.VerdictRejected, pytest, base, edited(base, "calc.py", wrongSum, "sums/calc_checks.py", weak))
	})
}

// Honest changes that merely touch what forgeries use are as good as their code.
func TestHonestChangesPassTheCrossCheck(t *testing.T) {
	skips := twoTests + "\n    @unittest.skip('never here')\n    def test_skipped(self):\n        pass\n\n    def test_each(self):\n" +
		"        for i in range(2):\n            with self.subTest(i=i):\n                self.assertEqual(add(i, 0), i)\n"
	needs := "from calc import add, double\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\ndef test_double():\n    assert double(2) == 4\n"
	for name, c := range map[string]struct {
		command      string
		base, change []string
	}{
		"skips and parts, unittest":  {discover, []string{"tests/test_calc.py", skips}, nil},
		"skips and parts, pytest":    {pytest, []string{"tests/test_calc.py", skips}, nil},
		"stops at the first":         {"python -m unittest discover -f -s tests", []string{"tests/test_calc.py", twoTests, "tests/test_also.py", twoTests}, nil},
		"stops at the first, pytest": {pytest + " -x", []string{"tests/test_calc.py", twoTests, "tests/test_also.py", twoTests}, nil},
		"one test named":             {"python -m unittest tests.test_calc.T.test_add", nil, nil},
		"tests that the base can't load": {
			pytest,
			[]string{"tests/test_calc.py", needs},
			[]string{"calc.py", rightSum + "\n\ndef double(a):\n    return 2 * a\n"},
		},
		"a base that hangs or ends": {discover, []string{"calc.py", "raise SystemExit(3)\n"}, nil},
		"settings that are needed": {pytest, nil, []string{
			"calc.py", "-", "src/calc.py", rightSum,
			"pyproject.toml", "[tool.pytest.ini_options]\npythonpath = [\"src\"]\n",
		}},
		"parameters of the code": {
			pytest,
			[]string{
				"calc.py", "CASES = [1, 2]\n" + "def add(a, b):\n    return a - b\n",
				"tests/test_calc.py", "import pytest\nfrom calc import CASES, add\n\n\n@pytest.mark.parametrize('n', CASES)\ndef test_add(n):\n    assert add(n, n) == 2 * n\n",
			},
			[]string{"calc.py", "CASES = [3, 4, 5]\n" + rightSum},
		},
		"a package's own metadata": {pytest, nil, []string{"x.egg-info/PKG-INFO", info, "x.egg-info/entry_points.txt", "[console_scripts]\nx = calc:add\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := edited(with(nil), c.base...)
			wantOf(t, protocol.VerdictApproved, c.command, base, edited(edited(base, "calc.py", rightSum), c.change...))
		})
	}
}

// A task without criteria is judged as a whole: a model's no is heard there, too.
func TestTaskWithoutCriteria(t *testing.T) {
	for verdict, met := range map[protocol.Verdict]bool{protocol.VerdictApproved: true, protocol.VerdictRejected: false} {
		s := newSubmitted(t, project(), fixed(nil), says(met))
		s.review.Verification.Work.AcceptanceCriteria = nil
		if r := s.want(verdict); len(r[protocol.KeyAcceptanceCriteria].([]any)) != 0 {
			t.Errorf("%s: %v", verdict, r[protocol.KeyAcceptanceCriteria])
		}
	}
}
