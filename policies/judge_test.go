package policies_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// wide is a task that asks for everything.
func wide() policies.Task {
	return policies.Task{NewDependencies: true, DatabaseMigrations: true, Minutes: 60, Repairs: 2}
}

func wideSettings() policies.Settings {
	return policies.Settings{NewDependencies: true, DatabaseMigrations: true}
}

func narrow(t testing.TB, policy string, s policies.Settings, task policies.Task) *policies.Effective {
	t.Helper()
	e, err := policies.Narrow(builtin(t, policy), s, task)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// kinds returns what a written file at the path breaks, without repetitions.
func kinds(e *policies.Effective, path string) []policies.ViolationKind {
	var found []policies.ViolationKind
	for _, v := range e.Judge([]policies.Change{{Path: path, Kind: policies.ChangeModify}}) {
		found = append(found, v.Kind)
	}
	return slices.Compact(found)
}

func TestJudgeSortsOfRules(t *testing.T) {
	task := wide()
	task.NewDependencies, task.DatabaseMigrations = false, false
	task.AllowedPaths = []string{"src", "docs/**", "*.md"}
	task.ForbiddenPaths = []string{"src/secret", "src/*.key"}
	task.ProtectedPaths = []string{"src/frozen.py"}
	settings := wideSettings()
	settings.ProtectedPaths = []string{"src/owner"}
	e := narrow(t, "strict", settings, task)
	for path, want := range map[string][]policies.ViolationKind{
		"src/a.py":                nil,
		"SRC/a.py":                nil,
		"docs/x/y":                nil,
		"README.md":               nil,
		"lib/a.py":                {policies.ViolationOutsideAllowed},
		"src/secret/x":            {policies.ViolationForbidden},
		"src/SECRET":              {policies.ViolationForbidden},
		"src/d/tls.key":           {policies.ViolationForbidden},
		"src/frozen.py":           {policies.ViolationProtected},
		"src/owner/a":             {policies.ViolationProtected},
		"src/package.json":        {policies.ViolationDependencies},
		"src/requirements.txt":    {policies.ViolationDependencies},
		"src/requirements-ci.txt": {policies.ViolationDependencies},
		"src/Cargo.LOCK":          {policies.ViolationDependencies},
		"src/migrations/0001.py":  {policies.ViolationMigration},
		"src/Migrations/0001.py":  {policies.ViolationMigration},
		"src/db/migrate/1.rb":     {policies.ViolationMigration},
		"src/immigrations/x":      nil,
		"src/.env":                {policies.ViolationForbidden},
		"src/.git/config":         {policies.ViolationForbidden},
		"src/a\\b":                {policies.ViolationUndeliverable},
		"src/..a":                 {policies.ViolationUndeliverable},
		"src/a ":                  {policies.ViolationUndeliverable},
		"src/a\xff":               {policies.ViolationUndeliverable},
		".github/workflows/x":     {policies.ViolationForbidden, policies.ViolationOutsideAllowed},
	} {
		if diff := cmp.Diff(want, kinds(e, path)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}

// TestJudgeAsksEachSideThatAllows: a path must be allowed by all of them.
func TestJudgeAsksEachSideThatAllows(t *testing.T) {
	p, task := builtin(t, "relaxed"), wide()
	p.Paths.Allowed, task.AllowedPaths = []string{"src"}, []string{"*.py"}
	e, err := policies.Narrow(p, wideSettings(), task)
	if err != nil {
		t.Fatal(err)
	}
	for path, violations := range map[string]int{"src/a.py": 0, "src/a.c": 1, "a.py": 1, "a.c": 2} {
		if got := e.Judge([]policies.Change{{Path: path, Kind: policies.ChangeAdd}}); len(got) != violations {
			t.Errorf("%q: %v", path, got)
		}
	}
}

// TestAllowRuleReadsNoMoreIntoStars: with a wildcard before it, a final "/**" is
// part of the pattern, not "and below".
func TestAllowRuleReadsNoMoreIntoStars(t *testing.T) {
	rule := policies.NewAllowRule("pkg/*/**")
	for path, want := range map[string]bool{"pkg/a": false, "pkg/a/b": true, "pkg/a/b/c": true, "pkg": false} {
		if got := rule.Covers(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}

// TestE12OtherSpellings: the same place in another spelling, and what takes the
// place of a directory above it.
func TestE12OtherSpellings(t *testing.T) {
	always := narrow(t, "relaxed", wideSettings(), wide())
	for _, path := range []string{
		".github/workflows/ci.yml", ".GitHub/WorkFlows", ".github/workflow\u017f/x", "\uff0egithub/workflows/x",
		".git\u200bhub/workflows/x", ".env/x", ".ENV", "a/.env.local", ".g\u200cit/x", "sub/.GIT", `sub\.git\x`,
	} {
		if !slices.Contains(kinds(always, path), policies.ViolationForbidden) {
			t.Errorf("%q is not forbidden", path)
		}
	}
	task := wide()
	task.ForbiddenPaths = []string{"caf\u00e9", "/src", "./lib", "a/../b", "deep/er/est", "pat/*/x", "**/secrets/**"}
	e := narrow(t, "relaxed", wideSettings(), task)
	for path, want := range map[string]bool{
		"cafe\u0301/menu": true, "CAFE\u0301": true, "CAF\u00c9/x": true, "cafe": false,
		"src": true, "src/x": true, "srcs": false, "lib/x": true, "b": true, "a": false,
		"deep": true, "deep/er": true, "deep/er/est": true, "deep/other": false,
		"pat": true, "pat/a/x": true, "pat/a/x/below": true, "pat/a/y": false,
		"secrets/a": true, "x/secrets/a": true, "x/secrets": true, "x/secret": false,
	} {
		if got := slices.Contains(kinds(e, path), policies.ViolationForbidden); got != want {
			t.Errorf("%q forbidden: %v", path, got)
		}
	}
}

func TestE12UnusableForbiddingRuleStopsTheJob(t *testing.T) {
	for _, rule := range []string{
		"../src", "..", "a/../../b", "/", ".", "./", "C:/x", "a\x00b", "a\xff", strings.Repeat("a", policies.MaxRuleBytes+1),
	} {
		for _, put := range []func(*policies.Task){
			func(t *policies.Task) { t.ForbiddenPaths = []string{"ok", rule} },
			func(t *policies.Task) { t.ProtectedPaths = []string{rule} },
		} {
			task := wide()
			put(&task)
			if e, err := policies.Narrow(builtin(t, "relaxed"), wideSettings(), task); !errors.Is(err, policies.ErrRule) || e != nil {
				t.Errorf("rule %.20q: %v, %v", rule, e, err)
			}
		}
	}
	task := wide()
	task.ForbiddenPaths = []string{"", "  "}
	e := narrow(t, "relaxed", wideSettings(), task)
	if got := kinds(e, "a"); got != nil {
		t.Errorf("blank rules forbid: %v", got)
	}
}

func TestNarrowBoundsRules(t *testing.T) {
	many := make([]string, policies.MaxRules+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	var stars, wideStars []string
	for i := range 20 {
		stars = append(stars, fmt.Sprint(i)+strings.Repeat("*a", 400))
		wideStars = append(wideStars, fmt.Sprint(i)+strings.Repeat("\uff0aa\ufdfa", 100))
	}
	for name, rules := range map[string][]string{
		"count": many, "wildcards": stars, "wildcards in another form": wideStars,
		"length": {strings.Repeat("a", policies.MaxRuleBytes+1)},
	} {
		for _, put := range []func(*policies.Task){
			func(t *policies.Task) { t.AllowedPaths = rules }, func(t *policies.Task) { t.ForbiddenPaths = rules },
		} {
			task := wide()
			put(&task)
			if _, err := policies.Narrow(builtin(t, "strict"), wideSettings(), task); !errors.Is(err, policies.ErrRule) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestE13StrictProtectsControlFiles holds the list itself, so that a name can't
// be lost without a test that says so.
func TestE13StrictProtectsControlFiles(t *testing.T) {
	want := []string{
		".gitmodules", ".gitattributes", ".npmrc", ".pnpmfile.cjs", ".cargo/config.toml", ".envrc", ".husky",
		"AGENTS.md", "CODEOWNERS",
	}
	if diff := cmp.Diff(want, builtin(t, "strict").Paths.ProtectedNames); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	strict, relaxed := narrow(t, "strict", wideSettings(), wide()), narrow(t, "relaxed", wideSettings(), wide())
	for path, protected := range map[string]bool{
		".gitmodules": true, "sub/.gitattributes": true, ".NPMRC": true, "web/.npmrc": true, ".cargo/config.toml": true,
		"crate/.cargo/config.toml": true, ".cargo": true, ".cargo/other": false, ".husky": true, ".husky/pre-commit": true,
		"web/.husky/_/x": true, "agents.md": true, "docs/AGENTS.md": true, ".github/CODEOWNERS": true, ".envrc": true,
		".pnpmfile.cjs": true, "package.json": false, "Makefile": false, "tests/test_a.py": false, "conftest.py": false,
		".github/dependabot.yml": false, "AGENTS.md.txt": false,
	} {
		want := []policies.ViolationKind(nil)
		if protected {
			want = []policies.ViolationKind{policies.ViolationProtected}
		}
		if diff := cmp.Diff(want, kinds(strict, path)); diff != "" {
			t.Errorf("strict, %q (-want +got):\n%s", path, diff)
		}
		if got := kinds(relaxed, path); got != nil {
			t.Errorf("relaxed, %q: %v", path, got)
		}
	}
}

// TestE09CaseTwins: of two written paths that fold into one the control plane
// keeps one only; a case-only rename writes one of them.
func TestE09CaseTwins(t *testing.T) {
	e := narrow(t, "relaxed", wideSettings(), wide())
	count := func(changes ...policies.Change) int { return len(e.Judge(changes)) }
	add, del := policies.ChangeAdd, policies.ChangeDelete
	if n := count(policies.Change{Path: "A.py", Kind: add}, policies.Change{Path: "a.py", Kind: add}); n != 2 {
		t.Errorf("twins: %d violations", n)
	}
	if n := count(policies.Change{Path: "stra\u00dfe", Kind: add}, policies.Change{Path: "STRASSE", Kind: policies.ChangeMode}); n != 2 {
		t.Errorf("twins by full case folding: %d violations", n)
	}
	if n := count(policies.Change{Path: "A.py", Kind: del}, policies.Change{Path: "a.py", Kind: add}); n != 0 {
		t.Errorf("case-only rename: %d violations", n)
	}
	if n := count(policies.Change{Path: "a.py", Kind: add}, policies.Change{Path: "a.py", Kind: policies.ChangeMode}); n != 0 {
		t.Errorf("one path twice: %d violations", n)
	}
}

func TestDeliverable(t *testing.T) {
	for _, path := range []string{
		"a", "a/b c", ".a", "a.b/c", "a\tb", "a\nb", "con", "a\u202eb", "-x", "\u00e9", "a\"b", strings.Repeat("a", policies.MaxPathBytes),
	} {
		if err := policies.Deliverable(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, path := range []string{
		"", " a", "a ", "\ta", "a\n", "a\u00a0", "\u3000a", "\x1ca", `a\b`, "a/../b", "a..b", "a\xff", "a\x00", "/a", "a/",
		strings.Repeat("a", policies.MaxPathBytes+1),
	} {
		if err := policies.Deliverable(path); !errors.Is(err, policies.ErrUndeliverable) {
			t.Errorf("%.20q: %v", path, err)
		}
	}
}

func BenchmarkJudge900Files(b *testing.B) {
	task := wide()
	task.NewDependencies = false
	task.ForbiddenPaths = []string{"infra/**", "*.pem", "src/*/secret/*"}
	e := narrow(b, "strict", wideSettings(), task)
	var changes []policies.Change
	for i := range 900 {
		changes = append(changes, policies.Change{Path: fmt.Sprintf("src/package%d/module/file.py", i), Kind: policies.ChangeAdd})
	}
	for b.Loop() {
		if got := e.Judge(changes); got != nil {
			b.Fatal(got)
		}
	}
}
