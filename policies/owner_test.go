package policies_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/veyra-labs/veyra-sandboxd/internal/ownfile"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

const mine = "name: mine\nextends: standard\n"

func owner(t testing.TB, text string) policies.Policy {
	t.Helper()
	p, err := policies.ParseOwner([]byte(text))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return p
}

func TestOwnerFileChangesWhatItNames(t *testing.T) {
	text := mine + "limits:\n  pids: 300\n  memory: 3GiB\n  fetch: {tunnels: 7}\nscripts: off\n" +
		"without: [pids, memory, pids]\npaths:\n  forbidden:\n    - secrets/**\n  protected_names: [CODEOWNERS]\njobs: {minutes: 30}\n"
	want := builtin(t, "standard")
	want.Name, want.Scripts, want.Jobs.Minutes = "mine", policies.ScriptsOff, 30
	want.Limits.PIDs, want.Limits.MemoryBytes, want.Limits.FetchTunnels = 300, 3*gib, 7
	want.Without = []policies.Control{"memory", "pids"}
	want.Paths.Forbidden, want.Paths.ProtectedNames = []string{"secrets/**"}, []string{"CODEOWNERS"}
	got := owner(t, text)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(policies.Policy{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.YAML() != text {
		t.Errorf("its text is %q", got.YAML())
	}
}

// TestOwnerFileCanSayAllThatABuiltinSays: the built-in files are written with
// the same keys, so each of them with "extends" is an owner's file, and changes
// nothing but the name.
func TestOwnerFileCanSayAllThatABuiltinSays(t *testing.T) {
	for _, name := range policies.Names() {
		base := builtin(t, name)
		text := strings.Replace(base.YAML(), "name: "+name+"\n", "name: copy\nextends: "+name+"\n", 1)
		got := owner(t, text)
		base.Name = "copy"
		if diff := cmp.Diff(base, got, cmpopts.IgnoreUnexported(policies.Policy{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if weaker := got.WeakerThanBase(); len(weaker) > 0 {
			t.Errorf("%s is weaker than itself: %q", name, weaker)
		}
	}
}

// TestOwnerFileIsStrict: one mistake each, with its line and what to do.
func TestOwnerFileIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                              "there is no policy in it",
		"# nothing":                                                     "there is no policy in it",
		"- a\n":                                                         "there is no policy in it",
		"name: mine\n":                                                  "extends: it is missing",
		"extends: strict\n":                                             "name: it is missing",
		"name: strict\nextends: strict\n":                               "line 1: name: strict is a built-in policy's",
		"name: Mine\nextends: strict\n":                                 "line 1: name: a name is 1 to 32",
		"name: mine\nextends: ./other.yaml\n":                           "line 2: extends: write strict, standard or relaxed",
		"name: mine\nextends: [strict]\n":                               "line 2: extends: write strict, standard or relaxed",
		mine + "limit: {pids: 1}\n":                                     "line 3: limit: there is no such key (did you mean limits?)",
		mine + "limits:\n  memroy: 2GiB\n":                              "line 4: limits.memroy: there is no such key (did you mean limits.memory?)",
		mine + "pids: 300\n":                                            "line 3: pids: there is no such key (did you mean limits.pids?)",
		mine + "zzzzzzzzz: 300\n":                                       "`veyra-sandboxd policy show strict` shows all keys",
		mine + "limits:\n  pids: many\n":                                "line 4: limits.pids: write a whole number from 16 to",
		mine + "limits:\n  pids: 0\n":                                   "line 4: limits.pids: write a whole number from 16 to",
		mine + "limits:\n  pids: 1e3\n":                                 "line 4: limits.pids: write a whole number from 16 to",
		mine + "limits:\n  pids:\n":                                     "line 4: limits.pids: write a whole number from 16 to",
		mine + "limits: 7\n":                                            "line 3: limits: it holds keys of its own, such as limits.",
		mine + "limits:\n  memory: 4GB\n":                               "line 4: limits.memory: write a size such as 512MiB, from 1 GiB to 1024 TiB",
		mine + "limits:\n  disk: 1GiB\n":                                "line 4: limits.disk: write a size",
		mine + "limits: {output_read: 2MiB}\n":                          "limits.output_keep: more is kept than limits.output_read lets",
		mine + "scripts: on\n":                                          "line 3: scripts: write one of off, prepare, fetch",
		mine + "network: open\n":                                        "line 3: network: write one of none, registries",
		mine + "require: {https: maybe}\n":                              "line 3: require.https: write true or false",
		mine + "jobs: {minutes: 241}\n":                                 "line 3: jobs.minutes: write a whole number from 1 to 240",
		mine + "without: memory\n":                                      "line 3: without: write a list",
		mine + "without: [memroy]\n":                                    "(did you mean memory?)",
		mine + "without: [seccomp]\n":                                   "line 3: without: \"seccomp\" is no control that a policy can go without; those are memory,",
		mine + "paths: {forbidden: [../x]}\n":                           "line 3: paths.forbidden: \"../x\" can't be used",
		mine + "paths: {allowed: [\"/\"]}\n":                            "line 3: paths.allowed: \"/\" can't be used",
		mine + "paths: {protected: [[a]]}\n":                            "line 3: paths.protected: an entry of the list is no text",
		mine + "name: twice\n":                                          "line 3: this is no YAML: ",
		mine + "limits: {pids: 300\n":                                   "this is no YAML: ",
		mine + "---\nname: other\n":                                     "there are 2 documents",
		mine + "jobs: &a {minutes: 3}\n":                                "line 3: jobs: anchors, aliases, tags and merges are not read here",
		mine + "jobs: *a\n":                                             "line 3",
		mine + "<<: {scripts: off}\n":                                   "line 3",
		mine + "scripts: !!str off\n":                                   "line 3: scripts: anchors, aliases, tags",
		mine + strings.Repeat(" ", 1025):                                "line 3: the line is over 1024 bytes",
		mine + strings.Repeat("# x\n", 1<<14):                           "it is over 64 KiB",
		mine + strings.Repeat("#[[[[\n", 100):                           "more than 256 opening brackets",
		"name: mine\nextends: strict\nwithout: [memory]\n":              "line 3: without: what extends strict can't go without it",
		"name: mine\nextends: strict\nrequire: {disk_quota: false}\n":   "line 3: require.disk_quota: what extends strict",
		"name: mine\nextends: strict\nrequire:\n user_namespace: false": "line 4: require.user_namespace: what extends strict",
	} {
		p, err := policies.ParseOwner([]byte(text))
		if !errors.Is(err, policies.ErrPolicyInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %+v, %v, want %q", text, p.Name, err, want)
		}
		var all *policies.FileError
		if errors.As(err, &all) && len(all.Problems) != 1 {
			t.Errorf("%.80q: more than its one problem: %v", text, err)
		}
	}
}

// TestOwnerFileTellsAllProblemsAtOnce, in the order of lines.
func TestOwnerFileTellsAllProblemsAtOnce(t *testing.T) {
	_, err := policies.ParseOwner([]byte("extends: lax\nlimits:\n  pids: 1\n  memory: 4GB\nscript: off\nwithout: [x]\n"))
	var all *policies.FileError
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	var got []string
	for _, p := range all.Problems {
		got = append(got, fmt.Sprint(p.Line, " ", p.Key))
	}
	want := []string{"0 name", "1 extends", "3 limits.pids", "4 limits.memory", "5 script", "6 without"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestOwnerFileSaysHowItIsWeaker: each looser key is one sentence more than
// its base has, a tighter one is none.
func TestOwnerFileSaysHowItIsWeaker(t *testing.T) {
	for _, extends := range policies.Names() {
		for key, weaker := range map[string]int{
			"limits: {pids: 4000000}": 1, "limits: {memory: 1TiB, disk: 1TiB}": 2, "limits: {cpus: 1}": 0, "limits: {pids: 20}": 0,
			"jobs: {repairs: 10}": 1, "jobs: {minutes: 3}": 0, "require: {https: false}": 1, "network: none": 0,
		} {
			p := owner(t, "name: mine\nextends: "+extends+"\n"+key+"\n")
			if got := p.WeakerThanBase(); len(got) != weaker {
				t.Errorf("%s with %s: %q", extends, key, got)
			}
			if p.Extends != extends {
				t.Errorf("%s with %s extends %q", extends, key, p.Extends)
			}
		}
	}
	p := owner(t, "name: mine\nextends: strict\npaths: {protected_names: [.npmrc]}\n")
	if got := p.WeakerThanBase(); len(got) != 8 || !slices.Equal(got, p.Warnings()) {
		t.Errorf("eight names are not protected any more: %q", got)
	}
}

// TestOwnerFilesHaveDigestsOfTheirOwn: over what holds, not over its spelling.
func TestOwnerFilesHaveDigestsOfTheirOwn(t *testing.T) {
	digest := func(text string) string {
		e, err := owner(t, text).Effective()
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Digest("")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if digest(mine+"limits: {pids: 300}\n") != digest("# a comment\n"+mine+"limits:\n  pids: 300\n") {
		t.Error("the spelling changes the digest")
	}
	if digest(mine) == digest(mine+"limits: {pids: 300}\n") || digest(mine) == digest("name: other\nextends: standard\n") {
		t.Error("a change does not change the digest")
	}
}

func TestLoadReadsAnOwnersFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte(mine), 0o644); err != nil {
		t.Fatal(err)
	}
	if p, err := policies.Load(file); err != nil || p.Name != "mine" || p.Extends != "standard" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := os.Chmod(file, 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := policies.Load(file); !errors.Is(err, ownfile.ErrForeign) {
		t.Errorf("a file that its group may change: %v", err)
	}
	if err := os.WriteFile(file, []byte("extends: standard\n"), 0o664); err != nil {
		t.Fatal(err)
	}
	var all *policies.FileError
	if _, err := policies.CheckFile(file); !errors.As(err, &all) || len(all.Problems) != 2 {
		t.Errorf("checking it: %v", err)
	}
}

// FuzzParseOwner: whatever the text, it is a policy that can be enforced or a
// list of problems, never one that its base or its ranges don't allow.
func FuzzParseOwner(f *testing.F) {
	for _, name := range policies.Names() {
		p, err := policies.Builtin(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(strings.Replace(p.YAML(), "name: "+name, "name: copy\nextends: "+name, 1)))
	}
	for _, seed := range []string{mine, mine + "a: &x [*x]\n", mine + "? a\n: b\n", "{{{{", "- - - -", mine + "limits: {<<: *x}\n", "%YAML 1.2\n---\n" + mine, mine + "x: |\n y\n", "\xef\xbb\xbf" + mine} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := policies.ParseOwner(text)
		if err != nil {
			var all *policies.FileError
			if !errors.As(err, &all) || len(all.Problems) == 0 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if slices.Contains(policies.Names(), p.Name) || p.Name == "" || p.Extends == "strict" && len(p.Without) > 0 {
			t.Errorf("%q: %+v", text, p)
		}
		if _, err := p.Scaled(policies.Capacity{MemoryBytes: gib, DiskBytes: 2 * gib}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := p.Effective(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
