package protocol

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Verdict is what a verifier concludes about a submission.
type Verdict string

// The three verdicts (protocol section 7). INCONCLUSIVE is final, too: nobody
// reviews again and the worker goes unpaid.
const (
	VerdictApproved     Verdict = "APPROVED"
	VerdictRejected     Verdict = "REJECTED"
	VerdictInconclusive Verdict = "INCONCLUSIVE"
)

// Status is the verdict as a beat's verification_status reports it.
func (v Verdict) Status() VerificationStatus {
	return VerificationStatus(strings.ToLower(string(v)))
}

func (v Verdict) known() bool {
	return v == VerdictApproved || v == VerdictRejected || v == VerdictInconclusive
}

// Report is what a verifier states, by the names of the wire. Its values keep
// Evidence's rule.
type Report map[string]any

// The names in a report that the control plane reads (protocol section 7).
// commit_sha, pull_request_number, changed_files, provider, model,
// runtime_version, summary, the times and the set-up are named as in Evidence.
const (
	KeyVerdict               = "verdict"
	KeyIndependentCommand    = "independent_test_command"
	KeyIndependentReturnCode = "independent_test_return_code"
	KeyIndependentOutput     = "independent_test_output"
	// KeyAcceptanceCriteria is a list of objects of KeyPassed and KeyEvidence,
	// one for each of the task's, in its order.
	KeyAcceptanceCriteria = "acceptance_criteria"
	KeyPassed             = "passed"
	KeyEvidence           = "evidence"
	// KeySecurityFindings is a list of objects of the three keys below it.
	KeySecurityFindings = "security_findings"
	KeySeverity         = "severity"
	KeyFindingTitle     = "title"
	KeyFindingDetail    = "detail"
)

// The severities of a finding. A HIGH or CRITICAL one forbids APPROVED.
const (
	SeverityInfo     = "INFO"
	SeverityLow      = "LOW"
	SeverityMedium   = "MEDIUM"
	SeverityHigh     = "HIGH"
	SeverityCritical = "CRITICAL"
)

var severities = []string{SeverityInfo, SeverityLow, SeverityMedium, SeverityHigh, SeverityCritical}

// CodeNotRun is the return code of a report whose tests can never run.
const CodeNotRun = 125

// ReportError says which member of a report breaks which rule. Such a report is
// never signed.
type ReportError struct{ Field, Why string }

// Error returns field and reason in one line.
func (e *ReportError) Error() string { return fmt.Sprintf("report field %s: %s", e.Field, e.Why) }

// reportShape is a report with the types that the control plane reads. The
// pointers tell what is absent.
type reportShape struct {
	Verdict     Verdict  `json:"verdict"`
	Summary     string   `json:"summary"`
	CommitSHA   string   `json:"commit_sha"`
	PullRequest int64    `json:"pull_request_number"`
	Files       []string `json:"changed_files"`
	Command     *string  `json:"independent_test_command"`
	Code        *int64   `json:"independent_test_return_code"`
	Output      *string  `json:"independent_test_output"`
	Setup       *string  `json:"environment_setup_command"`
	SetupOutput *string  `json:"environment_setup_output"`
	Criteria    []struct {
		Passed   *bool   `json:"passed"`
		Evidence *string `json:"evidence"`
	} `json:"acceptance_criteria"`
	Findings []struct {
		Severity string `json:"severity"`
		Title    string `json:"title"`
		Detail   string `json:"detail"`
	} `json:"security_findings"`
	Provider    string `json:"provider"`
	Model       string `json:"model"`
	Version     string `json:"runtime_version"`
	StartedAt   string `json:"started_at"`
	CompletedAt string `json:"completed_at"`
}

// CheckReport reads the text of a report that is about to be signed for v, and
// fails with a *ReportError for the first rule of protocol section 7 that it
// breaks. It stands between whoever made the report and the signature: no
// verdict is better than the tests allow (attack case I14).
func CheckReport(body []byte, v Verification) (Verdict, error) {
	var r reportShape
	if err := Decode(body, &r, MaxBodyBytes); err != nil {
		return "", &ReportError{Field: "report", Why: err.Error()}
	}
	var c reportChecks
	c.that(r.Verdict.known(), KeyVerdict, "not one of the three")
	c.that(r.CommitSHA == v.Submission.CommitSHA, KeyCommitSHA, "not the submission's")
	c.that(r.PullRequest == v.Submission.PullRequestNumber, KeyPullRequestNumber, "not the submission's")
	c.that(slices.Equal(r.Files, v.Submission.ChangedFiles), KeyChangedFiles, "not exactly the submission's")
	c.texts(&r)
	c.criteria(&r, len(v.Work.AcceptanceCriteria))
	c.findings(&r)
	c.that(r.Verdict != VerdictApproved || r.Code != nil && *r.Code == 0, KeyVerdict, "approves what did not pass its tests")
	if c.err != nil {
		return "", c.err
	}
	return r.Verdict, nil
}

type reportChecks struct{ err error }

func (c *reportChecks) that(ok bool, field, why string) {
	if !ok && c.err == nil {
		c.err = &ReportError{Field: field, Why: why}
	}
}

// text wants at most so many code points and, if least is 1, at least one.
func (c *reportChecks) text(field, s string, least, most int) {
	c.that(len(s) >= least, field, "missing or empty")
	c.that(utf8.RuneCountInString(s) <= most, field, "too long")
}

func (c *reportChecks) present(field string, s *string, most int) {
	c.that(s != nil, field, "missing")
	if s != nil {
		c.text(field, *s, 0, most)
	}
}

func (c *reportChecks) texts(r *reportShape) {
	c.text(KeySummary, r.Summary, 1, MaxReportSummary)
	c.present(KeyIndependentCommand, r.Command, MaxReportCommand)
	c.that(r.Code != nil, KeyIndependentReturnCode, "missing")
	c.present(KeyIndependentOutput, r.Output, MaxOutput)
	c.present(KeySetupCommand, r.Setup, MaxReportCommand)
	c.present(KeySetupOutput, r.SetupOutput, MaxOutput)
	c.text(KeyProvider, r.Provider, 1, MaxProvider)
	c.text(KeyModel, r.Model, 1, MaxModel)
	c.text(KeyRuntimeVersion, r.Version, 1, MaxRuntimeVersion)
	c.text(KeyStartedAt, r.StartedAt, 1, MaxProgressUpdated)
	c.text(KeyCompletedAt, r.CompletedAt, 1, MaxProgressUpdated)
}

func (c *reportChecks) criteria(r *reportShape, want int) {
	c.that(len(r.Criteria) == want, KeyAcceptanceCriteria, "not one for each of the task's")
	for _, one := range r.Criteria {
		c.that(one.Passed != nil, KeyAcceptanceCriteria, "passed is missing")
		c.present(KeyAcceptanceCriteria, one.Evidence, MaxCriterionEvidence)
		met := one.Passed != nil && *one.Passed
		c.that(r.Verdict != VerdictApproved || met, KeyVerdict, "approves what does not meet a criterion")
	}
}

func (c *reportChecks) findings(r *reportShape) {
	c.that(r.Findings != nil, KeySecurityFindings, "missing")
	c.that(len(r.Findings) <= MaxSecurityFindings, KeySecurityFindings, "too many items")
	for _, one := range r.Findings {
		c.that(slices.Contains(severities, one.Severity), KeySecurityFindings, "severity is not one of the five")
		c.text(KeySecurityFindings, one.Title, 1, MaxFindingTitle)
		c.text(KeySecurityFindings, one.Detail, 0, MaxFindingDetail)
		grave := one.Severity == SeverityHigh || one.Severity == SeverityCritical
		c.that(r.Verdict != VerdictApproved || !grave, KeyVerdict, "approves in spite of a grave finding")
	}
}
