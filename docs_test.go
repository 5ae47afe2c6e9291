package veyra_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const operating = "docs/operating.md"

// TestOperatingNamesEverySetting: a name of the environment, a key of the file
// and a flag that no document names is a setting that nobody finds.
func TestOperatingNamesEverySetting(t *testing.T) {
	text := readText(t, operating)
	names := slices.Concat(
		stringsIn(t, "cmd/veyra-sandboxd/environment.go", `^(VEYRA|RUNTIME|AI|CONNECTION|GITHUB)_[A-Z_]+$`),
		yamlKeys(t, "cmd/veyra-sandboxd/settings.go"),
	)
	for _, flag := range flagNames(t, "cmd/veyra-sandboxd") {
		names = append(names, "--"+flag)
	}
	if len(names) < 50 {
		t.Fatalf("only %d settings were found in the sources: %q", len(names), names)
	}
	for _, name := range names {
		if !hasWord(text, name) {
			t.Errorf("%s does not name the setting %s", operating, name)
		}
	}
}

func TestOperatingNamesEveryMetric(t *testing.T) {
	text := readText(t, operating)
	metrics := metricNames(t, "internal/telemetry/telemetry.go")
	if len(metrics) < 25 {
		t.Fatalf("only %d metrics were found in the source: %q", len(metrics), metrics)
	}
	for _, name := range metrics {
		if !hasWord(text, name) {
			t.Errorf("%s does not name the metric %s", operating, name)
		}
	}
}

// TestDecisionsNameEveryModule looks at imports instead of go.mod, whose
// comments about what is direct are only as fresh as the last tidy.
func TestDecisionsNameEveryModule(t *testing.T) {
	var decisions strings.Builder
	files, err := filepath.Glob("docs/adr/[0-9]*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no decisions", err)
	}
	for _, file := range files {
		decisions.WriteString(readText(t, file))
	}
	modules := importedModules(t)
	if len(modules) < 15 {
		t.Fatalf("only %d modules were found: %q", len(modules), modules)
	}
	for _, path := range modules {
		if !hasWord(decisions.String(), path) {
			t.Errorf("no decision names the module %s", path)
		}
	}
}

// TestDocumentsLeadSomewhere follows the relative links of our documents.
func TestDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`)
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		for _, match := range link.FindAllStringSubmatch(readText(t, file), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), match[1])); err != nil {
				t.Errorf("%s leads to %s: %v", file, match[1], err)
			}
		}
	}
}

// TestArchitectureNamesFilesThatExist takes each word that looks like a path of
// this tree.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	path := regexp.MustCompile("`((?:cmd|controlplane|gitops|images|internal|jobs|journal|policies|protocol|provider|sandbox|signer|supervisor|docs|deploy|tools)/[a-z0-9_/.-]*|deps_test.go)`")
	for _, file := range []string{"ARCHITECTURE.md", "docs/threat-model.md"} {
		found := path.FindAllStringSubmatch(readText(t, file), -1)
		if len(found) < 3 {
			t.Errorf("%s names only %d files", file, len(found))
		}
		for _, match := range found {
			if _, err := os.Stat(match[1]); err != nil {
				t.Errorf("%s names %s: %v", file, match[1], err)
			}
		}
	}
}

// TestThreatModelNamesTestedCases: a case in its table that no test names is a
// claim without ground. Ranges in prose are not looked at.
func TestThreatModelNamesTestedCases(t *testing.T) {
	_, table, _ := strings.Cut(readText(t, "docs/threat-model.md"), "### Cases with tests")
	table, _, _ = strings.Cut(table, "##")
	claimed := regexp.MustCompile(`\b[A-J][0-9]{2}\b`).FindAllString(table, -1)
	if len(claimed) < 50 {
		t.Fatalf("only %d cases are listed", len(claimed))
	}
	tests := testTexts(t)
	for _, id := range claimed {
		if !regexp.MustCompile(`(\b|Test)` + id + `(\b|[A-Z_])`).MatchString(tests) {
			t.Errorf("docs/threat-model.md lists %s, which no test names", id)
		}
	}
}

// casesOfSandbox are the ids that docs/attack-cases.md is about.
func casesOfSandbox() []string {
	var ids []string
	for _, group := range []struct {
		letter      string
		first, last int
	}{
		{"A", 1, 19},
		{"B", 1, 18},
		{"E", 1, 9},
		{"E", 12, 12},
		{"E", 16, 17},
		{"E", 19, 21},
		{"J", 2, 2},
		{"J", 7, 7},
		{"J", 10, 10},
		{"J", 14, 14},
	} {
		for n := group.first; n <= group.last; n++ {
			ids = append(ids, fmt.Sprintf("%s%02d", group.letter, n))
		}
	}
	return ids
}

// TestAttackCasesAreTests: each case has its line, and each name of a line is that
// of a test or of a case of the suite, and carries the id.
func TestAttackCasesAreTests(t *testing.T) {
	text := readText(t, "docs/attack-cases.md")
	lines := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-J][0-9]{2}) \|[^|]*\| (.*) \|$`).FindAllStringSubmatch(text, -1) {
		lines[row[1]] = row[2]
	}
	for _, id := range casesOfSandbox() {
		if lines[id] == "" {
			t.Errorf("%s has no test", id)
		}
	}
	tests := testTexts(t)
	for id, line := range lines {
		for _, name := range regexp.MustCompile("`([A-Za-z0-9]+)`").FindAllStringSubmatch(line, -1) {
			named := strings.HasPrefix(name[1], "Test") && strings.Contains(tests, "func "+name[1]+"(") ||
				strings.Contains(tests, `"`+name[1]+`":`) || strings.Contains(tests, `t.Run("`+name[1]+`",`)
			if !named || !strings.Contains(name[1], id) {
				t.Errorf("%s: there is no test or case %s", id, name[1])
			}
		}
	}
}

// testTexts joins the sources of all tests and of the suites that they share.
func testTexts(t *testing.T) string {
	var all strings.Builder
	err := filepath.WalkDir(".", func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || file == "docs_test.go" {
			return err
		}
		if strings.HasSuffix(file, "_test.go") || isTestRoom(filepath.ToSlash(filepath.Dir(file))) {
			all.WriteString(readText(t, file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hasWord finds name where it is not part of a longer name.
func hasWord(text, name string) bool {
	for rest := text; ; {
		at := strings.Index(rest, name)
		if at < 0 {
			return false
		}
		end := rest[at+len(name):]
		if (at == 0 || !isNameByte(rest[at-1])) && (end == "" || !isNameByte(end[0])) {
			return true
		}
		rest = rest[at+1:]
	}
}

func isNameByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// stringsIn returns the string literals of a file that match.
func stringsIn(t *testing.T, name, pattern string) []string {
	wanted := regexp.MustCompile(pattern)
	var found []string
	ast.Inspect(parse(t, name), func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if value, err := strconv.Unquote(lit.Value); err == nil && wanted.MatchString(value) {
				found = append(found, value)
			}
		}
		return true
	})
	return found
}

// yamlKeys returns the keys that struct tags name.
func yamlKeys(t *testing.T, name string) []string {
	tag := regexp.MustCompile(`yaml:"([a-z_]+)"`)
	var keys []string
	for _, match := range tag.FindAllStringSubmatch(readText(t, name), -1) {
		keys = append(keys, match[1])
	}
	return keys
}

// flagNames returns the names given to pflag's …Var and …VarP methods.
func flagNames(t *testing.T, dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range files {
		ast.Inspect(parse(t, name), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 4 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasSuffix(strings.TrimSuffix(method.Sel.Name, "P"), "Var") {
				return true
			}
			if lit, ok := call.Args[1].(*ast.BasicLit); ok {
				value, _ := strconv.Unquote(lit.Value)
				names = append(names, value)
			}
			return true
		})
	}
	return names
}

// metricNames returns the first string argument of the methods that make
// metrics.
func metricNames(t *testing.T, name string) []string {
	makers := []string{"plainGauge", "plainCounter", "gauge", "counter", "histogram", "histograms", "moment"}
	var names []string
	ast.Inspect(parse(t, name), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(makers, method.Sel.Name) {
			return true
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok {
			value, _ := strconv.Unquote(lit.Value)
			names = append(names, value)
		}
		return true
	})
	return names
}

// importedModules returns the modules of go.mod that some file of ours imports,
// tests included.
func importedModules(t *testing.T) []string {
	required := regexp.MustCompile(`(?m)^\s+(\S+) v\S+`).FindAllStringSubmatch(readText(t, "go.mod"), -1)
	used := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "tools" || d.Name() == "testdata" || d.Name() == "build" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			to, _ := strconv.Unquote(spec.Path.Value)
			if path := moduleOf(to, required); path != "" {
				used[path] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for path := range used {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// moduleOf returns the longest required path that an import lies in.
func moduleOf(imported string, required [][]string) string {
	longest := ""
	for _, r := range required {
		if (imported == r[1] || strings.HasPrefix(imported, r[1]+"/")) && len(r[1]) > len(longest) {
			longest = r[1]
		}
	}
	return longest
}

// TestDocumentsNameTheReleaseToolchain: tools/lint.sh says which toolchain is
// judged; the advice to build with it must name the same.
func TestDocumentsNameTheReleaseToolchain(t *testing.T) {
	match := regexp.MustCompile(`(?m)^release=(go[0-9.]+)$`).FindStringSubmatch(readText(t, "tools/lint.sh"))
	if match == nil {
		t.Fatal("tools/lint.sh names no toolchain")
	}
	for _, file := range []string{"README.md", "SECURITY.md"} {
		if !strings.Contains(readText(t, file), "GOTOOLCHAIN="+match[1]+" ") {
			t.Errorf("%s does not advise to build with %s", file, match[1])
		}
	}
}
