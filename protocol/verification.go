package protocol

import (
	"encoding/json"
	"time"
)

// TypeVerification is the type member of a verification task.
const TypeVerification = "independent_verification"

// VerificationTask asks a verifier to judge what a worker delivered (protocol
// section 7), as it came: every field is foreign. Validate makes a Verification
// of it.
type VerificationTask struct {
	ID                 string             `json:"id"`
	Type               string             `json:"type"`
	WorkerAssignmentID string             `json:"worker_assignment_id"`
	JobID              int64              `json:"job_id"`
	LeaseID            string             `json:"lease_id"`
	LeaseToken         LeaseToken         `json:"lease_token"`
	LeaseExpiresAt     string             `json:"lease_expires_at"`
	Repository         Repository         `json:"repository"`
	Submission         Submission         `json:"submission"`
	Work               Work               `json:"work"`
	Policy             VerificationPolicy `json:"policy"`
	CredentialURL      string             `json:"credential_url"`
	SubmitURL          string             `json:"submit_url"`
}

// Submission is what the worker claims to have delivered. It is compared with
// what the repository shows, never believed.
type Submission struct {
	CommitSHA         string   `json:"commit_sha"`
	PullRequestNumber int64    `json:"pull_request_number"`
	PullRequestURL    string   `json:"pull_request_url"`
	Branch            string   `json:"branch"`
	ChangedFiles      []string `json:"changed_files"`
	// WorkerEvidenceHash, WorkerTestCommand and WorkerTestPassed are the
	// worker's word: they are shown, and nothing is decided by them.
	WorkerEvidenceHash Text `json:"worker_evidence_hash"`
	WorkerTestCommand  Text `json:"worker_test_command"`
	WorkerTestPassed   bool `json:"worker_test_passed"`
}

// VerificationPolicy is what the client funded, as far as a verifier needs it.
type VerificationPolicy struct {
	AllowedPaths         []string `json:"allowed_paths"`
	ForbiddenPaths       []string `json:"forbidden_paths"`
	RequiredCommands     []string `json:"required_commands"`
	MaximumReviewMinutes int64    `json:"maximum_review_minutes"`
}

// Verification is a VerificationTask whose every field keeps its rule. A run is
// (Assignment, ID) of its Lease; Assignment is the verification's own id, not
// the worker's. Only Validate makes one.
type Verification struct {
	Lease
	WorkerAssignment AssignmentID
	Repository       Repository
	Submission       Submission
	Work             Work
	// Policy holds the task's lists; its number is clamped in Minutes.
	Policy VerificationPolicy
	// Minutes is 1 to MaxMinutes; the lease may end sooner.
	Minutes int
}

// DecodeVerificationTask reads a verification from a beat's answer, with the
// errors of DecodeJobTask.
func DecodeVerificationTask(raw json.RawMessage) (VerificationTask, error) {
	var t VerificationTask
	err := decodeTask(raw, &t)
	return t, err
}

// Lease checks the fields that name the run and prove the right to it. It fails
// with a *TaskError; then there is not even a run to show.
func (t *VerificationTask) Lease() (Lease, error) {
	return leaseOf(t.ID, t.LeaseID, t.JobID, t.LeaseToken, t.LeaseExpiresAt)
}

// Validate makes a Verification of a task that came from origin at now, in the
// control plane's time. It fails with a *TaskError for the first broken rule; a
// lease that is over is none (see JobTask.Validate).
func (t *VerificationTask) Validate(origin Origin, now time.Time) (Verification, error) {
	lease, err := t.Lease()
	if err != nil {
		return Verification{}, err
	}
	var c checks
	c.that(t.Type == TypeVerification, "type", "not "+TypeVerification)
	worker := AssignmentID(c.uuid("worker_assignment_id", t.WorkerAssignmentID))
	c.that(lease.Ends.Before(now.Add(MaxLease)), "lease_expires_at", "too far in the future")
	c.that(t.CredentialURL == origin.URL(PathVerificationCredential), "credential_url", "not the paired origin with the fixed path")
	c.that(t.SubmitURL == origin.URL(PathVerificationResult), "submit_url", "not the paired origin with the fixed path")
	c.repository(t.Repository)
	c.submission(t.Submission, t.Repository.TargetBranch)
	c.work(t.Work)
	c.review(t.Policy)
	if c.err != nil {
		return Verification{}, c.err
	}
	return Verification{
		Lease: lease, WorkerAssignment: worker, Repository: t.Repository, Submission: t.Submission,
		Work: t.Work, Policy: t.Policy, Minutes: int(min(t.Policy.MaximumReviewMinutes, MaxMinutes)),
	}, nil
}

// submission checks what is compared or becomes part of a ref's name. The names
// of changed files may be odd: one that no tree can hold simply differs.
func (c *checks) submission(s Submission, target string) {
	c.that(ValidCommit(s.CommitSHA), "submission.commit_sha", "not 40 lower-case hex digits")
	c.that(s.PullRequestNumber > 0 && s.PullRequestNumber <= MaxPullRequestNumber,
		"submission.pull_request_number", "out of range")
	c.text("submission.pull_request_url", s.PullRequestURL, 0, MaxURL)
	c.branch("submission.branch", s.Branch)
	c.that(s.Branch != target, "submission.branch", "is the target branch")
	c.that(len(s.ChangedFiles) > 0, "submission.changed_files", "missing or empty")
	c.that(len(s.ChangedFiles) <= MaxSubmittedFiles, "submission.changed_files", "too many items")
	for _, path := range s.ChangedFiles {
		c.text("submission.changed_files", path, 1, MaxPathBytes)
	}
	c.text("submission.worker_evidence_hash", string(s.WorkerEvidenceHash), 0, MaxTitle)
	c.text("submission.worker_test_command", string(s.WorkerTestCommand), 0, MaxCommandBytes)
}

// review checks the shape of a verification's policy only.
func (c *checks) review(p VerificationPolicy) {
	c.paths("policy.allowed_paths", p.AllowedPaths)
	c.paths("policy.forbidden_paths", p.ForbiddenPaths)
	c.that(p.MaximumReviewMinutes >= 1, "policy.maximum_review_minutes", "not a positive integer")
	c.commands(p.RequiredCommands, MaxReviewCommands)
}
