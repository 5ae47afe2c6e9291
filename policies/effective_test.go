package policies_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"pgregory.net/rapid"
)

var (
	ruleTexts = rapid.SampledFrom([]string{
		"src", "src/**", "*.py", "src/*.py", "docs", "/lib/", "./src", "?.md", "[!a]*", "src/a.py", "**/x", "",
	})
	pathTexts = rapid.SampledFrom([]string{
		"src/a.py", "src/b.py", "SRC/a.py", "docs/x", "lib/y.py", "a.md", "b.md", "x/x", "package.json",
		"src/migrations/1.py", ".env", "src/.husky/a", "AGENTS.md", "x", "src",
	})
)

func drawTask(t *rapid.T) policies.Task {
	rules := rapid.SliceOfN(ruleTexts, 0, 3)
	return policies.Task{
		AllowedPaths: rules.Draw(t, "allowed"), ForbiddenPaths: rules.Draw(t, "forbidden"),
		ProtectedPaths: rules.Draw(t, "protected"), NewDependencies: rapid.Bool().Draw(t, "dependencies"),
		DatabaseMigrations: rapid.Bool().Draw(t, "migrations"),
		Minutes:            rapid.IntRange(1, 1000).Draw(t, "minutes"), Repairs: rapid.IntRange(0, 1000).Draw(t, "repairs"),
	}
}

func drawSettings(t *rapid.T) policies.Settings {
	return policies.Settings{
		ProtectedPaths:  rapid.SliceOfN(ruleTexts, 0, 2).Draw(t, "owner's protected"),
		NewDependencies: rapid.Bool().Draw(t, "owner's dependencies"), DatabaseMigrations: rapid.Bool().Draw(t, "owner's migrations"),
		Minutes: rapid.IntRange(0, 300).Draw(t, "owner's minutes"),
	}
}

func drawPolicy(t *rapid.T) policies.Policy {
	p, err := policies.Builtin(rapid.SampledFrom(policies.Names()).Draw(t, "policy"))
	if err != nil {
		t.Fatal(err)
	}
	rules := rapid.SliceOfN(ruleTexts, 0, 2)
	p.Paths.Allowed, p.Paths.Forbidden = rules.Draw(t, "policy's allowed"), rules.Draw(t, "policy's forbidden")
	p.Paths.Protected = rules.Draw(t, "policy's protected")
	p.Jobs = policies.JobRules{
		Minutes: rapid.IntRange(1, 240).Draw(t, "policy's minutes"), Repairs: rapid.IntRange(0, 9).Draw(t, "policy's repairs"),
		NewDependencies: rapid.Bool().Draw(t, "policy's dependencies"), DatabaseMigrations: rapid.Bool().Draw(t, "policy's migrations"),
	}
	return p
}

// TestNarrowNeverWidens: what the three sides together let through, each of
// them lets through alone.
func TestNarrowNeverWidens(t *testing.T) {
	must := func(t *rapid.T, p policies.Policy, s policies.Settings, task policies.Task) *policies.Effective {
		e, err := policies.Narrow(p, s, task)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	relaxed := builtin(t, "relaxed")
	rapid.Check(t, func(t *rapid.T) {
		p, s, task := drawPolicy(t), drawSettings(t), drawTask(t)
		all := must(t, p, s, task)
		alone := []*policies.Effective{
			must(t, p, wideSettings(), wide()), must(t, relaxed, s, wide()), must(t, relaxed, wideSettings(), task),
		}
		if all.Minutes > min(p.Jobs.Minutes, task.Minutes) || s.Minutes > 0 && all.Minutes > s.Minutes || all.Minutes < 1 {
			t.Fatalf("%d minutes", all.Minutes)
		}
		if all.Repairs > min(p.Jobs.Repairs, task.Repairs) {
			t.Fatalf("%d repairs", all.Repairs)
		}
		if all.NewDependencies != (p.Jobs.NewDependencies && s.NewDependencies && task.NewDependencies) ||
			all.DatabaseMigrations != (p.Jobs.DatabaseMigrations && s.DatabaseMigrations && task.DatabaseMigrations) {
			t.Fatal("dependencies or migrations are wider than one side")
		}
		change := []policies.Change{{Path: pathTexts.Draw(t, "path"), Kind: policies.ChangeModify}}
		passes := len(all.Judge(change)) == 0
		each := true
		for _, e := range alone {
			each = each && len(e.Judge(change)) == 0
		}
		if passes != each {
			t.Fatalf("%v passes together: %v, each alone: %v", change, passes, each)
		}
	})
}

func TestNarrowRefusesNumbersWithoutMeaning(t *testing.T) {
	for _, change := range []func(*policies.Task, *policies.Settings){
		func(t *policies.Task, _ *policies.Settings) { t.Minutes = 0 },
		func(t *policies.Task, _ *policies.Settings) { t.Minutes = -1 },
		func(t *policies.Task, _ *policies.Settings) { t.Repairs = -1 },
		func(_ *policies.Task, s *policies.Settings) { s.Minutes = -1 },
	} {
		task, settings := wide(), wideSettings()
		change(&task, &settings)
		if _, err := policies.Narrow(builtin(t, "strict"), settings, task); !errors.Is(err, policies.ErrTask) {
			t.Errorf("%+v, %+v: %v", task, settings, err)
		}
	}
}

func TestNarrowClampsMinutesAndRepairs(t *testing.T) {
	task := wide()
	task.Minutes, task.Repairs = 1_000_000_000, 1_000_000
	e := narrow(t, "relaxed", wideSettings(), task)
	if e.Minutes != 240 || e.Repairs != 5 {
		t.Errorf("%d minutes, %d repairs", e.Minutes, e.Repairs)
	}
	settings := wideSettings()
	settings.Minutes = 45
	if e := narrow(t, "relaxed", settings, task); e.Minutes != 45 {
		t.Errorf("%d minutes with a configuration of 45", e.Minutes)
	}
}

func TestDigestIsOverTheExplainedText(t *testing.T) {
	e, err := builtin(t, "strict").Effective()
	if err != nil {
		t.Fatal(err)
	}
	text, err := e.Explain("sha256:abc")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	got, err := e.Digest("sha256:abc")
	if err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("digest %q, %v", got, err)
	}
	value, err := canonjson.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	again, err := canonjson.Marshal(value)
	if err != nil || string(again) != text {
		t.Errorf("the text is not canonical: %v", err)
	}
	for _, part := range []string{`"image":"sha256:abc"`, `"memory_bytes":4294967296`, `"seccomp":{"git":"`, `"name":"strict"`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

// TestDigestChangesWithEveryRule: nothing that decides is left out, and order
// and repetition of rules don't count.
func TestDigestChangesWithEveryRule(t *testing.T) {
	digest := func(p policies.Policy, task policies.Task, image string) string {
		e, err := policies.Narrow(p, wideSettings(), task)
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Digest(image)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := wide()
	base.ForbiddenPaths, base.AllowedPaths = []string{"a", "b"}, []string{"c", "d"}
	strict := builtin(t, "strict")
	want := digest(strict, base, "i")
	same := base
	same.ForbiddenPaths, same.AllowedPaths = []string{"b", "a", "b"}, []string{"d", "c"}
	if digest(strict, same, "i") != want {
		t.Error("the order of rules changes the digest")
	}
	seen := map[string]string{want: "base"}
	differ := func(what, d string) {
		if other, found := seen[d]; found {
			t.Errorf("%s and %s have one digest", what, other)
		}
		seen[d] = what
	}
	differ("image", digest(strict, base, "j"))
	for what, change := range map[string]func(*policies.Task){
		"forbidden": func(t *policies.Task) { t.ForbiddenPaths = []string{"a"} },
		"allowed":   func(t *policies.Task) { t.AllowedPaths = nil },
		"protected": func(t *policies.Task) { t.ProtectedPaths = []string{"x\xff"[:1]} },
		"new":       func(t *policies.Task) { t.NewDependencies = false },
		"database":  func(t *policies.Task) { t.DatabaseMigrations = false },
		"minutes":   func(t *policies.Task) { t.Minutes-- },
		"repairs":   func(t *policies.Task) { t.Repairs-- },
	} {
		task := base
		change(&task)
		differ(what, digest(strict, task, "i"))
	}
	for what, change := range map[string]func(*policies.Policy){
		"scripts": func(p *policies.Policy) { p.Scripts = policies.ScriptsFetch },
		"network": func(p *policies.Policy) { p.Network = policies.NetworkNone },
		"tree":    func(p *policies.Policy) { p.FetchTree = policies.FetchBase },
		"require": func(p *policies.Policy) { p.Require.DiskQuota = false },
		"limits":  func(p *policies.Policy) { p.Limits.TestPercent++ },
		"names":   func(p *policies.Policy) { p.Paths.ProtectedNames = nil },
	} {
		p := strict
		change(&p)
		differ(what, digest(p, base, "i"))
	}
}

func TestWarningsAreOneSentenceAWeakening(t *testing.T) {
	if got := builtin(t, "strict").Warnings(); len(got) != 0 {
		t.Errorf("strict warns: %q", got)
	}
	weaker := map[string]func(*policies.Policy){
		"user namespace":    func(p *policies.Policy) { p.Require.UserNamespace = false },
		"quotas":            func(p *policies.Policy) { p.Require.DiskQuota = false },
		"digest":            func(p *policies.Policy) { p.Require.ImageDigest = false },
		"TLS":               func(p *policies.Policy) { p.Require.HTTPS = false },
		"without a network": func(p *policies.Policy) { p.Scripts = policies.ScriptsPrepare },
		"scripts of dependencies run while package registries": func(p *policies.Policy) { p.Scripts = policies.ScriptsFetch },
		"whole repository": func(p *policies.Policy) { p.FetchTree = policies.FetchBase },
		"all CPUs":         func(p *policies.Policy) { p.Limits.CPUs = 0 },
		"8 GiB, not 4 GiB": func(p *policies.Policy) { p.Limits.MemoryBytes = 8 * gib },
		"513, not 512":     func(p *policies.Policy) { p.Limits.PIDs++ },
		"core dump":        func(p *policies.Policy) { p.Limits.CoreBytes = 1 },
		"40%, not 30%":     func(p *policies.Policy) { p.Limits.SetupPercent = 40 },
		"AGENTS.md": func(p *policies.Policy) {
			p.Paths.ProtectedNames = p.Paths.ProtectedNames[:len(p.Paths.ProtectedNames)-2]
		},
		"6 times": func(p *policies.Policy) { p.Jobs.Repairs = 6 },
	}
	for part, change := range weaker {
		p := builtin(t, "strict")
		change(&p)
		got := strings.Join(p.Warnings(), "\n")
		if n := len(p.Warnings()); !strings.Contains(got, part) || n != 1 && part != "AGENTS.md" || n != 2 && part == "AGENTS.md" {
			t.Errorf("%s: %q", part, got)
		}
	}
	tighter := builtin(t, "strict")
	tighter.Limits.PIDs, tighter.Network, tighter.Limits.CPUs = 10, policies.NetworkNone, 1
	if got := tighter.Warnings(); len(got) != 0 {
		t.Errorf("a tighter policy warns: %q", got)
	}
	if diff := cmp.Diff(builtin(t, "relaxed").Warnings(), builtin(t, "relaxed").Warnings()); diff != "" {
		t.Errorf("the order changes:\n%s", diff)
	}
}
