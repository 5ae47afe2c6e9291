package main

import (
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// planeState is what GET /devplane/state shows.
type planeState struct {
	Addresses map[string]string `json:"addresses"`
	Agents    []agentState      `json:"agents"`
	Jobs      []jobState        `json:"jobs"`
	// Verifications are in the order in which they were offered.
	Verifications []verificationState     `json:"verifications"`
	Counts        controlplanetest.Counts `json:"counts"`
}

type agentState struct {
	ID             string               `json:"agent_id"`
	Role           string               `json:"role"`
	RuntimeID      string               `json:"runtime_id"`
	Status         string               `json:"status"`
	Health         string               `json:"health"`
	Message        string               `json:"message"`
	Qualifications []qualificationState `json:"qualifications"`
}

type qualificationState struct {
	ID      string `json:"qualification_id"`
	Attempt int    `json:"attempt"`
	Status  string `json:"status"`
	Error   string `json:"runtime_error,omitempty"`
}

type jobState struct {
	JobID        int64          `json:"job_id"`
	AgentID      string         `json:"agent_id,omitempty"`
	AssignmentID string         `json:"assignment_id,omitempty"`
	LeaseID      string         `json:"lease_id,omitempty"`
	Attempt      int            `json:"attempt"`
	Status       string         `json:"status"`
	Branch       string         `json:"branch"`
	Phases       []string       `json:"phases"`
	Refusal      string         `json:"refusal,omitempty"`
	PullRequest  string         `json:"pull_request,omitempty"`
	Hash         string         `json:"evidence_hash,omitempty"`
	Signature    string         `json:"signature,omitempty"`
	Evidence     map[string]any `json:"evidence,omitempty"`
}

type verificationState struct {
	ID        string         `json:"verification_id"`
	JobID     int64          `json:"job_id"`
	AgentID   string         `json:"agent_id,omitempty"`
	LeaseID   string         `json:"lease_id,omitempty"`
	Leases    int            `json:"leases"`
	Status    string         `json:"status"`
	Phases    []string       `json:"phases"`
	Message   string         `json:"message,omitempty"`
	Refusal   string         `json:"refusal,omitempty"`
	Verdict   string         `json:"verdict,omitempty"`
	Hash      string         `json:"report_hash,omitempty"`
	Signature string         `json:"signature,omitempty"`
	Report    map[string]any `json:"report,omitempty"`
}

func (w *world) state(v controlplanetest.View) planeState {
	s := planeState{Addresses: w.addresses(), Agents: []agentState{}, Jobs: []jobState{}, Verifications: []verificationState{}, Counts: v.Counts}
	for _, a := range v.Agents {
		s.Agents = append(s.Agents, showAgent(a))
	}
	for _, j := range v.Jobs {
		s.Jobs = append(s.Jobs, jobState{
			JobID: j.JobID, AgentID: j.AgentID, AssignmentID: j.AssignmentID, LeaseID: j.LeaseID, Attempt: j.Attempt,
			Status: j.Status, Branch: j.Branch, Phases: append([]string{}, j.Phases...), Refusal: j.Refusal,
			PullRequest: word(j.Evidence, "pull_request_url"), Hash: j.Hash, Signature: j.Signature, Evidence: j.Evidence,
		})
	}
	for _, r := range v.Verifications {
		s.Verifications = append(s.Verifications, verificationState{
			ID: r.ID, JobID: r.JobID, AgentID: r.AgentID, LeaseID: r.LeaseID, Leases: r.Leases, Status: r.Status,
			Phases: append([]string{}, r.Phases...), Message: r.LastSaid, Refusal: r.Refusal,
			Verdict: r.Verdict, Hash: r.Hash, Signature: r.Signature, Report: r.Report,
		})
	}
	return s
}

func showAgent(a controlplanetest.AgentView) agentState {
	s := agentState{
		ID: a.ID, Role: a.Role, RuntimeID: a.RuntimeID, Status: a.Status, Qualifications: []qualificationState{},
		Health: word(a.LastBeat, "health"), Message: word(a.LastBeat, "message"),
	}
	for _, q := range a.Qualifications {
		s.Qualifications = append(s.Qualifications, qualificationState{q.ID, q.Attempt, q.Status, q.RuntimeError})
	}
	return s
}

func word(m map[string]any, name string) string {
	s, _ := m[name].(string)
	return s
}

// words joins a list of texts in evidence.
func words(m map[string]any, name string) string {
	list, _ := m[name].([]any)
	var all []string
	for _, item := range list {
		if s, isText := item.(string); isText {
			all = append(all, s)
		}
	}
	return strings.Join(all, " ")
}
