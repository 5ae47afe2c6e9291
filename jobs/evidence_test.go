package jobs_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// wireKeys are the keys of a success that protocol section 6 names, and ours.
var wireKeys = strings.Fields(`outcome assignment_id lease_id job_id branch base_branch base_commit_sha commit_sha
	pull_request_number pull_request_url changed_files environment_setup_command environment_setup_output
	baseline_test_command baseline_test_return_code baseline_test_output test_command test_return_code test_output
	validation_toolchain validation_command_source validation_commands repair_attempts model_output_repair_attempts
	provider model runtime_version summary started_at completed_at
	sandbox policy policy_sha256 clean_room tree_sha log_sha256 limits_hit usage`)

// TestEvidenceKeyByKey: a success states exactly the wire's keys and ours, with
// whole numbers as numbers; a restart from the intent states the same.
func TestEvidenceKeyByKey(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.run.Job.Policy.RequiredCommands = append(w.run.Job.Policy.RequiredCommands, "python -m unittest tests.test_calc")
	w.config.Proof = func() string { return strings.Repeat("a", 64) }
	e := w.succeed()
	keys := slices.Sorted(maps.Keys(e))
	if diff := cmp.Diff(slices.Sorted(slices.Values(wireKeys)), keys); diff != "" {
		t.Error(diff)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Job      *int64 `json:"job_id"`
		Pull     *int64 `json:"pull_request_number"`
		Baseline *int64 `json:"baseline_test_return_code"`
		Test     *int64 `json:"test_return_code"`
		Repairs  *int64 `json:"repair_attempts"`
		Formats  *int64 `json:"model_output_repair_attempts"`
		Command  string `json:"test_command"`
		Output   string `json:"test_output"`
		Usage    map[string]int64
		Sandbox  struct {
			Limits map[string]int64
			Proof  string `json:"proof_sha256"`
		}
	}
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*int64{read.Job, read.Pull, read.Baseline, read.Test, read.Repairs, read.Formats} {
		if n == nil {
			t.Errorf("a number is missing: %s", text)
		}
	}
	if read.Command != "python -m unittest discover -s tests ; python -m unittest tests.test_calc" || strings.Count(read.Output, "$ python") != 2 {
		t.Errorf("command %q, output %q", read.Command, read.Output)
	}
	if read.Sandbox.Proof != strings.Repeat("a", 64) {
		t.Errorf("the host's proof is %q", read.Sandbox.Proof)
	}
	if len(read.Usage) == 0 || len(read.Sandbox.Limits) == 0 {
		t.Errorf("usage %v, limits %v", read.Usage, read.Sandbox.Limits)
	}
}

// TestFailureEvidence: what is known stands beside the table's words, and the
// message holds nothing else.
func TestFailureEvidence(t *testing.T) {
	w := newWorld(t, project(), steps(shell("echo 'connection reset, timed out' > other.py")))
	w.run.Job.Repairs = 0
	e := w.fail(protocol.CodeTestsFailedAfterRepair)
	for _, key := range strings.Fields(`outcome assignment_id lease_id job_id failure_stage failure_code failure_message
		validation_toolchain validation_command_source validation_commands provider model runtime_version started_at completed_at summary
		policy policy_sha256 clean_room tree_sha limits_hit usage log_sha256 sandbox baseline_test_output test_output`) {
		if _, found := e[key]; !found {
			t.Errorf("%s is missing", key)
		}
	}
	if _, found := e["sandbox"].(map[string]any)["proof_sha256"]; found {
		t.Error("a host without a proof names one")
	}
	for _, key := range []string{"commit_sha", "pull_request_url", "changed_files"} {
		if _, found := e[key]; found {
			t.Errorf("%s stands in a failure before the push", key)
		}
	}
}
