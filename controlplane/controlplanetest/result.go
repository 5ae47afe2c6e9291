package controlplanetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// GitHub is what the control plane reads of a pull request.
type GitHub interface {
	// PullRequest returns the pull request; an error is passing trouble (409).
	// It is called under the plane's lock and must not call the plane.
	PullRequest(ctx context.Context, repository string, number int) (PullRequest, error)
}

// PullRequest is a pull request as GitHub shows it.
type PullRequest struct {
	State                              string // open, closed or merged
	HeadRef, HeadSHA, BaseRef, HTMLURL string
	Files                              []string // new names only
}

// result judges a job's result. p.mu is held; the GitHub is asked under it,
// like the transaction of the real one.
func (p *Plane) result(c call) reply {
	j, stale := p.leased(c)
	if stale != nil && (j == nil || j.accepted == "") {
		return *stale
	}
	hash, bad := p.checkSigned(c, j)
	if bad != nil {
		j.refusal = bad.detail()
		return *bad
	}
	if j.accepted != "" && (j.succeeded || hash == j.accepted) {
		return ok(resultReply(j))
	}
	if stale != nil {
		return *stale
	}
	if j.status != "LEASED" {
		return refuse(http.StatusConflict, "Assignment already holds another result.")
	}
	if !p.opts.Now().Before(j.leaseUntil) {
		return refuse(http.StatusConflict, "Assignment lease has expired.")
	}
	evidence := c.body["evidence"].(map[string]any)
	if err := p.checkEvidence(j, evidence); err != nil {
		j.refusal = err.Error()
		return refuse(http.StatusConflict, "%s", err)
	}
	return p.accept(j, evidence, hash, c.text("signature"))
}

// checkSigned checks hash and signature over what was parsed.
func (p *Plane) checkSigned(c call, j *job) (hash string, bad *reply) {
	evidence, isObject := c.body["evidence"].(map[string]any)
	if !isObject {
		return "", ref(refuse(http.StatusBadRequest, "evidence must be an object."))
	}
	text, err := canonical(evidence)
	if err != nil {
		return "", ref(refuse(http.StatusConflict, "evidence can't be hashed: %v", err))
	}
	sum := sha256.Sum256(text)
	hash = "0x" + hex.EncodeToString(sum[:])
	if c.text("evidence_hash") != hash {
		return "", ref(refuse(http.StatusConflict, "Evidence hash does not match the evidence."))
	}
	claims, _ := p.readLease(c.text("lease_token"))
	message := fmt.Sprintf("veyra-job-result-v1:%s:%s:%s", j.assignmentID, claims.Lease, hash)
	if !signed(c.agent.key, message, c.text("signature")) {
		return "", ref(refuse(http.StatusConflict, "Result signature is not valid."))
	}
	return hash, nil
}

func resultReply(j *job) map[string]any {
	return map[string]any{
		"ok": true, "assignment_id": j.assignmentID, "assignment_status": j.status,
		"queue_status": "DONE",
	}
}

// accept takes a result; a failure that another try may cure is given out again
// at once, to the same worker.
func (p *Plane) accept(j *job, evidence map[string]any, hash, signature string) reply {
	j.evidence, j.accepted, j.signature, j.refusal = evidence, hash, signature, ""
	if evidence["outcome"] == "SUCCEEDED" {
		j.status, j.succeeded = "ACCEPTED", true
		p.counts.AcceptedResults++
		if p.opts.Verify {
			p.verifyJob(j)
		}
		return ok(resultReply(j))
	}
	p.counts.FailedResults++
	j.status = "FAILED"
	answer := ok(resultReply(j))
	if retried(evidence) && j.attempt < p.opts.Attempts {
		p.lease(j)
	}
	return answer
}

var retryStages = []string{"runtime_execution", "runtime_infrastructure", "runtime_preflight"}

// retryWords is the control plane's own list.
var retryWords = []string{
	"[winerror 2]", "file not found", "no such file or directory", "connection reset",
	"connection aborted", "temporarily unavailable", "timed out", "timeout", "too many requests",
	"rate limit", "bad gateway", "service unavailable", "gateway timeout",
	"expecting value: line 1 column", "returned malformed json",
	"returned malformed or incomplete json", "could not read as json", "returned an empty response",
	"returned no changed files", "returned no valid changed files", "unknown funded path id",
	"instead of json",
}

func retried(evidence map[string]any) bool {
	stage, _ := evidence["failure_stage"].(string)
	message, _ := evidence["failure_message"].(string)
	message = strings.ToLower(message)
	return slices.Contains(retryStages, stage) &&
		slices.ContainsFunc(retryWords, func(word string) bool { return strings.Contains(message, word) })
}
