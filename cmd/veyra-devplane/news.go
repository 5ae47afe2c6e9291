package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// news is what happened between two views, in the order in which a trial goes.
func news(old, now controlplanetest.View) []event {
	var all []event
	for i, a := range now.Agents {
		var before controlplanetest.AgentView
		if i < len(old.Agents) {
			before = old.Agents[i]
		}
		all = append(all, agentNews(before, a)...)
	}
	for i, j := range now.Jobs {
		var before controlplanetest.JobView
		if i < len(old.Jobs) {
			before = old.Jobs[i]
		}
		all = append(all, jobNews(before, j)...)
	}
	for i, r := range now.Verifications {
		var before controlplanetest.VerificationView
		if i < len(old.Verifications) {
			before = old.Verifications[i]
		}
		all = append(all, verificationNews(before, r)...)
	}
	return all
}

// agentEvents are the statuses worth a line.
var agentEvents = map[string]string{
	"CONNECTED": "paired", "ACTIVE": "active", "DEAD": "agent_dead", "DISCONNECTED": "disconnected",
}

func agentNews(old, now controlplanetest.AgentView) []event {
	var all []event
	id := field{"agent_id", now.ID}
	for i, q := range now.Qualifications {
		known := i < len(old.Qualifications) && old.Qualifications[i].Status == q.Status
		if known || q.Status == "PENDING" {
			continue
		}
		all = append(all, event{"qualification_" + strings.ToLower(q.Status), []field{id, {"attempt", q.Attempt}}})
	}
	if name := agentEvents[now.Status]; name != "" && old.Status != now.Status {
		all = append(all, event{name, []field{id, {"role", now.Role}, {"runtime_id", now.RuntimeID}}})
	}
	if old.LastBeat == nil && now.LastBeat != nil {
		all = append(all, event{"first_beat", []field{id, {"health", word(now.LastBeat, "health")}}})
	} else if h := word(now.LastBeat, "health"); h != word(old.LastBeat, "health") {
		all = append(all, event{"health", []field{id, {"health", h}, {"message", word(now.LastBeat, "message")}}})
	}
	return all
}

func jobNews(old, now controlplanetest.JobView) []event {
	var all []event
	id := field{"job_id", now.JobID}
	if old.JobID == 0 {
		all = append(all, event{"job_placed", []field{id}})
	}
	if old.LeaseID != now.LeaseID {
		all = append(all, event{"job_delivered", []field{id, {"assignment_id", now.AssignmentID}, {"attempt", now.Attempt}, {"branch", now.Branch}}})
		old.Phases = nil
	}
	for i := len(old.Phases); i < len(now.Phases); i++ {
		all = append(all, event{"job_phase", []field{id, {"phase", now.Phases[i]}}})
	}
	if now.Refusal != "" && now.Refusal != old.Refusal {
		all = append(all, event{"result_refused", []field{id, {"detail", now.Refusal}}})
	}
	if now.Hash != "" && (now.Hash != old.Hash || now.Status != old.Status) && !reflect.DeepEqual(old.Evidence, now.Evidence) {
		all = append(all, resultEvent(id, now))
	}
	return all
}

// resultEvent sums evidence up in a line.
func resultEvent(id field, j controlplanetest.JobView) event {
	e := j.Evidence
	if word(e, "outcome") != "SUCCEEDED" {
		return event{"result_failed", []field{
			id,
			{"failure_stage", word(e, "failure_stage")},
			{"failure_code", word(e, "failure_code")},
			{"failure_message", word(e, "failure_message")},
			{"summary", word(e, "summary")},
		}}
	}
	return event{"result_accepted", []field{
		id,
		{"commit", word(e, "commit_sha")},
		{"pull_request", word(e, "pull_request_url")},
		{"changed_files", words(e, "changed_files")},
		{"commands", word(e, "test_command")},
		{"source", word(e, "validation_command_source")},
		{"policy", word(e, "policy")},
		{"evidence_hash", j.Hash},
	}}
}

func verificationNews(old, now controlplanetest.VerificationView) []event {
	var all []event
	id := field{"verification_id", now.ID}
	if old.ID == "" {
		all = append(all, event{"verification_offered", []field{id, {"job_id", now.JobID}}})
	}
	if old.LeaseID != now.LeaseID {
		all = append(all, event{"verification_delivered", []field{id, {"agent_id", now.AgentID}, {"lease", now.Leases}}})
		old.Phases = nil
	}
	for i := len(old.Phases); i < len(now.Phases); i++ {
		e := event{"verification_phase", []field{id, {"phase", now.Phases[i]}}}
		if now.Phases[i] == "FAILED" {
			e.Fields = append(e.Fields, field{"message", now.LastSaid})
		}
		all = append(all, e)
	}
	if now.Refusal != "" && now.Refusal != old.Refusal {
		all = append(all, event{"report_refused", []field{id, {"detail", now.Refusal}}})
	}
	if now.Hash != "" && now.Hash != old.Hash {
		all = append(all, verdictEvent(id, now))
	}
	return all
}

// verdictEvent sums a report up in a line.
func verdictEvent(id field, v controlplanetest.VerificationView) event {
	criteria, _ := v.Report["acceptance_criteria"].([]any)
	findings, _ := v.Report["security_findings"].([]any)
	met := 0
	for _, item := range criteria {
		if one, _ := item.(map[string]any); one["passed"] == true {
			met++
		}
	}
	return event{"verdict", []field{
		id,
		{"verdict", v.Verdict},
		{"commit", word(v.Report, "commit_sha")},
		{"criteria_met", fmt.Sprintf("%d of %d", met, len(criteria))},
		{"findings", len(findings)},
		{"commands", word(v.Report, "independent_test_command")},
		{"return_code", v.Report["independent_test_return_code"]},
		{"report_hash", v.Hash},
	}}
}
