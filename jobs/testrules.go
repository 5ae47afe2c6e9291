package jobs

import (
	"crypto/sha256"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// testRules tells tests from what is tested: by custom, and by what the commands
// and the base tree say besides. The change has no say in it.
type testRules struct {
	// patterns match names of test files.
	patterns []string
	// found are files of the base that are tests by none of those.
	found []string
}

// newTestRules reads the rules for paths that the change touches.
func newTestRules(commands []string, base tree, changed []gitops.ChangedPath) testRules {
	r := testRules{patterns: patternsIn(pytestFiles(base))}
	var open []string // patterns that match more than tests
	var named []string
	for _, command := range commands {
		args, err := policies.ParseValidation(command)
		if err != nil || runnerOf(args) == "" {
			continue
		}
		if runnerOf(args) == unittestRunner {
			open = append(open, "test*.py")
			r.patterns = append(r.patterns, patternsIn(strings.Join(args[3:], " "))...)
		}
		named = append(named, namedFiles(args[3:])...)
	}
	narrow := func(pattern string) bool { return !matches(pattern, "a.py") }
	open = append(open, slices.DeleteFunc(slices.Clone(r.patterns), narrow)...)
	r.patterns = slices.DeleteFunc(r.patterns, func(p string) bool { return !narrow(p) })
	for _, p := range changed {
		candidate := slices.Contains(named, p.Path) || slices.ContainsFunc(open, func(pattern string) bool { return matches(pattern, p.Path) })
		if r.covers(p.Path) || !candidate && !linked(base.manifest, p.Path) {
			continue
		}
		if text, ok := base.Read(p.Path); ok && (!candidate || onlyTests(text)) {
			r.found = append(r.found, p.Path)
		}
	}
	return r
}

// covers tells whether a change of this path may change what the tests ask for.
func (r testRules) covers(p string) bool {
	return isTestPath(p) || slices.Contains(r.found, p) ||
		slices.ContainsFunc(r.patterns, func(pattern string) bool { return matches(pattern, p) })
}

// orSetting covers settings, too.
func (r testRules) orSetting(p string) bool { return r.covers(p) || isTestSetting(p) }

func matches(pattern, p string) bool {
	ok, err := path.Match(pattern, path.Base(p))
	return ok && err == nil
}

// pythonFiles matches the setting in each of the forms that pytest reads, with
// the lines that go on with it.
var pythonFiles = regexp.MustCompile(`(?m)^[ \t]*python_files[ \t]*=(.*(?:\n[ \t]+.*|\n\].*)*)`)

// pytestFiles are the base tree's names of test files, as they are written.
func pytestFiles(base tree) string {
	var said []string
	for _, name := range []string{"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"} {
		text, _ := base.Read(name)
		for _, m := range pythonFiles.FindAllSubmatch(text, -1) {
			said = append(said, string(m[1]))
		}
	}
	return strings.Join(said, " ")
}

// patternsIn takes the patterns of Python files out of settings or arguments.
func patternsIn(text string) (patterns []string) {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n\"',=", r) })
	for _, w := range words {
		if w = strings.Trim(w, "[]"); strings.HasSuffix(w, ".py") && strings.ContainsAny(w, "*?") {
			patterns = append(patterns, w)
		}
	}
	return patterns
}

// namedFiles are the files that arguments may mean, by path or as a module with
// or without what stands in it.
func namedFiles(args []string) (names []string) {
	for _, arg := range args {
		file, _, _ := strings.Cut(arg, "::")
		if strings.HasSuffix(file, ".py") {
			names = append(names, path.Clean(file))
			continue
		}
		for module := arg; module != ""; {
			names = append(names, strings.ReplaceAll(module, ".", "/")+".py")
			module = module[:max(strings.LastIndexByte(module, '.'), 0)]
		}
	}
	return names
}

// linked tells whether a link among the base's tests leads to the file.
func linked(base gitops.Manifest, file string) bool {
	return slices.ContainsFunc(base.Entries, func(e gitops.Entry) bool {
		return e.Mode.IsLink() && isTestPath(e.Path) && leadsTo(e, file)
	})
}

// leadsTo needs no link's text: the one that would lead there has the same hash.
func leadsTo(link gitops.Entry, file string) bool {
	return link.SHA256 == sha256.Sum256([]byte(way(path.Dir(link.Path), file)))
}

// way is the relative path from a directory to a file, both of the tree.
func way(dir, file string) string {
	from, to := strings.Split(dir, "/"), strings.Split(file, "/")
	if dir == "." {
		from = nil
	}
	for len(from) > 0 && len(to) > 1 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	return strings.Repeat("../", len(from)) + strings.Join(to, "/")
}

// topLevel matches what a Python file defines.
var (
	topLevel = regexp.MustCompile(`(?m)^(?:async +)?(def|class) +(\w+)(.*)`)
	testDef  = regexp.MustCompile(`^(test|setUp|tearDown|load_tests$|suite$)`)
)

// onlyTests tells whether a Python file defines tests and nothing else. A file
// that holds the code as well can't be put back.
func onlyTests(text []byte) bool {
	defined := topLevel.FindAllSubmatch(text, -1)
	return len(defined) > 0 && !slices.ContainsFunc(defined, func(d [][]byte) bool {
		if string(d[1]) == "class" {
			return !strings.Contains(string(d[2])+string(d[3]), "Test")
		}
		return !testDef.Match(d[2])
	})
}
