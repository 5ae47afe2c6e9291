package controlplanetest

import (
	"net/http"
	"slices"
)

// beat stores a heartbeat and answers with at most one task. p.mu is held.
func (p *Plane) beat(c call) reply {
	a := c.agent
	if !a.connected {
		// The claim's answer did not arrive, or not yet.
		return crash(http.StatusInternalServerError)
	}
	ready, isBool := c.body["provider_ready"].(bool)
	health := c.text("health")
	if !isBool || health != "HEALTHY" && health != "UNHEALTHY" {
		return refuse(http.StatusBadRequest, "health or provider_ready is not valid.")
	}
	for name, value := range c.body {
		if _, isText := value.(string); !isText && name != "provider_ready" {
			return refuse(http.StatusBadRequest, "%s must be a string.", name)
		}
	}
	a.lastBeat, a.beatAt = c.body, p.opts.Now()
	a.healthy = ready && health == "HEALTHY"
	p.counts.Beats++
	p.noteProgress(a, c)
	if !a.healthy && a.status == statusActive {
		return crash(http.StatusInternalServerError)
	}
	return ok(p.beatBody(a))
}

func (p *Plane) beatBody(a *agent) map[string]any {
	body := map[string]any{
		"ok": true, "agent_id": a.id, "connection_status": "CONNECTED",
		"qualification_task": nil, "job_task": nil, "verification_task": nil,
		"delivery_errors": []any{},
	}
	if len(a.deliveryErrors) > 0 {
		body["delivery_errors"] = a.deliveryErrors
		return body
	}
	if task := p.qualificationTask(a); task != nil {
		body["qualification_task"] = task
	} else if task := p.jobTask(a); task != nil {
		body["job_task"] = task
	} else if task := p.verificationTask(a); task != nil {
		body["verification_task"] = task
	}
	return body
}

// noteProgress keeps progress only for the assignment that the agent holds.
func (p *Plane) noteProgress(a *agent, c call) {
	p.noteReview(a, c)
	j := p.current(a)
	if j == nil || c.text("job_assignment_id") != j.assignmentID {
		return
	}
	phase := c.text("job_phase")
	if phase != "" && (len(j.phases) == 0 || j.phases[len(j.phases)-1] != phase) && slices.Contains(jobPhases, phase) {
		j.phases = append(j.phases, phase)
	}
}

// jobPhases are the phases the control plane shows.
var jobPhases = []string{
	"PREPARING_REPOSITORY", "PREPARING_ENVIRONMENT", "BASELINE_VALIDATION",
	"GENERATING_IMPLEMENTATION", "POST_CHANGE_VALIDATION", "REPAIRING_IMPLEMENTATION",
	"CREATING_COMMIT", "PUSHING_BRANCH", "CREATING_PULL_REQUEST", "SUBMITTING_RESULT",
	"SUBMITTED", "FAILED",
}
