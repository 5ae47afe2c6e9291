package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// event is one line for whoever watches. Fields are told in their order.
type event struct {
	Name   string
	Fields []field
}

type field struct {
	Name  string
	Value any
}

// teller prints events. It belongs to one goroutine.
type teller struct {
	out   io.Writer
	json  bool
	began time.Time
}

func newTeller(out io.Writer, asJSON bool) teller { return teller{out, asJSON, time.Now()} }

func (t teller) tell(e event) {
	elapsed := time.Since(t.began)
	if !t.json {
		fmt.Fprintln(t.out, textLine(elapsed, e))
		return
	}
	line := map[string]any{"event": e.Name, "elapsed_ms": elapsed.Milliseconds()}
	for _, f := range e.Fields {
		line[f.Name] = f.Value
	}
	text, _ := json.Marshal(line)
	fmt.Fprintf(t.out, "%s\n", text)
}

func textLine(elapsed time.Duration, e event) string {
	var line strings.Builder
	fmt.Fprintf(&line, "%7.2fs  %s", elapsed.Seconds(), e.Name)
	for _, f := range e.Fields {
		fmt.Fprintf(&line, "  %s=%v", f.Name, f.Value)
	}
	return line.String()
}

// tell prints the addresses, then what changes, until ctx ends.
func (w *world) tell(ctx context.Context, t teller) {
	listening := event{Name: "listening"}
	for _, name := range []string{"control_plane", "git", "api", "model", "model_name", "dir"} {
		listening.Fields = append(listening.Fields, field{name, w.addresses()[name]})
	}
	t.tell(listening)
	var last controlplanetest.View
	for {
		next, err := w.plane.Wait(ctx, func(v controlplanetest.View) bool { return len(news(last, v)) > 0 })
		for _, e := range news(last, next) {
			t.tell(e)
		}
		last = next
		if err != nil {
			return
		}
	}
}

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
		all = append(all, event{name, []field{id, {"runtime_id", now.RuntimeID}}})
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
