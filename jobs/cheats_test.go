package jobs_test

import (
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	pytest    = "python -m pytest -q"
	wrongSum  = "def add(a, b):\n    return a * b\n"
	rightSum  = "def add(a, b):\n    return a + b\n"
	weakTest  = "def test_add():\n    pass\n"
	onlyCheck = "[tool.pytest.ini_options]\npython_files = [\"check_*.py\"]\n"
)

// texts adds files, and takes out those whose text is "-".
func texts(more ...string) map[string]githosttest.File {
	files := with(nil)
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = githosttest.Text(more[i+1])
		if more[i+1] == "-" {
			delete(files, more[i])
		}
	}
	return files
}

// wantOf verifies with a model that sees nothing wrong, and wants a verdict;
// a rejection must come of a grave finding, since the tests pass.
func wantOf(t *testing.T, verdict protocol.Verdict, command string, base, change map[string]githosttest.File) {
	t.Helper()
	s := newSubmitted(t, base, change, says(true))
	s.review.Verification.Policy.RequiredCommands = []string{command}
	r := s.want(verdict)
	grave := strings.Contains(findings(r), "HIGH")
	if r[protocol.KeyIndependentReturnCode] != 0 || grave != (verdict == protocol.VerdictRejected) {
		t.Errorf("code %v, findings %s", r[protocol.KeyIndependentReturnCode], findings(r))
	}
}

// Attack case I06: settings under which the runner no longer finds the tests
// that were replaced don't keep those from being run.
func TestSettingsThatHideTheOldTests(t *testing.T) {
	for name, c := range map[string]struct {
		sum     string
		verdict protocol.Verdict
	}{"to hide a fault": {wrongSum, protocol.VerdictRejected}, "to rename them": {rightSum, protocol.VerdictApproved}} {
		t.Run(name, func(t *testing.T) {
			wantOf(t, c.verdict, pytest, with(nil), texts("calc.py", c.sum, "pyproject.toml", onlyCheck,
				"tests/test_calc.py", "-", "tests/check_calc.py", weakTest))
		})
	}
}

// Attack case I06: what tests compare with is a part of them.
func TestExpectedDataIsPutBack(t *testing.T) {
	reads := "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n" +
		"        self.assertEqual(add(2, 3), int(open('testdata/sum.txt').read()))\n"
	base := texts("tests/test_calc.py", reads, "testdata/sum.txt", "5\n")
	change := texts("tests/test_calc.py", reads, "testdata/sum.txt", "6\n", "calc.py", wrongSum)
	wantOf(t, protocol.VerdictRejected, "python -m unittest discover -s tests -q", base, change)
}

// Attack case I06: code that ends the runner with 0 has passed no test.
func TestRunnersThatAreEndedEarly(t *testing.T) {
	exits := "import os\n\n\ndef add(a, b):\n    os._exit(0)\n"
	for _, command := range []string{pytest, "python -m unittest discover -s tests -q", "pytest"} {
		t.Run(command, func(t *testing.T) {
			wantOf(t, protocol.VerdictRejected, command, with(nil), texts("calc.py", exits))
		})
	}
}

// Attack case I06: a runner that the change brings along, since Python looks in
// the workspace first, has run no test.
func TestRunnersThatAreReplaced(t *testing.T) {
	said := "print('Ran 1 test in 0.000s\\n\\nOK, 1 passed')\n"
	for command, change := range map[string]map[string]githosttest.File{
		"python -m unittest discover -s tests -q": texts("calc.py", wrongSum, "unittest/__init__.py", "", "unittest/__main__.py", said),
		pytest: texts("calc.py", wrongSum, "pytest.py", said),
	} {
		t.Run(command, func(t *testing.T) { wantOf(t, protocol.VerdictRejected, command, with(nil), change) })
	}
}

// What quiet runners print is taken for what it is.
func TestQuietRunnersAreBelieved(t *testing.T) {
	for _, command := range []string{"python -m pytest -qq", "python -m unittest -q tests.test_calc", "python -m pytest -v"} {
		t.Run(command, func(t *testing.T) {
			wantOf(t, protocol.VerdictApproved, command, with(nil), texts("calc.py", rightSum))
		})
	}
}
