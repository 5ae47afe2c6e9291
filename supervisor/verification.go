package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Verifier judges submissions; jobs.Verifier is the real one.
type Verifier interface {
	Execute(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome
}

// reportLimits are the texts of a report that are cut, in code points, and those
// of the objects in its two lists.
var (
	reportLimits = map[string]int{
		protocol.KeySummary: protocol.MaxReportSummary, protocol.KeyIndependentCommand: protocol.MaxReportCommand,
		protocol.KeyIndependentOutput: protocol.MaxOutput, protocol.KeySetupCommand: protocol.MaxCommand,
		protocol.KeySetupOutput: protocol.MaxSetupOutput,
		protocol.KeyProvider:    protocol.MaxProvider, protocol.KeyModel: protocol.MaxModel,
		protocol.KeyRuntimeVersion: protocol.MaxRuntimeVersion,
	}
	reportLists = map[string]map[string]int{
		protocol.KeyAcceptanceCriteria: {protocol.KeyEvidence: protocol.MaxCriterionEvidence},
		protocol.KeySecurityFindings: {
			protocol.KeyFindingTitle: protocol.MaxFindingTitle, protocol.KeyFindingDetail: protocol.MaxFindingDetail,
		},
	}
)

// executeVerification judges a submission and seals the report. Without one the
// lease runs out, and the control plane gives the verification out again.
func (s *Supervisor) executeVerification(ctx context.Context, r *run, v protocol.Verification, accepted time.Time) {
	outcome := s.review(ctx, r, v, accepted)
	if r.lease.left() <= 0 {
		r.lease.lose(errLeaseOver) // whoever noticed it first
	}
	var body []byte
	if outcome.Report != nil {
		var err error
		if body, err = s.canonicalReport(outcome, v); err != nil {
			r.log.Error("the report breaks a rule and is not signed", "error", err)
			body, outcome.Failure = nil, protocol.CodeInternalError
		}
	}
	switch {
	case outcome.Abandoned != "" || r.lease.ctx.Err() != nil:
		s.measure(r, "", outcome.Abandoned)
		s.abandon(r, reasonOf(r.lease.ctx, outcome.Abandoned), body)
	case body == nil:
		if outcome.Failure == "" {
			outcome.Failure = protocol.CodeInternalError
		}
		s.withoutReport(r, outcome.Failure, "")
	default:
		s.measure(r, "", "")
		s.board.showReview(protocol.AssignmentID(r.key.ID), protocol.VerificationRunning, protocol.VerificationSubmitting, "Sealing the verdict")
		s.draftAndSign(ctx, r, body, "0x"+hashOf(body))
	}
}

// review calls the verifier; a panic of ours becomes INTERNAL_ERROR.
func (s *Supervisor) review(
	ctx context.Context, r *run, v protocol.Verification, accepted time.Time,
) (outcome jobs.VerificationOutcome) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a verification panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			outcome = jobs.VerificationOutcome{Failure: protocol.CodeInternalError}
		}
	}()
	dir, err := s.dir(r.key)
	if err != nil {
		r.log.Error("the run can't begin", "error", err)
		return jobs.VerificationOutcome{Failure: protocol.CodeInternalError}
	}
	configuration, _ := s.settings.read()
	deadline := *r.lease.end.Load()
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errLeaseOver)
	defer cancel()
	return s.parts.Verifier.Execute(ctx, jobs.VerificationRun{
		Verification: v, Configuration: configuration, Accepted: accepted, Started: r.started,
		Deadline: deadline, Dir: dir,
		Credentials: s.readCredentials(v.Repository, r.lease),
		Checkpoints: s.checkpoints(r), Progress: reviewProgress{s.board, r}, Ledger: openSpending(s.checkpoints(r)),
	})
}

// withoutReport ends a verification for which no report is sent: the phase says
// why in the table's words, and the lease is left to run out. why is for the log.
func (s *Supervisor) withoutReport(r *run, code protocol.Code, why string) {
	s.measure(r, string(code), "")
	if stopped(r.lease.ctx) {
		r.log.Info("the run stays in the journal for the next start")
		return
	}
	sentence := protocol.Lookup(code).Sentence
	r.log.Warn("no report is sent: the lease runs out", "failure", string(code), "why", oneLine(why, protocol.MaxSummary))
	s.note("A verification ended without a report: " + sentence)
	s.board.showReview(protocol.AssignmentID(r.key.ID), protocol.VerificationUnfinished, protocol.VerificationFailed, sentence)
	if err := s.parts.Journal.Abandon(context.WithoutCancel(r.lease.ctx), r.key, string(code)); err != nil {
		r.log.Error("the end of the run could not be stored", "error", err)
	}
	s.leases.remove(r.key)
}

var errVerdict = errors.New("the report holds another verdict than the verifier's")

// canonicalReport cleans, redacts and cuts every text of a report and returns
// its canonical text, which keeps every rule of protocol section 7: what does not
// is never signed, whoever made it (attack case I14).
func (s *Supervisor) canonicalReport(outcome jobs.VerificationOutcome, v protocol.Verification) ([]byte, error) {
	members, isObject := s.fit(canonjson.Clean(map[string]any(outcome.Report))).(map[string]any)
	if !isObject {
		return nil, errors.New("report is no object")
	}
	cutMembers(members, reportLimits)
	for name, limits := range reportLists {
		items, _ := members[name].([]any)
		for _, item := range items {
			if one, isObject := item.(map[string]any); isObject {
				cutMembers(one, limits)
			}
		}
	}
	body, err := canonicalBody(members)
	if err != nil {
		return nil, err
	}
	said, err := protocol.CheckReport(body, v)
	if err == nil && said != outcome.Verdict {
		err = errVerdict
	}
	return body, err
}

// showVerdict tells the control plane that a report was taken.
func (s *Supervisor) showVerdict(key runKey, e sealed) {
	var said struct {
		Verdict protocol.Verdict `json:"verdict"`
	}
	_ = json.Unmarshal(e.body, &said) // our own text
	s.board.showReview(protocol.AssignmentID(key.ID), said.Verdict.Status(), protocol.VerificationCompleted, "The verdict was accepted")
}
