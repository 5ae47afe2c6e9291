package pulls_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
)

func TestFilesAreEqualUpToRenames(t *testing.T) {
	added := func(p string) gitops.ChangedPath { return gitops.ChangedPath{Path: p, Status: gitops.PathAdded} }
	gone := func(p string) gitops.ChangedPath { return gitops.ChangedPath{Path: p, Status: gitops.PathDeleted} }
	modified := func(p string) gitops.ChangedPath { return gitops.ChangedPath{Path: p, Status: gitops.PathModified} }
	file := func(name, status, previous string) pulls.File {
		return pulls.File{Filename: name, Status: status, Previous: previous}
	}
	plain := []gitops.ChangedPath{gone("a.txt"), gone("b.txt"), added("B.txt"), modified("m")}
	cases := map[string]struct {
		changed []gitops.ChangedPath
		listed  []pulls.File
		equal   bool
	}{
		"no renames":               {plain, []pulls.File{file("a.txt", "removed", ""), file("b.txt", "removed", ""), file("B.txt", "added", ""), file("m", "modified", "")}, true},
		"one of two equal":         {plain, []pulls.File{file("b.txt", "removed", ""), file("B.txt", "renamed", "a.txt"), file("m", "modified", "")}, true},
		"the other of two":         {plain, []pulls.File{file("a.txt", "removed", ""), file("B.txt", "renamed", "b.txt"), file("m", "modified", "")}, true},
		"a deletion unlisted":      {plain, []pulls.File{file("B.txt", "renamed", "a.txt"), file("m", "modified", "")}, false},
		"a modification unlisted":  {plain, []pulls.File{file("a.txt", "removed", ""), file("b.txt", "removed", ""), file("B.txt", "added", "")}, false},
		"a foreign file":           {plain, []pulls.File{file("a.txt", "removed", ""), file("b.txt", "removed", ""), file("B.txt", "added", ""), file("m", "modified", ""), file("x", "added", "")}, false},
		"a file twice":             {plain, []pulls.File{file("m", "modified", ""), file("m", "modified", "")}, false},
		"renamed from what stays":  {plain, []pulls.File{file("a.txt", "removed", ""), file("b.txt", "removed", ""), file("B.txt", "renamed", "m")}, false},
		"one deletion, two uses":   {plain, []pulls.File{file("B.txt", "renamed", "a.txt"), file("m", "renamed", "a.txt"), file("b.txt", "removed", "")}, false},
		"no previous names":        {plain, []pulls.File{file("b.txt", "removed", ""), file("B.txt", "renamed", ""), file("m", "modified", "")}, true},
		"more gone than added":     {plain, []pulls.File{file("B.txt", "renamed", ""), file("m", "modified", "")}, false},
		"previous of another kind": {plain, []pulls.File{file("a.txt", "removed", ""), file("b.txt", "removed", ""), file("B.txt", "added", "zzz"), file("m", "modified", "")}, true},
		"nothing at all":           {nil, nil, true},
	}
	for name, c := range cases {
		err := pulls.EqualFiles(c.changed, c.listed)
		if (err == nil) != c.equal {
			t.Errorf("%s: error = %v", name, err)
		}
		if err != nil && !errors.Is(err, pulls.ErrMismatch) {
			t.Errorf("%s: kind of %v", name, err)
		}
	}
}

func body(t *testing.T, r pulls.Report) string {
	t.Helper()
	s, err := pulls.Body(r)
	if err != nil {
		t.Fatal(err)
	}
	if n := utf8.RuneCountInString(s); n > 60_000 {
		t.Fatalf("%d characters", n)
	}
	return s
}

func TestBodyDefusesTheSummary(t *testing.T) {
	s := body(t, pulls.Report{
		Prefix: "Closes #12, thanks @owner", Commit: "abc", Policy: "strict|`x`",
		Validation: []pulls.Validation{{Command: "pytest -q\n# @everyone", ExitCode: 0}},
		Summary:    "ping @team, see #1 and GH-2 at https://evil.example/?q or www.evil.example ![x](y) \u202egnp\x1b[31m",
	})
	if !strings.HasPrefix(s, "Closes #12, thanks @owner\n") {
		t.Error("the prefix is not verbatim")
	}
	rest := strings.TrimPrefix(s, "Closes #12, thanks @owner")
	for _, bad := range []string{"@team", "@everyone", "#1 ", "GH-2", "://", "www.", "![", "](", "\u202e", "\x1b"} {
		if strings.Contains(rest, bad) {
			t.Errorf("the body holds %q:\n%s", bad, rest)
		}
	}
}

// No run of back-ticks closes the fence early.
func TestFenceIsLongerThanAnyRunInside(t *testing.T) {
	for _, inner := range []string{"```", "``````\n# heading", strings.Repeat("`", 500), "~~~", "```text\n```\n</details>"} {
		s := body(t, pulls.Report{Summary: "before\n" + inner + "\nafter"})
		_, fenced, _ := strings.Cut(s, "### Summary by the model\n\n")
		lines := strings.Split(strings.TrimSuffix(fenced, "\n"), "\n")
		fence := strings.TrimSuffix(lines[0], "text")
		for i, line := range lines[1:] {
			closes := strings.Count(line, "`") == len(line) && len(line) >= len(fence) && line != ""
			if closes != (i == len(lines)-2) {
				t.Errorf("summary %q: line %d is %q in a fence of %d", inner, i+1, line, len(fence))
			}
		}
	}
}

func TestBodyIsCutInTheSummaryOnly(t *testing.T) {
	for _, unit := range []string{"x", "@", "`", "ä", "http://", "\n"} {
		s := body(t, pulls.Report{Prefix: strings.Repeat("p", 1000), Summary: "start" + strings.Repeat(unit, 100_000) + "finish"})
		if !strings.HasPrefix(s, strings.Repeat("p", 1000)) || !strings.Contains(s, "start") || !strings.Contains(s, "finish") || !strings.Contains(s, "shortened") {
			t.Errorf("summary of %q: cut in the wrong place", unit)
		}
	}
	if _, err := pulls.Body(pulls.Report{Prefix: strings.Repeat("p", 60_001)}); !errors.Is(err, pulls.ErrInvalid) {
		t.Errorf("error = %v", err)
	}
}

func TestTitleIsOneShortLine(t *testing.T) {
	if got := pulls.Title("a\nb" + strings.Repeat("ü", 300)); utf8.RuneCountInString(got) != 240 || !strings.HasPrefix(got, "a b") {
		t.Errorf("title of %d characters: %q", utf8.RuneCountInString(got), got)
	}
}
