package protocol

import (
	"strings"
	"time"
)

// Lease is the part of a task that says whose work it is. A run is (Assignment,
// ID). It is enough to tell the control plane that the rest is invalid.
type Lease struct {
	Assignment AssignmentID
	ID         LeaseID
	// JobID is the job's number on the chain; it only travels back.
	JobID int64
	// Token is as fresh as the beat that carried the task; the newest seen wins.
	Token LeaseToken
	// Ends is the control plane's time; correct it by the measured offset.
	Ends time.Time
}

// Job is a JobTask whose every field keeps its rule. Only Validate makes one.
type Job struct {
	Lease
	Attempt    int64
	Repository Repository
	Work       Work
	// Policy holds the task's lists; its numbers are clamped in Minutes and
	// Repairs.
	Policy TaskPolicy
	// Minutes is 1 to MaxMinutes, Repairs 0 to MaxRepairs. The owner's policy
	// may lower them further.
	Minutes  int
	Repairs  int
	Delivery Delivery
}

// Lease checks the fields that name the run and prove the right to it. It fails
// with a *TaskError; then nobody can be told and nothing may be sent.
func (t *JobTask) Lease() (Lease, error) {
	return leaseOf(t.ID, t.LeaseID, t.JobID, t.LeaseToken, t.LeaseExpiresAt)
}

func leaseOf(id, lease string, jobID int64, token LeaseToken, ends string) (Lease, error) {
	var c checks
	l := Lease{
		Assignment: AssignmentID(c.uuid("id", id)),
		ID:         LeaseID(c.uuid("lease_id", lease)),
		JobID:      jobID,
		Token:      token,
		Ends:       c.instant("lease_expires_at", ends),
	}
	c.that(jobID > 0, "job_id", "not a positive integer")
	c.token("lease_token", string(token))
	if c.err != nil {
		return Lease{}, c.err
	}
	return l, nil
}

// Validate makes a Job of a task that came from origin at now, in the control
// plane's time. It fails with a *TaskError for the first broken rule. A lease
// that is over or nearly so is no broken rule: that is LEASE_TOO_SHORT's.
func (t *JobTask) Validate(origin Origin, now time.Time) (Job, error) {
	lease, err := t.Lease()
	if err != nil {
		return Job{}, err
	}
	var c checks
	c.that(t.Type == TypeJob, "type", "not "+TypeJob)
	c.that(lease.Ends.Before(now.Add(MaxLease)), "lease_expires_at", "too far in the future")
	c.that(t.AssignmentAttempt >= 0, "assignment_attempt", "negative")
	// Only these two addresses are ever called for this job, so a task can't
	// send the credential elsewhere (attack case G04).
	c.that(t.CredentialURL == origin.URL(PathJobCredential), "credential_url", "not the paired origin with the fixed path")
	c.that(t.SubmitURL == origin.URL(PathJobResult), "submit_url", "not the paired origin with the fixed path")
	c.repository(t.Repository)
	c.work(t.Work)
	c.policy(t.Policy)
	c.delivery(t.Delivery, t.Repository.TargetBranch)
	if c.err != nil {
		return Job{}, c.err
	}
	return Job{
		Lease: lease, Attempt: t.AssignmentAttempt, Repository: t.Repository,
		Work: t.Work, Policy: t.Policy, Delivery: t.Delivery,
		Minutes: int(min(t.Policy.MaximumExecutionMinutes, MaxMinutes)),
		Repairs: int(min(max(t.Policy.MaximumRepairAttempts, 0), MaxRepairs)),
	}, nil
}

// repository checks names that become parts of addresses on the owner's pinned
// git origin.
func (c *checks) repository(r Repository) {
	c.repositoryName("repository.owner", r.Owner)
	c.repositoryName("repository.name", r.Name)
	c.that(r.FullName == r.Owner+"/"+r.Name, "repository.full_name", "not owner and name")
	c.text("repository.clone_url", r.CloneURL, 0, MaxURL)
	c.branch("repository.target_branch", r.TargetBranch)
}

func (c *checks) repositoryName(field, name string) {
	c.that(ValidRepositoryName(name), field, "not a repository's name")
}

// ValidRepositoryName tells whether s can be an owner or a repository: 1 to 100
// letters, digits, "-", "_", ".", not "." or "..", no "-" in front.
func ValidRepositoryName(s string) bool {
	if s == "" || s == "." || s == ".." || s[0] == '-' || len(s) > MaxNameBytes {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && !isAlphanumeric(r)
	})
}

func (c *checks) work(w Work) {
	c.text("work.title", w.Title, 1, MaxTitle)
	c.text("work.description", w.Description, 0, MaxDescription)
	c.statements("work.technical_requirements", w.TechnicalRequirements)
	c.statements("work.acceptance_criteria", w.AcceptanceCriteria)
}

func (c *checks) statements(field string, list []Statement) {
	c.that(len(list) <= MaxStatements, field, "too many items")
	for _, s := range list {
		c.text(field, s.Text, 0, MaxStatement)
		c.text(field, s.VerificationMethod, 0, MaxStatement)
	}
}

// policy checks the shape only: whether a rule or a command can be used is for
// the owner's policy to say.
func (c *checks) policy(p TaskPolicy) {
	c.paths("policy.allowed_paths", p.AllowedPaths)
	c.paths("policy.forbidden_paths", p.ForbiddenPaths)
	c.that(p.MaximumExecutionMinutes >= 1, "policy.maximum_execution_minutes", "not a positive integer")
	c.commands(p.RequiredCommands, MaxRequiredCommands)
}

func (c *checks) commands(commands []string, most int) {
	c.that(len(commands) <= most, "policy.required_commands", "too many items")
	for _, command := range commands {
		c.text("policy.required_commands", command, 1, MaxCommandBytes)
	}
}

func (c *checks) paths(field string, paths []string) {
	c.that(len(paths) <= MaxPaths, field, "too many items")
	for _, path := range paths {
		c.text(field, path, 0, MaxPathBytes)
	}
}

func (c *checks) delivery(d Delivery, target string) {
	c.branch("delivery.branch", d.Branch)
	c.that(strings.HasPrefix(d.Branch, LeasedPrefix), "delivery.branch", "does not begin with "+LeasedPrefix)
	// Case-insensitive hosts would take one for the other.
	c.that(!strings.EqualFold(d.Branch, target), "delivery.branch", "is the target branch")
	c.text("delivery.pull_request_title", d.PullRequestTitle, 1, MaxTitle)
	c.text("delivery.pull_request_body_prefix", d.PullRequestBodyPrefix, 0, MaxPullRequestBody/2)
}
