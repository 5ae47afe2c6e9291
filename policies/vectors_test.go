package policies_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// vectors reads a file of testdata: values recorded from the control plane and
// the reference runtime.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var entries []T
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return entries
}

func TestPathVectors(t *testing.T) {
	type entry struct {
		Path      string
		Normal    string
		Refused   bool
		Forbidden bool `json:"always_forbidden"`
	}
	for _, e := range vectors[entry](t, "paths.json") {
		got, err := policies.NormalPath(e.Path)
		if e.Refused {
			if !errors.Is(err, policies.ErrPath) {
				t.Errorf("NormalPath(%q) = %q, %v; want a refusal", e.Path, got, err)
			}
			continue
		}
		if err != nil || got != e.Normal {
			t.Errorf("NormalPath(%q) = %q, %v; want %q", e.Path, got, err, e.Normal)
		}
		if got := policies.AlwaysForbidden(e.Normal); got != e.Forbidden {
			t.Errorf("AlwaysForbidden(%q) = %v", e.Normal, got)
		}
	}
}

func TestRuleVectors(t *testing.T) {
	type entry struct {
		Path, Rule string
		Matches    bool
	}
	for _, e := range vectors[entry](t, "rules.json") {
		if got := policies.NewAllowRule(e.Rule).Covers(e.Path); got != e.Matches {
			t.Errorf("allowing rule %q covers %q: %v", e.Rule, e.Path, got)
		}
		forbid, err := policies.NewForbidRule(e.Rule)
		if err == nil && e.Matches && !forbid.Covers(e.Path) {
			t.Errorf("forbidding rule %q leaves %q", e.Rule, e.Path)
		}
		if err != nil && e.Matches {
			t.Errorf("forbidding rule %q: %v", e.Rule, err)
		}
	}
}

func TestCommandVectors(t *testing.T) {
	type outcome struct {
		Args  []string
		Error string
	}
	type entry struct {
		Command                 string
		Validation, Preparation outcome
	}
	check := func(what, command string, want outcome, got []string, err error) {
		switch {
		case want.Error == "UNSAFE_VALIDATION_COMMAND":
			if !errors.Is(err, policies.ErrUnsafeCommand) {
				t.Errorf("%s %q = %q, %v; want a refusal", what, command, got, err)
			}
		case want.Error != "":
			t.Errorf("%s %q: unknown error %q in the vectors", what, command, want.Error)
		case err != nil || !cmp.Equal(got, want.Args):
			t.Errorf("%s %q = %q, %v; want %q", what, command, got, err, want.Args)
		}
	}
	for _, e := range vectors[entry](t, "commands.json") {
		args, err := policies.ParseValidation(e.Command)
		check("validation", e.Command, e.Validation, args, err)
		args, err = policies.ParsePreparation(e.Command)
		check("preparation", e.Command, e.Preparation, args, err)
	}
}

// files is a tree of a few texts.
type files map[string]string

func (f files) Paths() []string {
	var paths []string
	for p := range f {
		paths = append(paths, p)
	}
	return paths
}

func (f files) Read(path string) ([]byte, bool) {
	text, found := f[path]
	return []byte(text), found
}

func TestPlanVectors(t *testing.T) {
	type entry struct {
		Name  string
		Files files
		Plan  struct {
			OK *struct {
				Stack    string
				Commands []string
				Source   string
			}
			Error string
		}
	}
	codes := map[string]error{
		"AMBIGUOUS_TOOLCHAIN": policies.ErrAmbiguous, "UNSUPPORTED_TOOLCHAIN": policies.ErrUnsupported,
		"INVALID_PROJECT_MANIFEST": policies.ErrManifest,
	}
	for _, e := range vectors[entry](t, "plans.json") {
		got, err := policies.Detect(e.Files)
		if e.Plan.OK == nil {
			if want := codes[e.Plan.Error]; want == nil || !errors.Is(err, want) {
				t.Errorf("%s: %+v, %v; want %s", e.Name, got, err, e.Plan.Error)
			}
			continue
		}
		want := policies.Plan{
			Toolchain: policies.Toolchain(e.Plan.OK.Stack), Commands: e.Plan.OK.Commands, Source: e.Plan.OK.Source,
		}
		if err != nil || !cmp.Equal(want, got) {
			t.Errorf("%s: %+v, %v; want %+v", e.Name, got, err, want)
			continue
		}
		args, err := policies.ParseValidation(got.Commands[0])
		if err != nil || policies.ToolchainOf(args) != got.Toolchain {
			t.Errorf("%s: command %q is for %q, %v", e.Name, got.Commands[0], policies.ToolchainOf(args), err)
		}
	}
}
