package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/openai"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// unmetered lets a judgement cost what it likes.
type unmetered struct{}

func (unmetered) Spend(context.Context, int64, int64) error { return nil }
func (unmetered) Spent() (int64, int64)                     { return 0, 0 }

// judgedBy asks the scripts as the daemon's verifier does, over HTTP and in its
// own words.
func judgedBy(t *testing.T, s *scripts, brief coding.JudgeBrief) coding.Judgement {
	t.Helper()
	server := httptest.NewServer(&providertest.Model{Name: "scripted", Decide: s.decide})
	defer server.Close()
	client, err := openai.New(openai.Config{BaseURL: server.URL, Model: "scripted"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := coding.NewSingle(client, coding.LoopConfig{}).Judge(t.Context(), brief, unmetered{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The model answers the prompt that the daemon really sends: one entry for each
// criterion, evidence from the change, and "not met" where the script says so.
func TestModelJudgesInTheDaemonsOwnWords(t *testing.T) {
	s := newScripts()
	s.add("Fix", nil, nil)
	s.add("Fix more", nil, nil)
	s.fail("Fix more", 3)
	brief := coding.JudgeBrief{
		Title: "Fix more", Description: "It is broken.\nJudge the 9 acceptance criteria now.",
		Criteria: []protocol.Statement{
			{Text: "calc.ops.add adds"}, {Text: "two lines:\n7. this one\n3. and this"}, {Text: "old.txt is gone"}, {Text: "all is well"},
		},
		Patch: "# \"calc/ops.py\"\n--- a/calc/ops.py\n+++ b/calc/ops.py\n@@ -1 +1 @@\n-a\n+b\n# \"old.txt\"\n# mode changed, executable: true\n",
		Files: []protocol.File{{Path: "calc/ops.py", Content: "# \"not/one.py\"\n"}},
	}
	want := []coding.Criterion{
		{Passed: true, Evidence: "See the change of calc/ops.py."},
		{Passed: true, Evidence: "See the change of calc/ops.py, old.txt."},
		{Passed: false, Evidence: "The script says that this criterion is not met."},
		{Passed: true, Evidence: "See the change of calc/ops.py, old.txt."},
	}
	got := judgedBy(t, s, brief)
	if diff := cmp.Diff(want, got.Criteria); diff != "" {
		t.Error(diff)
	}
	if len(got.Findings) != 0 || got.Summary == "" {
		t.Errorf("judgement %+v", got)
	}
	brief.Title = "Fix"
	for i, c := range judgedBy(t, s, brief).Criteria {
		if !c.Passed {
			t.Errorf("criterion %d of a job that fails none: %+v", i+1, c)
		}
	}
}

// A job may have no criteria: it is judged as a whole. And a task that talks of judging is still a task.
func TestOnlyVerifiersAreAnsweredAsVerifiers(t *testing.T) {
	s := newScripts()
	s.add("Judge the 2 acceptance criteria now.", []providertest.Step{{Shell: "work"}}, nil)
	if got := judgedBy(t, s, coding.JudgeBrief{Title: "unknown"}); len(got.Criteria) != 1 {
		t.Errorf("without criteria: %+v", got)
	}
	tools := []providertest.Tool{{Name: "bash", Parameters: map[string]bool{"command": true}}}
	if got := s.decide(providertest.Conversation{User: "Judge the 2 acceptance criteria now.", Tools: tools}); got.Shell != "work" {
		t.Errorf("with tools: %+v", got)
	}
	if got := s.decide(providertest.Conversation{User: "Judge the 2 acceptance criteria now.\nMake the change now.\n"}); strings.Contains(got.Text, "criteria") {
		t.Errorf("as a worker's prompt: %+v", got)
	}
}

func FuzzJudgement(f *testing.F) {
	for _, seed := range []string{
		"", "Judge the 0 acceptance criteria now.", "<<<acceptance criteria\n1. a\n2. b\n\n>>>\n\nJudge the 2 acceptance criteria now.\n",
		"<<<the change\n# \"a b\"\n# \"\\x\"\n>>>\nJudge the 9999 acceptance criteria now.",
	} {
		f.Add(seed, 1)
	}
	f.Fuzz(func(t *testing.T, prompt string, fail int) {
		criteria, asked := criteriaOf(prompt)
		if !asked {
			return
		}
		var got struct {
			Criteria []struct {
				Passed   *bool
				Evidence string
			}
		}
		if err := json.Unmarshal([]byte(judge(prompt, criteria, fail).Text), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Criteria) != len(criteria) || len(criteria) > mostCriteria {
			t.Fatalf("%d entries for %d criteria", len(got.Criteria), len(criteria))
		}
		for i, c := range got.Criteria {
			if c.Passed == nil || *c.Passed == (i+1 == fail) || c.Evidence == "" {
				t.Errorf("entry %s", fmt.Sprint(i+1, c))
			}
		}
	})
}
