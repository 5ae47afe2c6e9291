package controlplanetest

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"time"
)

// JobSpec is a funded job.
type JobSpec struct {
	// AgentID, when set, is the only agent that is given the job.
	AgentID string
	// Owner, Name, TargetBranch, CloneURL and Private describe the repository.
	// TargetBranch defaults to "main", CloneURL to <origin>/<owner>/<name>.git.
	Owner, Name, TargetBranch, CloneURL string
	Private                             bool

	Title, Description  string
	Requirements        []any // strings or objects
	Criteria            []any // strings or objects
	AllowedPaths        []string
	ForbiddenPaths      []string
	AllowDependencies   bool
	AllowMigrations     bool
	Minutes             int // 0: 30
	RequiredCommands    []string
	RepairAttempts      int
	PullRequestTitle    string
	PullRequestPrefix   string
	MaximumLeaseSeconds int // 0: by the rule; else shorter, for tests
	// Change may bend the task's JSON before each delivery.
	Change func(task map[string]any)
}

type job struct {
	spec         JobSpec
	jobID        int64
	queueItem    string
	agent        *agent
	assignmentID string
	leaseID      string
	leaseUntil   time.Time
	attempt      int
	status       string // QUEUED, LEASED, ACCEPTED, FAILED
	accepted     string // hash of the result that was taken
	succeeded    bool
	evidence     map[string]any
	signature    string
	phases       []string
	refusal      string
}

func (j *job) view(now time.Time) JobView {
	v := JobView{
		JobID: j.jobID, AssignmentID: j.assignmentID, LeaseID: j.leaseID, Attempt: j.attempt,
		Status: j.status, Branch: j.branch(), Phases: append([]string(nil), j.phases...),
		Evidence: j.evidence, Signature: j.signature, Hash: j.accepted, Refusal: j.refusal,
	}
	if j.agent != nil {
		v.AgentID = j.agent.id
	}
	if j.status == "LEASED" && !now.Before(j.leaseUntil) {
		v.Status = "EXPIRED"
	}
	return v
}

func (j *job) branch() string {
	return fmt.Sprintf("veyra/job-%d-%s-%d", j.jobID, slug(j.spec.Title), j.attempt)
}

func slug(title string) string {
	out := []byte{}
	for i := 0; i < len(title) && len(out) < 40; i++ {
		c := title[i] | 0x20
		switch {
		case c >= 'a' && c <= 'z' || title[i] >= '0' && title[i] <= '9':
			out = append(out, c)
		case len(out) > 0 && out[len(out)-1] != '-':
			out = append(out, '-')
		}
	}
	for len(out) > 0 && out[len(out)-1] == '-' {
		out = out[:len(out)-1]
	}
	if len(out) == 0 {
		return "job"
	}
	return string(out)
}

// AddJob queues a job and returns its job_id.
func (p *Plane) AddJob(spec JobSpec) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	spec.fill(p.origin)
	j := &job{spec: spec, jobID: p.nextJob, queueItem: newUUID(), status: "QUEUED"}
	p.nextJob++
	p.jobs = append(p.jobs, j)
	return j.jobID
}

func (s *JobSpec) fill(origin string) {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&s.TargetBranch, "main")
	def(&s.CloneURL, origin+"/"+s.Owner+"/"+s.Name+".git")
	def(&s.Title, "A small change")
	def(&s.PullRequestTitle, s.Title)
	def(&s.PullRequestPrefix, "Prepared by a Veyra agent.\n\n")
	if s.Minutes == 0 {
		s.Minutes = 30
	}
}

// Lease gives a job out under a new lease, as after an expired one. The old
// lease is over for the control plane.
func (p *Plane) Lease(jobID int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	for _, j := range p.jobs {
		if j.jobID == jobID && j.agent != nil {
			p.lease(j)
		}
	}
}

// lease begins the next attempt of an assignment. p.mu is held.
func (p *Plane) lease(j *job) {
	seconds := max(600, j.spec.Minutes*60+120)
	if j.spec.MaximumLeaseSeconds > 0 {
		seconds = min(seconds, j.spec.MaximumLeaseSeconds)
	}
	j.attempt++
	j.leaseID, j.status, j.phases = newUUID(), "LEASED", nil
	j.leaseUntil = p.opts.Now().Add(time.Duration(seconds) * time.Second)
	p.counts.Leases++
}

// current is the oldest unfinished assignment of an agent, also when its lease
// ran out. p.mu is held.
func (p *Plane) current(a *agent) *job {
	for _, j := range p.jobs {
		if j.agent == a && j.status == "LEASED" {
			return j
		}
	}
	return nil
}

// jobTask is the job that a beat carries, assigned now if the agent may have
// one. p.mu is held.
func (p *Plane) jobTask(a *agent) map[string]any {
	if a.status != statusActive || !a.healthy {
		return nil
	}
	j := p.current(a)
	if j == nil {
		if j = p.assign(a); j == nil {
			return nil
		}
	}
	if !p.opts.Now().Before(j.leaseUntil) {
		return nil
	}
	task := p.taskBody(j)
	if j.spec.Change != nil {
		j.spec.Change(task)
	}
	return task
}

func (p *Plane) assign(a *agent) *job {
	if a.role != "WORKER" {
		return nil
	}
	for _, j := range p.jobs {
		if j.status == "QUEUED" && (j.spec.AgentID == "" || j.spec.AgentID == a.id) {
			j.agent, j.assignmentID = a, newUUID()
			p.lease(j)
			return j
		}
	}
	return nil
}

func (p *Plane) taskBody(j *job) map[string]any {
	s := j.spec
	return map[string]any{
		"id": j.assignmentID, "type": "veyra_paid_job", "job_id": j.jobID, "queue_item_id": j.queueItem,
		"assignment_attempt": j.attempt, "lease_id": j.leaseID,
		"lease_token": p.signLease(leaseClaims{
			Kind: "job", ID: j.assignmentID, Lease: j.leaseID, Until: j.leaseUntil,
		}),
		"lease_expires_at": j.leaseUntil.UTC().Format(time.RFC3339Nano),
		"credential_url":   p.url(JobCredential), "submit_url": p.url(JobResult),
		"repository": map[string]any{
			"owner": s.Owner, "name": s.Name, "full_name": s.Owner + "/" + s.Name,
			"private": s.Private, "target_branch": s.TargetBranch, "clone_url": s.CloneURL,
		},
		"work": map[string]any{
			"title": s.Title, "description": s.Description, "issue_number": nil, "issue_url": "",
			"technical_requirements": list(s.Requirements), "acceptance_criteria": list(s.Criteria),
		},
		"policy": map[string]any{
			"allowed_paths": list(s.AllowedPaths), "forbidden_paths": list(s.ForbiddenPaths),
			"allow_new_dependencies": s.AllowDependencies, "allow_database_migrations": s.AllowMigrations,
			"maximum_execution_minutes": s.Minutes, "required_commands": list(s.RequiredCommands),
			"maximum_repair_attempts": s.RepairAttempts,
		},
		"delivery": map[string]any{
			"branch": j.branch(), "pull_request_title": s.PullRequestTitle,
			"pull_request_body_prefix": s.PullRequestPrefix,
		},
	}
}

func list[T any](items []T) []any {
	out := []any{}
	for _, item := range items {
		out = append(out, item)
	}
	return out
}

// leased finds the assignment of a request and checks its lease. p.mu is held.
func (p *Plane) leased(c call) (*job, *reply) {
	id := c.text("assignment_id")
	if !uuidSyntax.MatchString(id) {
		return nil, ref(crash(http.StatusInternalServerError))
	}
	var j *job
	for _, candidate := range p.jobs {
		if candidate.assignmentID == id && candidate.agent == c.agent {
			j = candidate
		}
	}
	if j == nil {
		return nil, ref(refuse(http.StatusConflict, "Assignment was not found."))
	}
	claims, err := p.readLease(c.text("lease_token"))
	if err != nil {
		return j, ref(refuse(http.StatusConflict, "%s", err))
	}
	if claims.Kind != "job" || claims.ID != id {
		return j, ref(refuse(http.StatusConflict, "Lease token is for something else."))
	}
	if j.status == "LEASED" && claims.Lease != j.leaseID {
		return j, ref(refuse(http.StatusConflict, "The lease was given to a newer attempt."))
	}
	return j, nil
}

// credential hands out the repository's token. p.mu is held.
func (p *Plane) credential(c call) reply {
	j, bad := p.leased(c)
	if bad != nil {
		return *bad
	}
	if j.status != "LEASED" || !p.opts.Now().Before(j.leaseUntil) {
		return refuse(http.StatusConflict, "Assignment holds no lease.")
	}
	full := j.spec.Owner + "/" + j.spec.Name
	token := p.repoToken(full)
	p.counts.TokensIssued++
	return ok(map[string]any{
		"token": token.text, "expires_at": token.expires.UTC().Format(time.RFC3339),
		"repository": full, "clone_url": j.spec.CloneURL,
		"permissions": map[string]any{"contents": "write", "pull_requests": "write", "metadata": "read"},
	})
}

func (p *Plane) repoToken(repository string) repoToken {
	now := p.opts.Now()
	if t, found := p.tokens[repository]; found && now.Sub(t.issued) < 50*time.Minute {
		return t
	}
	t := repoToken{text: "ghs_" + rand.Text() + rand.Text(), issued: now, expires: now.Add(time.Hour)}
	if p.opts.RepoToken != nil {
		t.text, t.expires = p.opts.RepoToken(repository)
	}
	p.tokens[repository] = t
	return t
}
