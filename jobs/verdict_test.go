package jobs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// The inside is the point: no way to a report may lead around this function.
func TestVerdictIsNeverBetterThanTheTests(t *testing.T) {
	run := rapid.Custom(func(t *rapid.T) testRun {
		return testRun{
			code:  rapid.SampledFrom([]int{0, 0, 0, 1, 5, -1}).Draw(t, "code"),
			ended: rapid.SampledFrom([]sandbox.Limit{"", "", "", sandbox.LimitTimeout}).Draw(t, "ended"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		j := judged{ran: ran{first: run.Draw(t, "first")}, decided: rapid.SampledFrom([]string{"", "", "no"}).Draw(t, "decided")}
		if rapid.Bool().Draw(t, "has old") {
			old := run.Draw(t, "old")
			j.old = &old
		}
		met := true
		for range rapid.IntRange(0, 3).Draw(t, "criteria") {
			passed := rapid.SampledFrom([]bool{true, true, false}).Draw(t, "passed")
			met = met && passed
			j.judgement.Criteria = append(j.judgement.Criteria, coding.Criterion{Passed: passed})
		}
		var findings []finding
		for range rapid.IntRange(0, 2).Draw(t, "findings") {
			f := finding{Severity: rapid.SampledFrom(coding.Severities).Draw(t, "severity")}
			met = met && f.Severity != protocol.SeverityHigh && f.Severity != protocol.SeverityCritical
			findings = append(findings, f)
		}
		met = met && j.decided == "" && j.first.passed() && (j.old == nil || j.old.passed())
		want := protocol.VerdictRejected
		if met {
			want = protocol.VerdictApproved
		}
		if got := verdict(j, findings); got != want {
			t.Fatalf("verdict %s, want %s", got, want)
		}
	})
}

func TestListsThatBearOut(t *testing.T) {
	add, del, mod := gitops.PathAdded, gitops.PathDeleted, gitops.PathModified
	change := func(parts ...any) (out []gitops.ChangedPath) {
		for i := 0; i < len(parts); i += 2 {
			out = append(out, gitops.ChangedPath{Status: parts[i].(gitops.PathStatus), Path: parts[i+1].(string)})
		}
		return out
	}
	for name, c := range map[string]struct {
		changed []gitops.ChangedPath
		listed  []string
		want    bool
	}{
		"the same":                      {change(mod, "a", add, "b"), []string{"b", "a"}, true},
		"a rename":                      {change(del, "a", add, "b"), []string{"b"}, true},
		"both names":                    {change(del, "a", add, "b"), []string{"a", "b"}, true},
		"two sources, one new name":     {change(del, "a", add, "b", del, "c"), []string{"b"}, false},
		"one of two sources":            {change(del, "a", add, "b", del, "c"), []string{"b", "c"}, true},
		"a deletion hidden":             {change(del, "a", mod, "b"), []string{"b"}, false},
		"a modification hidden":         {change(mod, "a", add, "b"), []string{"b"}, false},
		"an addition hidden":            {change(del, "a", add, "b", add, "c"), []string{"b"}, false},
		"one more":                      {change(mod, "a"), []string{"a", "b"}, false},
		"one twice":                     {change(mod, "a"), []string{"a", "a"}, false},
		"nothing, although a file left": {change(del, "a"), nil, false},
		"another case":                  {change(mod, "A"), []string{"a"}, false},
	} {
		if got := bearsOut(c.changed, c.listed); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPathsOfTests(t *testing.T) {
	for path, want := range map[string]bool{
		"tests/x.json": true, "src/test/java/A.java": true, "a/__tests__/b.js": true, "pkg/a_test.go": true, "test_a.py": true,
		"a_test.py": true, "app.spec.ts": true, "app.test.tsx": true, "CalcTest.java": true, "spec/a_spec.rb": true, "A.t.sol": true,
		"conftest.py": true, "src/setup.cfg": true, "tests.py": true,
		"tests": true, "src/Test": true, "pkg/testdata/golden.txt": true, "ui/__snapshots__/a.test.js.snap": true,
		"jest.config.mjs": true, "ui/vitest.config.ts": true, ".mocharc.cjs": true, "gradlew": true, "mvnw.cmd": true,
		"unittest/__main__.py": true, "src/pytest.py": true, "_pytest/main.py": true,
		"__pycache__/calc.cpython-313.pyc": true, "x.egg-info/entry_points.txt": true, "a/x-1.dist-info/entry_points.txt": true,
		"x.egg-info/PKG-INFO": false, "entry_points.txt": false,
		"config.js": false, "gradlew.md": false, "pytest_plugin.py": false, "unittests.md": false,
		"latest.py": false, "contest.go": false, "src/attest/a.py": false, "README.md": false, "protest.rb": false, "testing.py": false,
	} {
		if got := isTestPath(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestPathsOfSettings(t *testing.T) {
	for path, want := range map[string]bool{
		"pyproject.toml": true, "web/package.json": true, ".npmrc": true, "go.work": true, ".cargo/config.toml": true, "a/.cargo/config": true,
		".mvn/jvm.config": true, ".mvn/extensions.xml": true, "hardhat.config.ts": true, "node_modules/.bin/jest": true, "vendor/bin/phpunit": true,
		"config.toml": false, "vendor/a/b.go": false, "src/mvn/x.java": false, "go.mod": false,
	} {
		if got := isTestSetting(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// Attack case I14: what a verification holds of the repository host can't push,
// and its steps name none of the worker's that do.
func TestI14VerificationNamesNoPush(t *testing.T) {
	if held := reflect.TypeFor[readable](); held.NumMethod() != 2 {
		t.Errorf("%d methods reach the repository host", held.NumMethod())
	}
	if _, can := reflect.TypeFor[*wire.Remote]().MethodByName("Push"); !can {
		t.Error("the name looked for below is no push any more")
	}
	forbidden := []string{"Push", "push", "publish", "intend", "resume", "commit", "pulls", "changeUntilTested"}
	for _, name := range []string{"verifier.go", "claim.go", "checkout.go", "review.go", "verdict.go", "pack.go", "crosscheck.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, isCall := n.(*ast.CallExpr)
			if !isCall {
				return true
			}
			if sel, isSel := call.Fun.(*ast.SelectorExpr); isSel && slices.Contains(forbidden, sel.Sel.Name) {
				t.Errorf("%s calls %s", name, sel.Sel.Name)
			}
			return true
		})
	}
}
