package jobs_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// A rename stands in the list under its new name only; both names differ.
func TestRenameIsListedOnce(t *testing.T) {
	change := fixed(map[string]githosttest.File{"renamed.py": githosttest.Text("x = 1\n")})
	delete(change, "old.py")
	s := newSubmitted(t, project(), change, says(true))
	if list := s.review.Verification.Submission.ChangedFiles; slices.Contains(list, "old.py") {
		t.Fatalf("git lists %q", list)
	}
	s.want(protocol.VerdictApproved)
}

// Attack case I06: tests that were weakened, deleted or made to end early are
// put back and run against the change.
func TestWeakenedTestsAreCaught(t *testing.T) {
	wrong := githosttest.Text("def add(a, b):\n    return a * b\n")
	weak := githosttest.Text("import unittest\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        pass\n")
	exits := githosttest.Text("import os\nos._exit(0)\n")
	for name, change := range map[string]map[string]githosttest.File{
		"weakened":    with(map[string]githosttest.File{"calc.py": wrong, "tests/test_calc.py": weak}),
		"ends early":  with(map[string]githosttest.File{"calc.py": wrong, "tests/test_aaa.py": exits}),
		"other tests": with(map[string]githosttest.File{"calc.py": wrong, "tests/test_calc.py": githosttest.Text(""), "tests/test_new.py": weak}),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubmitted(t, project(), change, says(true))
			r := s.want(protocol.VerdictRejected)
			if r[protocol.KeyIndependentReturnCode] != 0 || !strings.Contains(findings(r), "HIGH") {
				t.Errorf("code %v, findings %s", r[protocol.KeyIndependentReturnCode], findings(r))
			}
		})
	}
}

// Attack case I06, by shape: links and directories in the place of tests, and
// tests in the place of directories, are put back, too.
func TestTestsOfAnotherShapeAreCaught(t *testing.T) {
	weak := githosttest.Text("import unittest\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        pass\n")
	for name, edit := range map[string]func(map[string]githosttest.File){
		"file to directory": func(f map[string]githosttest.File) {
			delete(f, "tests/test_calc.py")
			f["tests/test_calc.py/x.py"], f["tests/test_new.py"] = weak, weak
		},
		"test to link": func(f map[string]githosttest.File) {
			f["tests/test_calc.py"], f["other.py"] = githosttest.File{Link: "../other.py"}, weak
		},
		"directory to link": func(f map[string]githosttest.File) {
			delete(f, "tests/test_calc.py")
			delete(f, "tests/__init__.py")
			f["tests"], f["other/test_calc.py"], f["other/__init__.py"] = githosttest.File{Link: "other"}, weak, githosttest.Text("")
		},
		"directory above to link": func(f map[string]githosttest.File) {
			delete(f, "deep/tests/more.py")
			f["deep"], f["shallow/tests/more.py"] = githosttest.File{Link: "shallow"}, weak
			f["tests/test_calc.py"] = weak
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := with(map[string]githosttest.File{"deep/tests/more.py": githosttest.Text("x = 1\n")})
			files := maps.Clone(base)
			files["calc.py"] = githosttest.Text("def add(a, b):\n    return a * b\n")
			edit(files)
			r := newSubmitted(t, base, files, says(true)).want(protocol.VerdictRejected)
			if r[protocol.KeyIndependentReturnCode] != 0 || !strings.Contains(findings(r), "HIGH") {
				t.Errorf("code %v, findings %s", r[protocol.KeyIndependentReturnCode], findings(r))
			}
		})
	}
}

// A change that adds a test beside the old ones is as good as its code.
func TestAddedTestsAreWelcome(t *testing.T) {
	more := githosttest.Text("import unittest\nfrom calc import add\n\n\nclass M(unittest.TestCase):\n    def test_more(self):\n        self.assertEqual(add(1, 1), 2)\n")
	s := newSubmitted(t, project(), fixed(map[string]githosttest.File{"tests/test_more.py": more}), says(true))
	r := s.want(protocol.VerdictApproved)
	if !strings.Contains(r[protocol.KeySummary].(string), "base versions") {
		t.Errorf("summary %q", r[protocol.KeySummary])
	}
}

// Attack case C18: manifests that the change brings choose no commands, and are
// told of.
func TestChangeDoesNotChooseItsTests(t *testing.T) {
	lax := map[string]githosttest.File{
		"package.json": githosttest.Text(`{"scripts":{"test":"exit 0"}}`), "Cargo.toml": githosttest.Text("[package]\nname = \"x\"\n"),
		"calc.py": githosttest.Text("def add(a, b):\n    return a * b\n"),
	}
	s := newSubmitted(t, project(), with(lax), says(true))
	s.review.Verification.Policy.RequiredCommands = nil
	r := s.want(protocol.VerdictRejected)
	if command := r[protocol.KeyIndependentCommand].(string); !strings.HasPrefix(command, "python ") {
		t.Errorf("tested by %q", command)
	}
	if got := findings(r); !strings.Contains(got, "dependency manifests") || !strings.Contains(got, "how tests are run") {
		t.Errorf("findings %s", findings(r))
	}
}

// What the change may not touch is a rejection; the owner's own rules are not.
func TestPathsOutsideTheJob(t *testing.T) {
	s := newSubmitted(t, project(), fixed(nil), says(true))
	s.review.Verification.Policy.ForbiddenPaths = []string{"calc.py"}
	if r := s.want(protocol.VerdictRejected); !strings.Contains(findings(r), "calc.py") {
		t.Errorf("findings %s", findings(r))
	}
	s = newSubmitted(t, project(), fixed(nil), says(true))
	s.config.Policy.Paths.Forbidden = []string{"calc.py"}
	s.review.Configuration.Agent.ProtectedPaths = []string{"calc.py"}
	s.want(protocol.VerdictApproved)
}

// Old servers and those without filters cost more, and give the same verdict.
func TestVerificationWithOtherServers(t *testing.T) {
	for name, c := range map[string]struct{ old, filters bool }{
		"version 2, no filters": {false, false}, "version 0": {true, true}, "version 0, no filters": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubmitted(t, project(), fixed(nil), says(true))
			s.world.git.OldProtocol = c.old
			s.must("config", "uploadpack.allowFilter", fmt.Sprint(c.filters))
			s.want(protocol.VerdictApproved)
		})
	}
}

// After criss-cross merges there are two merge bases; the list of either is
// one that the host may have made.
func TestTwoMergeBases(t *testing.T) {
	s := newSubmitted(t, project(), fixed(nil), says(true))
	tree := s.must("rev-parse", s.head+"^{tree}")
	ours, err := s.world.git.Commit("acme", "shop", "main", with(map[string]githosttest.File{"main.txt": githosttest.Text("m\n")}))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := s.world.git.Commit("acme", "shop", "side", fixed(nil))
	if err != nil {
		t.Fatal(err)
	}
	theirs = s.must("commit-tree", "-m", "side", "-p", s.base, s.must("rev-parse", theirs+"^{tree}"))
	main := s.must("commit-tree", "-m", "merge", "-p", ours, "-p", theirs, s.must("rev-parse", ours+"^{tree}"))
	s.must("update-ref", "refs/heads/main", main)
	s.head = s.must("commit-tree", "-m", "merge", "-p", theirs, "-p", ours, tree)
	s.must("update-ref", "refs/pull/1/head", s.head)
	bases := strings.Fields(s.must("merge-base", "--all", main, s.head))
	if len(bases) != 2 {
		t.Fatalf("git finds %q", bases)
	}
	s.review.Verification.Submission.CommitSHA = s.head
	s.review.Verification.Submission.ChangedFiles = strings.Split(s.must("diff", "--name-only", ours, s.head), "\n")
	s.want(protocol.VerdictApproved)
}

// Tests that come with the change, where the base has none, and a change of tool
// settings are told of.
func TestWhatTheReportTellsOf(t *testing.T) {
	plain := map[string]githosttest.File{"README.md": githosttest.Text("# nothing\n")}
	s := newSubmitted(t, plain, fixed(nil), says(true))
	s.review.Verification.Policy.RequiredCommands = nil
	if r := s.want(protocol.VerdictApproved); !strings.Contains(findings(r), "come with the change") {
		t.Errorf("findings %s", findings(r))
	}
	s = newSubmitted(t, project(), fixed(map[string]githosttest.File{"AGENTS.md": githosttest.Text("Be kind.\n")}), says(true))
	if r := s.want(protocol.VerdictApproved); !strings.Contains(findings(r), "controls tools") {
		t.Errorf("findings %s", findings(r))
	}
}
