package controlplanetest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var shaSyntax = regexp.MustCompile(`^[0-9a-f]{40}$`)

// checkEvidence checks what evidence says against the task and against GitHub.
// Its errors are the details of a 409.
func (p *Plane) checkEvidence(j *job, e map[string]any) error {
	for name, want := range map[string]any{
		"assignment_id": j.assignmentID, "lease_id": j.leaseID, "job_id": json.Number(fmt.Sprint(j.jobID)),
	} {
		if e[name] != want {
			return fmt.Errorf("Evidence %s does not match the assignment.", name)
		}
	}
	if err := texts(e, "provider", "model", "runtime_version", "started_at", "completed_at"); err != nil {
		return err
	}
	switch e["outcome"] {
	case "FAILED":
		return checkFailure(e)
	case "SUCCEEDED":
		return p.checkSuccess(j, e)
	}
	return fmt.Errorf("Evidence outcome is not valid.")
}

func texts(e map[string]any, names ...string) error {
	for _, name := range names {
		if s, _ := e[name].(string); s == "" {
			return fmt.Errorf("Evidence %s is required.", name)
		}
	}
	return nil
}

func checkFailure(e map[string]any) error {
	if err := texts(e, "failure_stage", "failure_code", "failure_message"); err != nil {
		return err
	}
	if len([]rune(e["failure_message"].(string))) > 1200 {
		return fmt.Errorf("Evidence failure_message is too long.")
	}
	return nil
}

func (p *Plane) checkSuccess(j *job, e map[string]any) error {
	if err := checkFields(j, e); err != nil {
		return err
	}
	files, err := changedFiles(e)
	if err != nil {
		return err
	}
	for _, name := range files {
		if err := j.spec.mayChange(name); err != nil {
			return err
		}
	}
	if p.opts.GitHub == nil {
		return nil
	}
	return p.checkPullRequest(j, e, files)
}

func checkFields(j *job, e map[string]any) error {
	err := texts(e, "branch", "base_branch", "base_commit_sha", "commit_sha", "pull_request_url",
		"baseline_test_command", "test_command", "validation_command_source", "summary")
	if err != nil {
		return err
	}
	for _, name := range []string{"environment_setup_command", "environment_setup_output", "baseline_test_output", "test_output", "validation_toolchain"} {
		if _, isText := e[name].(string); !isText {
			return fmt.Errorf("Evidence %s must be a string.", name)
		}
	}
	for _, name := range []string{"pull_request_number", "baseline_test_return_code", "test_return_code", "repair_attempts", "model_output_repair_attempts"} {
		n, isNumber := e[name].(json.Number)
		if _, err := n.Int64(); !isNumber || err != nil {
			return fmt.Errorf("Evidence %s must be an integer.", name)
		}
	}
	for _, name := range []string{"base_commit_sha", "commit_sha"} {
		if !shaSyntax.MatchString(e[name].(string)) {
			return fmt.Errorf("Evidence %s is not a commit id.", name)
		}
	}
	switch {
	case e["test_return_code"] != json.Number("0"):
		return fmt.Errorf("Validation did not pass.")
	case e["branch"] != j.branch() || e["base_branch"] != j.spec.TargetBranch:
		return fmt.Errorf("Evidence branch does not match the lease.")
	}
	return nil
}

// changedFiles cleans the list as the control plane does.
func changedFiles(e map[string]any) ([]string, error) {
	list, _ := e["changed_files"].([]any)
	if len(list) == 0 || len(list) > 1000 {
		return nil, fmt.Errorf("Evidence changed_files is empty or too long.")
	}
	var files []string
	for _, item := range list {
		name, isText := item.(string)
		if !isText {
			return nil, fmt.Errorf("Evidence changed_files must hold strings.")
		}
		name = clean(name)
		folded := func(other string) bool { return strings.EqualFold(other, name) }
		if name == "" || strings.Contains(name, "..") || slices.ContainsFunc(files, folded) {
			continue
		}
		files = append(files, name)
	}
	return files, nil
}

func clean(name string) string {
	return strings.Trim(strings.TrimSpace(strings.ReplaceAll(name, `\`, "/")), "/")
}

func (p *Plane) checkPullRequest(j *job, e map[string]any, files []string) error {
	number, _ := e["pull_request_number"].(json.Number).Int64()
	pull, err := p.opts.GitHub.PullRequest(context.Background(), j.spec.Owner+"/"+j.spec.Name, int(number))
	if err != nil {
		return fmt.Errorf("GitHub could not be read: %w", err)
	}
	switch {
	case pull.State != "open" && pull.State != "merged":
		return fmt.Errorf("Pull request is %s.", pull.State)
	case pull.HeadRef != j.branch():
		return fmt.Errorf("Pull request head is not the leased branch.")
	case pull.BaseRef != j.spec.TargetBranch:
		return fmt.Errorf("Pull request base is not the target branch.")
	case pull.HeadSHA != e["commit_sha"]:
		return fmt.Errorf("Pull request head commit does not match.")
	case pull.HTMLURL != e["pull_request_url"]:
		return fmt.Errorf("Pull request URL does not match.")
	}
	return sameFiles(files, pull.Files)
}

func sameFiles(ours, theirs []string) error {
	a, b := slices.Clone(ours), slices.Clone(theirs)
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(slices.Compact(a), slices.Compact(b)) {
		return fmt.Errorf("Changed files do not match the pull request.")
	}
	return nil
}
