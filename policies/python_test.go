package policies

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// askPython runs a program that reads one JSON value and writes one.
func askPython(t *testing.T, program string, in, out any) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("not applicable: no python3 to compare with")
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(python, "-c", program)
	command.Stdin = strings.NewReader(string(text))
	answer, err := command.Output()
	if err != nil {
		t.Fatalf("python3: %v", err)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		t.Fatal(err)
	}
}

func TestCasefoldIsPythonsForEveryCodePoint(t *testing.T) {
	var python struct {
		Folds    map[string]string
		Assigned []rune // those that this Python's Unicode knows
	}
	askPython(t, `
import json, sys, unicodedata
json.load(sys.stdin)
points = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
json.dump({"folds": {chr(c): chr(c).casefold() for c in points if chr(c).casefold() != chr(c)},
           "assigned": [c for c in points if unicodedata.category(chr(c)) not in ("Cn", "Co")]}, sys.stdout)`,
		nil, &python)
	if len(python.Assigned) < 100_000 || len(python.Folds) < 1000 {
		t.Fatalf("%d code points, %d folds", len(python.Assigned), len(python.Folds))
	}
	for _, r := range python.Assigned {
		want, folds := python.Folds[string(r)]
		if !folds {
			want = string(r)
		}
		if got := Casefold(string(r)); got != want {
			t.Errorf("Casefold(%U) = %+q, want %+q", r, got, want)
		}
	}
}

func TestPythonSpaceIsPythons(t *testing.T) {
	var spaces []rune
	askPython(t, `
import json, sys
json.load(sys.stdin)
json.dump([c for c in range(0x110000) if not 0xd800 <= c < 0xe000 and chr(c).strip() == ""], sys.stdout)`, nil, &spaces)
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if isPythonSpace(r) != slices.Contains(spaces, r) {
			t.Errorf("isPythonSpace(%U) = %v", r, isPythonSpace(r))
		}
	}
}

// samples draws many values first, so that python3 is asked once for all.
func samples[T any](t *testing.T, generator *rapid.Generator[T], n int) []T {
	t.Helper()
	drawn := make([]T, n)
	for i := range drawn {
		drawn[i] = generator.Example(i)
	}
	return drawn
}

func TestWordSplittingIsPythons(t *testing.T) {
	text := rapid.StringOf(rapid.SampledFrom([]rune("ab \t\r\n'\"\\#;|&$(){}`*\u00a0\u2003é")))
	commands := append(samples(t, text, 20_000), "", "''", `a''b ""`, `\`, `"a\"b\\c\d"`, "'a\\'", "a\\\nb", "#x y", "a\vb", "a\u2028b")
	var python []*[]string
	askPython(t, `
import json, shlex, sys
def split(s):
    try:
        return shlex.split(s)
    except ValueError:
        return None
json.dump([split(s) for s in json.load(sys.stdin)], sys.stdout)`, commands, &python)
	for i, command := range commands {
		words, err := splitWords(command)
		got := []string{}
		for _, w := range words {
			got = append(got, w.text)
		}
		want := python[i]
		if (err != nil) != (want == nil) || want != nil && !slices.Equal(*want, got) {
			t.Errorf("splitWords(%q) = %q, %v; want %v", command, got, err, want)
		}
	}
}

func TestWildcardsArePythons(t *testing.T) {
	type pair struct{ Path, Rule string }
	pairs := samples(t, rapid.Custom(func(t *rapid.T) pair {
		return pair{
			rapid.StringOfN(rapid.SampledFrom([]rune("abcz-!]/[^\\é\n")), 0, 6, -1).Draw(t, "path"),
			rapid.StringOfN(rapid.SampledFrom([]rune("abcz*?[]!-/^\\&|~é")), 0, 10, -1).Draw(t, "rule"),
		}
	}), 30_000)
	sets := samples(t, rapid.Custom(func(t *rapid.T) pair {
		inner := rapid.StringOfN(rapid.SampledFrom([]rune("abcz!-^]\\&")), 1, 8, -1).Draw(t, "set")
		return pair{rapid.StringOfN(rapid.SampledFrom([]rune("abcz-!]^\\&m")), 1, 1, -1).Draw(t, "path"), "[" + inner + "]"}
	}), 30_000)
	pairs = append(pairs, sets...)
	var python []bool
	askPython(t, `
import fnmatch, json, sys, warnings
warnings.simplefilter("ignore")
json.dump([fnmatch.fnmatchcase(p["Path"], p["Rule"]) for p in json.load(sys.stdin)], sys.stdout)`, pairs, &python)
	matched := 0
	for i, p := range pairs {
		if got := compilePattern(p.Rule).match(p.Path); got != python[i] {
			t.Errorf("%q matches %q: %v, python says %v", p.Rule, p.Path, got, python[i])
		}
		if python[i] {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d of %d pairs match: the test says little", matched, len(pairs))
	}
}
