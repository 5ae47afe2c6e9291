package jobs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

const (
	readyPath = "qualification/ready.txt"
	readyText = "VEYRA_AGENT_READY_V1\n"
)

// qualification is the control plane's usual one.
func qualification() protocol.Qualification {
	return protocol.Qualification{
		ID: "43725ad0-077e-46c3-a4f0-b991a459d879", Attempt: 1, Token: leaseToken, Title: "Automatic qualification",
		Instructions: "Replace the file with the agreed text.", Target: readyPath,
		Starter: []protocol.File{
			{Path: readyPath, Content: "NOT_READY\n"},
			{Path: "tests/__init__.py", Content: ""},
			{Path: "tests/test_ready.py", Content: "import pathlib, unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n" +
				"        self.assertEqual(pathlib.Path('qualification/ready.txt').read_text(), 'VEYRA_AGENT_READY_V1\\n')\n"},
		},
		TestCommand: "python -m unittest discover -s tests -q",
	}
}

func qualify(t *testing.T, decide func(providertest.Conversation) providertest.Step, faults ...providertest.Fault) (jobs.QualificationOutcome, *world) {
	w := newWorld(t, project(), decide)
	w.model.Queue(faults...)
	outcome := jobs.NewQualifier(w.config).Execute(t.Context(), jobs.QualificationRun{
		Qualification: qualification(), Started: time.Now(), Deadline: time.Now().Add(10 * time.Minute),
		Dir: t.TempDir(), Progress: w.ports, Ledger: w.ports,
	})
	return outcome, w
}

// TestQualificationSubmitsWhatPassedHere: the target only, with code 0.
func TestQualificationSubmitsWhatPassedHere(t *testing.T) {
	outcome, _ := qualify(t, providertest.Qualify(readyPath, readyText, providertest.Steps()))
	if outcome.Failure != "" || outcome.ReturnCode != 0 || len(outcome.Files) != 1 || outcome.Files[0] != (protocol.File{Path: readyPath, Content: readyText}) {
		t.Errorf("%+v", outcome)
	}
}

// TestQualificationIsTriedAgainHere: a wrong answer and passing trouble of the
// provider cost no attempt.
func TestQualificationIsTriedAgainHere(t *testing.T) {
	wrong := providertest.Qualify(readyPath, "SOMETHING ELSE\n", providertest.Steps())
	right := providertest.Qualify(readyPath, readyText, providertest.Steps())
	busy := providertest.Fault{Status: 503}
	outcome, w := qualify(t, providertest.Repair(wrong, right, "AssertionError"), busy, busy, busy, busy)
	if outcome.Failure != "" || outcome.ReturnCode != 0 {
		t.Errorf("%+v", outcome)
	}
	if n := len(w.model.Requests()); n != 6 {
		t.Errorf("%d requests, want 4 faults, a wrong and a right answer", n)
	}
}

// TestQualificationGivesUpWithASentence: only after the owner's limit.
func TestQualificationGivesUpWithASentence(t *testing.T) {
	outcome, w := qualify(t, providertest.Qualify(readyPath, "SOMETHING ELSE\n", providertest.Steps()))
	if outcome.Failure != protocol.CodeTestsFailedAfterRepair || outcome.Files != nil {
		t.Errorf("%+v", outcome)
	}
	if n := len(w.model.Requests()); n != 5 {
		t.Errorf("%d answers were tried, want 5", n)
	}
	if !strings.Contains(w.model.Requests()[1].User, "AssertionError") {
		t.Error("the second request does not say why the first answer failed")
	}
}

// TestI06QualificationThatEndsItsTest (I06): an answer that ends the runner with
// 0 is a wrong one.
func TestI06QualificationThatEndsItsTest(t *testing.T) {
	task := qualification()
	task.Target = "ready.py"
	task.Starter = []protocol.File{
		{Path: "ready.py", Content: "def ready():\n    return False\n"},
		{Path: "tests/test_ready.py", Content: "import unittest, ready\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertTrue(ready.ready())\n"},
	}
	w := newWorld(t, project(), providertest.Qualify("ready.py", "import os\nos._exit(0)\n", providertest.Steps()))
	outcome := jobs.NewQualifier(w.config).Execute(t.Context(), jobs.QualificationRun{
		Qualification: task, Started: time.Now(), Deadline: time.Now().Add(10 * time.Minute),
		Dir: t.TempDir(), Progress: w.ports, Ledger: w.ports,
	})
	if outcome.Failure != protocol.CodeTestsFailedAfterRepair || outcome.Files != nil {
		t.Errorf("%+v", outcome)
	}
}
