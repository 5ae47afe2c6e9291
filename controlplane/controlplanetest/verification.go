package controlplanetest

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"time"
)

const (
	// verificationLease is how long one verifier may take.
	verificationLease = 30 * time.Minute
	// sameVerifier is how often a verification goes to one verifier before
	// another is asked.
	sameVerifier = 2
)

// VerificationSpec is a submission that is to be judged.
type VerificationSpec struct {
	// AgentID, when set, is the only verifier that is given it.
	AgentID string
	// Owner, Name, TargetBranch and CloneURL as in JobSpec.
	Owner, Name, TargetBranch, CloneURL string

	JobID              int64
	WorkerAssignmentID string // empty: a new one
	// CommitSHA, PullRequest and ChangedFiles are the worker's claim; the rest
	// of the submission has defaults.
	CommitSHA      string
	PullRequest    int
	PullRequestURL string
	Branch         string
	ChangedFiles   []string
	EvidenceHash   string
	TestCommand    string

	Title, Description string
	Requirements       []any
	Criteria           []any
	AllowedPaths       []string
	ForbiddenPaths     []string
	RequiredCommands   []string
	Minutes            int // 0: 30
	// LeaseSeconds, when set, replaces the half hour.
	LeaseSeconds int
	// WriteCredential hands out a token that can write, which a verifier must
	// refuse.
	WriteCredential bool
	// Change may bend the task's JSON before each delivery.
	Change func(task map[string]any)
}

// verification is the control plane's record of one. Plane.mu guards it.
type verification struct {
	spec       VerificationSpec
	id         string
	agent      *agent
	tried      []*agent // verifiers that let it run out for good
	leaseID    string
	leaseUntil time.Time
	leases     int    // in all
	own        int    // to the present agent
	status     string // QUEUED, LEASED, COMPLETED
	verdict    string
	hash       string // of the report that was taken
	report     map[string]any
	signature  string
	phases     []string
	lastStatus string
	lastSaid   string
	refusal    string
}

func (r *verification) view(now time.Time) VerificationView {
	v := VerificationView{
		ID: r.id, JobID: r.spec.JobID, LeaseID: r.leaseID, WorkerAssignmentID: r.spec.WorkerAssignmentID,
		Leases: r.leases, Status: r.status, Verdict: r.verdict, Phases: slices.Clone(r.phases),
		LastStatus: r.lastStatus, LastSaid: r.lastSaid, Report: r.report, Signature: r.signature,
		Hash: r.hash, Refusal: r.refusal,
	}
	if r.agent != nil {
		v.AgentID = r.agent.id
	}
	if r.status == "LEASED" && !now.Before(r.leaseUntil) {
		v.Status = "EXPIRED"
	}
	return v
}

// AddVerification queues a verification and returns its id.
func (p *Plane) AddVerification(spec VerificationSpec) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	return p.addVerification(spec)
}

func (p *Plane) addVerification(spec VerificationSpec) string {
	spec.fill(p.origin)
	r := &verification{spec: spec, id: newUUID(), status: "QUEUED"}
	p.reviews = append(p.reviews, r)
	return r.id
}

func (s *VerificationSpec) fill(origin string) {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&s.TargetBranch, "main")
	def(&s.CloneURL, origin+"/"+s.Owner+"/"+s.Name+".git")
	def(&s.Title, "A small change")
	def(&s.Branch, "veyra/job-1-a-small-change-1")
	def(&s.PullRequestURL, fmt.Sprintf("%s/%s/%s/pull/%d", origin, s.Owner, s.Name, s.PullRequest))
	def(&s.WorkerAssignmentID, newUUID())
	s.JobID = max(s.JobID, 1)
	if s.Minutes == 0 {
		s.Minutes = 30
	}
	if s.LeaseSeconds == 0 {
		s.LeaseSeconds = int(verificationLease.Seconds())
	}
}

// VerifyJob makes a verification of a job's accepted success.
func (p *Plane) VerifyJob(jobID int64) (id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	for _, j := range p.jobs {
		if j.jobID == jobID && j.succeeded {
			return p.verifyJob(j), nil
		}
	}
	return "", fmt.Errorf("job %d has no accepted success", jobID)
}

// verifyJob asks for a verification of what a worker's evidence claims. p.mu is
// held.
func (p *Plane) verifyJob(j *job) string {
	s, e := j.spec, j.evidence
	text := func(name string) string { t, _ := e[name].(string); return t }
	files, _ := changedFiles(e)
	return p.addVerification(VerificationSpec{
		Owner: s.Owner, Name: s.Name, TargetBranch: s.TargetBranch, CloneURL: s.CloneURL,
		JobID: j.jobID, WorkerAssignmentID: j.assignmentID, CommitSHA: text("commit_sha"),
		PullRequest: integer(e, "pull_request_number"), PullRequestURL: text("pull_request_url"),
		Branch: text("branch"), ChangedFiles: files, EvidenceHash: j.accepted, TestCommand: text("test_command"),
		Title: s.Title, Description: s.Description, Requirements: s.Requirements, Criteria: s.Criteria,
		AllowedPaths: s.AllowedPaths, ForbiddenPaths: s.ForbiddenPaths, RequiredCommands: s.RequiredCommands,
	})
}

// ExpireVerification ends a verification's lease now; the next beats bring it
// under another.
func (p *Plane) ExpireVerification(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	for _, r := range p.reviews {
		if r.id == id {
			r.leaseUntil = p.opts.Now()
		}
	}
}

// giveOut begins a verification's next lease. p.mu is held.
func (p *Plane) giveOut(r *verification, to *agent) {
	if r.agent != to {
		r.agent, r.own = to, 0
	}
	r.own++
	r.leases++
	r.leaseID, r.status, r.phases = newUUID(), "LEASED", nil
	r.leaseUntil = p.opts.Now().Add(time.Duration(r.spec.LeaseSeconds) * time.Second)
	p.counts.Reviews++
}

// currentReview is the unfinished verification that an agent holds. p.mu is held.
func (p *Plane) currentReview(a *agent) *verification {
	for _, r := range p.reviews {
		if r.agent == a && r.status == "LEASED" {
			return r
		}
	}
	return nil
}

// verificationTask is the verification that a beat carries. A lease that ran out
// is given to the same verifier once more, then to another. p.mu is held.
func (p *Plane) verificationTask(a *agent) map[string]any {
	if a.status != statusActive || !a.healthy || a.role != "VERIFIER" {
		return nil
	}
	r := p.currentReview(a)
	if r != nil && !p.opts.Now().Before(r.leaseUntil) {
		if r.own < sameVerifier {
			p.giveOut(r, a)
		} else {
			r.status, r.agent, r.tried = "QUEUED", nil, append(r.tried, a)
			r = nil
		}
	}
	if r == nil {
		if r = p.nextReview(a); r == nil {
			return nil
		}
		p.giveOut(r, a)
	}
	task := p.reviewBody(r)
	if r.spec.Change != nil {
		r.spec.Change(task)
	}
	return task
}

func (p *Plane) nextReview(a *agent) *verification {
	for _, r := range p.reviews {
		meant := r.spec.AgentID == "" || r.spec.AgentID == a.id
		if r.status == "QUEUED" && meant && !slices.Contains(r.tried, a) {
			return r
		}
	}
	return nil
}

func (p *Plane) reviewBody(r *verification) map[string]any {
	s := r.spec
	command := []rune(s.TestCommand)
	return map[string]any{
		"id": r.id, "type": "independent_verification", "worker_assignment_id": s.WorkerAssignmentID,
		"job_id": s.JobID, "lease_id": r.leaseID,
		"lease_token": p.signLease(leaseClaims{
			Kind: "verification", ID: r.id, Lease: r.leaseID, Until: r.leaseUntil,
		}),
		"lease_expires_at": r.leaseUntil.UTC().Format(time.RFC3339Nano),
		"repository": map[string]any{
			"owner": s.Owner, "name": s.Name, "full_name": s.Owner + "/" + s.Name,
			"clone_url": s.CloneURL, "target_branch": s.TargetBranch,
		},
		"submission": map[string]any{
			"commit_sha": s.CommitSHA, "pull_request_number": s.PullRequest, "pull_request_url": s.PullRequestURL,
			"branch": s.Branch, "changed_files": list(s.ChangedFiles), "worker_evidence_hash": s.EvidenceHash,
			"worker_test_command": string(command[:min(len(command), 240)]), "worker_test_passed": true,
		},
		"work": map[string]any{
			"title": s.Title, "description": s.Description,
			"acceptance_criteria": list(s.Criteria), "technical_requirements": list(s.Requirements),
		},
		"policy": map[string]any{
			"allowed_paths": list(s.AllowedPaths), "forbidden_paths": list(s.ForbiddenPaths),
			"required_commands": list(s.RequiredCommands), "maximum_review_minutes": s.Minutes,
		},
		"credential_url": p.url(VerificationCredential), "submit_url": p.url(VerificationResult),
	}
}

// reviewOf finds the verification of a request and checks its lease token; that
// the lease still lives is another question. p.mu is held.
func (p *Plane) reviewOf(c call) (*verification, *reply) {
	id := c.text("verification_id")
	if !uuidSyntax.MatchString(id) {
		return nil, ref(crash(http.StatusInternalServerError))
	}
	var r *verification
	for _, candidate := range p.reviews {
		if candidate.id == id && candidate.agent == c.agent {
			r = candidate
		}
	}
	if r == nil {
		return nil, ref(refuse(http.StatusConflict, "Verification was not found."))
	}
	claims, err := p.readLease(c.text("lease_token"))
	switch {
	case err != nil:
		return r, ref(refuse(http.StatusConflict, "%s", err))
	case claims.Kind != "verification" || claims.ID != id:
		return r, ref(refuse(http.StatusConflict, "Lease token is for something else."))
	case claims.Lease != r.leaseID:
		return r, ref(refuse(http.StatusConflict, "The lease was given anew."))
	case !p.opts.Now().Before(r.leaseUntil):
		return r, ref(refuse(http.StatusConflict, "Verification lease has expired."))
	}
	return r, nil
}

// readCredential hands out a token that can only read, another one each time.
// p.mu is held.
func (p *Plane) readCredential(c call) reply {
	r, bad := p.reviewOf(c)
	if bad != nil {
		return *bad
	}
	if r.status != "LEASED" {
		return refuse(http.StatusConflict, "Verification holds no lease.")
	}
	full := r.spec.Owner + "/" + r.spec.Name
	token, expires := "ghs_"+rand.Text()+rand.Text(), p.opts.Now().Add(time.Hour)
	access := "read"
	switch {
	case r.spec.WriteCredential:
		given := p.repoToken(full)
		token, expires, access = given.text, given.expires, "write"
	case p.opts.ReadToken != nil:
		token, expires = p.opts.ReadToken(full)
	}
	p.counts.TokensIssued++
	return ok(map[string]any{
		"token": token, "expires_at": expires.UTC().Format(time.RFC3339),
		"repository": full, "clone_url": r.spec.CloneURL, "write_access": r.spec.WriteCredential,
		"permissions": map[string]any{"contents": access, "pull_requests": access, "metadata": "read"},
	})
}

// noteReview keeps progress only for the verification that the agent holds.
func (p *Plane) noteReview(a *agent, c call) {
	r := p.currentReview(a)
	if r == nil || c.text("verification_assignment_id") != r.id {
		return
	}
	r.lastStatus, r.lastSaid = c.text("verification_status"), c.text("verification_message")
	phase := c.text("verification_phase")
	if slices.Contains(reviewPhases, phase) && (len(r.phases) == 0 || r.phases[len(r.phases)-1] != phase) {
		r.phases = append(r.phases, phase)
	}
}

// reviewPhases are the phases the control plane shows.
var reviewPhases = []string{
	"PREPARING_REVIEW", "CHECKING_OUT_COMMIT", "PREPARING_ENVIRONMENT", "RUNNING_VALIDATION",
	"EVALUATING_REQUIREMENTS", "SUBMITTING_VERDICT", "COMPLETED", "FAILED",
}
