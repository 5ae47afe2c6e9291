package jobs

import (
	"regexp"
	"slices"
	"strings"
)

// The runners whose words are known, by the module that Python runs.
const (
	pytestRunner   = "pytest"
	unittestRunner = "unittest"
)

// runnerOf names the runner that a parsed command starts, or "".
func runnerOf(args []string) string {
	if len(args) < 3 || args[0] != "python" || args[1] != "-m" {
		return ""
	}
	if args[2] == pytestRunner || args[2] == unittestRunner {
		return args[2]
	}
	return ""
}

// aloud are the arguments under which a runner names each test with what became
// of it, to the last one, whatever settings and the command itself say.
func aloud(args []string) []string {
	if runnerOf(args) == pytestRunner {
		return append(slices.Clone(args), "--verbosity=1", "--color=no", "--maxfail=0", "--capture=fd", "--tb=no", "-rE", "--continue-on-collection-errors")
	}
	whole := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "-f" || arg == "--failfast" })
	return append(whole, "-v", "-b")
}

// answer is what became of a test.
type answer string

const (
	answerRan     answer = "ran" // the runner did not say how it ended
	answerPassed  answer = "passed"
	answerFailed  answer = "failed"
	answerSkipped answer = "skipped" // or expected to fail
)

// rollCall is what a runner told of its tests.
type rollCall struct {
	code    int
	answers map[string]answer // by the runner's name of the test
	broken  bool              // a file of tests could not be read, or the runner ended before it named any
}

var (
	pytestLine   = regexp.MustCompile(`(?m)^(\S+\.py::[\w:]+(?:\[.*\])?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b`)
	pytestBroken = regexp.MustCompile(`(?m)^ERROR \S+\.py\b(?:[^:]|$)`)
	unittestLine = regexp.MustCompile(`(?m)^(\w+) \(([\w.]+)\)`)
	unittestWord = regexp.MustCompile(`(?m) \.\.\. (ok|FAIL|ERROR|skipped|expected failure|unexpected success)\b`)
)

var answerWords = map[string]answer{
	"PASSED": answerPassed, "XPASS": answerPassed, "ok": answerPassed, "unexpected success": answerPassed,
	"FAILED": answerFailed, "ERROR": answerFailed, "FAIL": answerFailed,
	"SKIPPED": answerSkipped, "XFAIL": answerSkipped, "skipped": answerSkipped, "expected failure": answerSkipped,
}

// readRoll reads the output of a command that aloud made.
func readRoll(args []string, code int, output string) rollCall {
	r := rollCall{code: code, answers: map[string]answer{}}
	if runnerOf(args) == pytestRunner {
		for _, m := range pytestLine.FindAllStringSubmatch(output, -1) {
			r.add(m[1], answerWords[m[2]])
		}
		r.broken = pytestBroken.MatchString(output)
	} else {
		r.readUnittest(output)
	}
	r.broken = r.broken || len(r.answers) == 0 && code != 0 && code != 5
	return r
}

// readUnittest takes what stands between one name and the next for the first
// one's end: a test's own description may come between the two.
func (r *rollCall) readUnittest(output string) {
	output, _, _ = strings.Cut(output, "\n=====")
	starts := unittestLine.FindAllStringSubmatchIndex(output, -1)
	for i, at := range starts {
		name, rest := output[at[4]:at[5]], output[at[1]:]
		if i+1 < len(starts) {
			rest = output[at[1]:starts[i+1][0]]
		}
		if strings.HasPrefix(name, "unittest.loader._FailedTest") {
			r.broken = true
			continue
		}
		if !strings.HasSuffix(name, "."+output[at[2]:at[3]]) {
			continue // what is set up for a class or a module
		}
		r.add(name, answerRan)
		for _, m := range unittestWord.FindAllStringSubmatch(rest, -1) {
			r.add(name, answerWords[m[1]])
		}
	}
}

// add keeps the worst that was told of a test.
func (r *rollCall) add(name string, a answer) {
	worse := []answer{answerRan, answerPassed, answerSkipped, answerFailed}
	if slices.Index(worse, a) >= slices.Index(worse, r.answers[name]) {
		r.answers[name] = a
	}
}

// find is the answer for a test, or for one of the same name with other
// parameters; "" when none was told.
func (r rollCall) find(name string) answer {
	if a, told := r.answers[name]; told {
		return a
	}
	bare, found := withoutParameters(name), answer("")
	for other, a := range r.answers {
		if withoutParameters(other) == bare && (found == "" || a == answerPassed) {
			found = a
		}
	}
	return found
}

func (r rollCall) hasFailed(which func(name string) bool) bool {
	for name, a := range r.answers {
		if a == answerFailed && which(name) {
			return true
		}
	}
	return false
}

func withoutParameters(name string) string {
	bare, _, _ := strings.Cut(name, "[")
	return bare
}

// functionOf is the last part of a test's name: what its file defines.
func functionOf(name string) string {
	bare := withoutParameters(name)
	return bare[strings.LastIndexAny(bare, ":.")+1:]
}

// absence is what the commit's roll lacks beside the base's.
type absence struct {
	// lost are tests that ran on the base and did not on the commit. "" stands
	// for all of them.
	lost []string
	// unfailing: a test that must fail was not told as failed, or the status was
	// 0 all the same.
	unfailing bool
}

// compareRolls holds the commit's roll against the base's. planted is the name of
// the test that must fail; ours tells what the kept files define, since names that
// code makes up as it runs may differ with the code.
func compareRolls(base, commit rollCall, planted string, ours func(function string) bool) absence {
	var out absence
	passed := false
	for name, a := range commit.answers {
		is := functionOf(name) == planted
		out.unfailing = out.unfailing || is && (a != answerFailed && base.answers[name] == answerFailed || a == answerFailed && commit.code == 0)
		passed = passed || !is && a == answerPassed
	}
	for name, a := range base.answers {
		if a == answerSkipped || functionOf(name) != planted && !ours(functionOf(name)) {
			continue
		}
		if now := commit.find(name); now == "" || now == answerSkipped {
			out.lost = append(out.lost, name)
		}
	}
	if base.broken && !passed && len(out.lost) == 0 {
		out.lost = append(out.lost, "")
	}
	slices.Sort(out.lost)
	return out
}
