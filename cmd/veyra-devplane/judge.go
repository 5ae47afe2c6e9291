package main

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// mostCriteria bounds what one answer holds, whatever a prompt says.
const mostCriteria = 200

var (
	// asksForVerdict is the last line of a verifier's prompt.
	asksForVerdict = regexp.MustCompile(`Judge the (\d{1,4}) acceptance criteria now\.\s*$`)
	// patched is the line that begins a file in the patch of a prompt.
	patched = regexp.MustCompile(`(?m)^# ("(?:[^"\\\n]|\\.)*")`)
)

// criteriaOf reads the criteria that a verifier's prompt asks about, in order;
// false for every other prompt. A criterion whose text was cut off is "".
func criteriaOf(prompt string) ([]string, bool) {
	m := asksForVerdict.FindStringSubmatch(prompt)
	if m == nil {
		return nil, false
	}
	count, _ := strconv.Atoi(m[1])
	criteria, next := make([]string, min(count, mostCriteria)), 0
	for line := range strings.Lines(blockOf(prompt, "acceptance criteria")) {
		text, numbered := strings.CutPrefix(strings.TrimSpace(line), fmt.Sprintf("%d. ", next+1))
		if numbered && next < len(criteria) {
			criteria[next] = text
			next++
		}
	}
	return criteria, true
}

// blockOf is what a prompt shows between <<<name and >>>; neither mark can stand
// inside.
func blockOf(prompt, name string) string {
	_, block, _ := strings.Cut("\n"+prompt, "\n<<<"+name+"\n")
	block, _, _ = strings.Cut(block, "\n>>>")
	return block
}

// judge answers a verifier: every criterion is met but the one that the job's
// script fails, counted from 1. A script can't weigh anything: what it calls
// evidence names the changed files that a criterion speaks of.
func judge(prompt string, criteria []string, fail int) providertest.Step {
	type entry struct {
		Passed   bool   `json:"passed"`
		Evidence string `json:"evidence"`
	}
	files, entries := patchFiles(prompt), []entry{}
	for i, text := range criteria {
		if i+1 == fail {
			entries = append(entries, entry{false, "The script says that this criterion is not met."})
			continue
		}
		entries = append(entries, entry{true, evidenceFor(text, files)})
	}
	text, _ := json.Marshal(map[string]any{
		"summary":  fmt.Sprintf("A script, not a mind, looked at %d criteria and %d changed files.", len(criteria), len(files)),
		"criteria": entries, "security_findings": []any{},
	})
	return providertest.Step{Text: string(text)}
}

func patchFiles(prompt string) []string {
	var files []string
	for _, m := range patched.FindAllStringSubmatch(blockOf(prompt, "the change"), -1) {
		if name, err := strconv.Unquote(m[1]); err == nil {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// evidenceFor names the files that a criterion names, by their path or as a
// module, else the first few.
func evidenceFor(criterion string, files []string) string {
	named := slices.DeleteFunc(slices.Clone(files), func(name string) bool {
		module := strings.ReplaceAll(strings.TrimSuffix(name, path.Ext(name)), "/", ".")
		return !strings.Contains(criterion, name) && !strings.Contains(criterion, module)
	})
	if len(named) == 0 {
		named = files[:min(len(files), 5)]
	}
	if len(named) == 0 {
		return "The material was read."
	}
	return "See the change of " + strings.Join(named, ", ") + "."
}
