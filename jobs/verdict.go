package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider"
)

// finding is one of ours or of the model's.
type finding = coding.Finding

// judged is a tested commit with the model's judgement, or with why none was
// asked for.
type judged struct {
	ran
	judgement coding.Judgement
	decided   string // by the tests or the rules alone; "" after a judgement
}

// note adds a finding of ours, once.
func (v *verification) note(severity, title, detail string) {
	if !slices.ContainsFunc(v.noted, func(f finding) bool { return f.Title == title && f.Detail == detail }) {
		v.noted = append(v.noted, finding{Severity: severity, Title: title, Detail: detail})
	}
}

// evaluate asks the model, unless the verdict is certain without it: nothing
// that a model says makes up for tests that fail.
func (v *verification) evaluate(ctx context.Context, r ran) (judged, error) {
	v.noteRules(r.commit.claim)
	v.noteSettings(r.commit.claim)
	v.noteRuns(r)
	if why := v.refusal(r); why != "" {
		return judged{ran: r, decided: why}, nil
	}
	v.review(protocol.VerificationEvaluating, "Judging the acceptance criteria")
	judgement, err := v.judge(ctx, r)
	if judgement.Partial {
		v.note(protocol.SeverityMedium, "The reviewing model saw only a part of the change", "The change is longer than what the model can read at once.")
	}
	return judged{ran: r, judgement: judgement}, err
}

// noteRules turns broken path rules into findings.
func (v *verification) noteRules(c claim) {
	for _, found := range v.violations(c) {
		name := fmt.Sprintf("%q", found.Path)
		switch found.Kind {
		case policies.ViolationForbidden, policies.ViolationOutsideAllowed:
			v.note(protocol.SeverityHigh, "The change touches a path that the job does not allow", name)
		case policies.ViolationProtected:
			v.note(protocol.SeverityLow, "The change touches a file that controls tools", name)
		}
	}
}

// noteSettings tells the model, and whoever reads the report, to look at what
// the run with the base versions of tests can't undo.
func (v *verification) noteSettings(c claim) {
	for _, p := range c.changed {
		if isTestSetting(p.Path) {
			v.note(protocol.SeverityMedium, "The change touches a file that may say how tests are run", fmt.Sprintf("%q", p.Path))
		}
	}
}

func (v *verification) noteRuns(r ran) {
	if r.first.empty {
		v.note(protocol.SeverityMedium, "The funded command ran no tests", "Its runner says so.")
	}
	if r.first.cut {
		v.note(protocol.SeverityHigh, "The tests ended before their runner told a result",
			"The exit status is 0, but what ran ended the runner: nothing says that a test passed.")
	}
	if r.settings != nil && !r.settings.sound() {
		v.note(protocol.SeverityMedium, "The tests fail with the base versions of the files that say how they are run",
			"The change may need its versions for other reasons, or may keep tests from being run.")
	}
	if r.old != nil && !r.old.sound() {
		v.note(protocol.SeverityHigh, "The change fails the tests that it replaced",
			"With the base versions of the test files that the change touches, the validation commands fail.")
	}
}

// refusal tells why the commit can't be approved, whatever a model says.
func (v *verification) refusal(r ran) string {
	if !r.first.passed() {
		return fmt.Sprintf("Not judged: the validation commands fail on this commit with exit status %d.", r.first.code)
	}
	for _, f := range v.noted {
		if grave(f) {
			return "Not judged: " + lowerFirst(f.Title) + "."
		}
	}
	return ""
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func grave(f finding) bool {
	return f.Severity == protocol.SeverityHigh || f.Severity == protocol.SeverityCritical
}

// judgeTries bounds how often unusable judgements are asked for anew: each has
// cost three answers.
const judgeTries = 2

// judge has patience with everything that time, the owner or another answer may
// cure.
func (v *verification) judge(ctx context.Context, r ran) (coding.Judgement, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, r.ready.ends, errPatienceOver)
	defer cancel()
	brief, tries := v.judgeBrief(r), 0
	passing := func(err error) bool {
		if kind := coding.KindOf(err); kind == coding.OutputInvalid || kind == coding.Empty {
			tries++
			return tries < judgeTries
		}
		return provider.KindOf(err) != "" && provider.KindOf(err) != provider.ContextOverflow
	}
	var judgement coding.Judgement
	err := patience(ctx, v.log, r.ready.ends, passing, func() (err error) {
		judgement, err = v.cfg.Single.Judge(ctx, brief, v.run.Ledger)
		return err
	})
	if err != nil && errors.Is(context.Cause(ctx), errPatienceOver) && codeOf(err) == protocol.CodeInternalError {
		err = fail(protocol.CodeTimeBudgetExhausted, "judging", err)
	}
	if err != nil {
		return judgement, fmt.Errorf("asking for the judgement: %w", err)
	}
	return judgement, nil
}

// judgeBrief shows the model the task, the change and the tests' output.
func (v *verification) judgeBrief(r ran) coding.JudgeBrief {
	var patch strings.Builder
	brief := coding.JudgeBrief{
		Title: v.task.Work.Title, Description: v.task.Work.Description,
		Requirements: v.task.Work.TechnicalRequirements, Criteria: v.task.Work.AcceptanceCriteria,
		Notes: v.notes(r), Output: r.first.output, Transcript: v.files.transcript,
	}
	for _, f := range r.commit.files {
		patch.Write(patchOf(f.Path, f.exec, f.before, f.after))
		if f.after.exists && !f.after.odd {
			brief.Files = append(brief.Files, protocol.File{Path: f.Path, Content: string(f.after.text)})
		}
	}
	brief.Patch = patch.String()
	return brief
}

func (v *verification) notes(r ran) []string {
	notes := []string{fmt.Sprintf("The validation commands passed on the commit; %d paths differ from the merge base.", len(r.commit.claim.changed))}
	if r.old != nil {
		notes = append(notes, "They pass as well with the base versions of the test files that the change touches.")
	}
	if r.settings != nil && r.settings.sound() {
		notes = append(notes, "They pass as well with the base versions of the changed files that may say how tests are run.")
	}
	for _, f := range v.noted {
		if line := f.Title + "."; !slices.Contains(notes, line) {
			notes = append(notes, line)
		}
	}
	return notes
}

// verdict is never better than the tests allow.
func verdict(j judged, findings []finding) protocol.Verdict {
	passed := j.decided == "" && j.first.sound() && (j.old == nil || j.old.sound())
	for _, c := range j.judgement.Criteria {
		passed = passed && c.Passed
	}
	if !passed || slices.ContainsFunc(findings, grave) {
		return protocol.VerdictRejected
	}
	return protocol.VerdictApproved
}

// conclude assembles the report of a verification that was carried through.
func (v *verification) conclude(j judged) VerificationOutcome {
	v.leave()
	findings := gravestFirst(slices.Concat(v.noted, j.judgement.Findings))
	said := verdict(j, findings)
	criteria := j.judgement.Criteria
	if asked := len(v.task.Work.AcceptanceCriteria); len(criteria) > asked {
		criteria = criteria[:asked] // of a task without any the whole was asked
	}
	if j.decided != "" {
		criteria = v.noneMet(j.decided)
	}
	report := v.report(said, findings, criteria)
	report[protocol.KeyIndependentReturnCode] = j.first.code
	report[protocol.KeyIndependentOutput] = v.text(outputs(j.ran), protocol.MaxOutput)
	report[protocol.KeySummary] = v.text(v.summary(j), protocol.MaxReportSummary)
	return VerificationOutcome{Report: report, Verdict: said}
}

// gravestFirst keeps what a report holds, the gravest in any case.
func gravestFirst(findings []finding) []finding {
	slices.SortStableFunc(findings, func(a, b finding) int {
		return slices.Index(coding.Severities, a.Severity) - slices.Index(coding.Severities, b.Severity)
	})
	return findings[:min(len(findings), protocol.MaxSecurityFindings)]
}

func (v *verification) noneMet(why string) []coding.Criterion {
	out := make([]coding.Criterion, len(v.task.Work.AcceptanceCriteria))
	for i := range out {
		out[i].Evidence = why
	}
	return out
}

// outputs shows both runs when the second failed: it is the reason then.
func outputs(r ran) string {
	if r.old == nil || r.old.sound() {
		return r.first.output
	}
	return r.first.output + "\n[with the base versions of the changed test files: exit status " +
		fmt.Sprint(r.old.code) + "]\n" + r.old.output
}

func (v *verification) summary(j judged) string {
	said := fmt.Sprintf("Commit %s (tree %s) was fetched and its validation commands were run in a fresh sandbox without a network: exit status %d.",
		j.commit.claim.head, j.commit.claim.tree, j.first.code)
	if j.old != nil {
		said += fmt.Sprintf(" With the base versions of the test files that it touches: exit status %d.", j.old.code)
	}
	if j.decided != "" {
		return said + " " + j.decided
	}
	return said + " The reviewing model says: " + j.judgement.Summary
}

// report states what every report has.
func (v *verification) report(said protocol.Verdict, findings []finding, criteria []coding.Criterion) protocol.Report {
	met, listed := []any{}, []any{}
	for _, c := range criteria {
		met = append(met, map[string]any{
			protocol.KeyPassed: c.Passed, protocol.KeyEvidence: v.text(c.Evidence, protocol.MaxCriterionEvidence),
		})
	}
	for _, f := range findings {
		listed = append(listed, map[string]any{
			protocol.KeySeverity: f.Severity, protocol.KeyFindingTitle: v.text(f.Title, protocol.MaxFindingTitle),
			protocol.KeyFindingDetail: v.text(f.Detail, protocol.MaxFindingDetail),
		})
	}
	submission := v.task.Submission
	commands := v.facts.plan.Commands
	if len(commands) == 0 {
		commands = v.task.Policy.RequiredCommands
	}
	return protocol.Report{
		protocol.KeyVerdict: string(said), protocol.KeyCommitSHA: submission.CommitSHA,
		protocol.KeyPullRequestNumber: submission.PullRequestNumber, protocol.KeyChangedFiles: submission.ChangedFiles,
		protocol.KeyIndependentCommand: v.text(strings.Join(commands, " ; "), protocol.MaxReportCommand),
		protocol.KeySetupCommand:       "", protocol.KeySetupOutput: "",
		protocol.KeyAcceptanceCriteria: met, protocol.KeySecurityFindings: listed,
		protocol.KeyProvider: v.cfg.Provider, protocol.KeyModel: v.cfg.Model, protocol.KeyRuntimeVersion: v.cfg.Version,
		protocol.KeyStartedAt: v.facts.started.UTC().Format(time.RFC3339), protocol.KeyCompletedAt: time.Now().UTC().Format(time.RFC3339),
	}
}

// text redacts and cuts what comes from strangers or a model.
func (v *verification) text(s string, most int) string {
	return protocol.CutText(v.cfg.Secrets.String(s), most)
}

// inconclusive reports that no host can test this commit, with the table's
// sentence for each criterion.
func (v *verification) inconclusive(code protocol.Code, err error) VerificationOutcome {
	sentence := protocol.Lookup(code).Sentence
	report := v.report(protocol.VerdictInconclusive, gravestFirst(v.noted), v.noneMet(sentence))
	report[protocol.KeyIndependentReturnCode] = protocol.CodeNotRun
	report[protocol.KeyIndependentOutput] = ""
	report[protocol.KeySummary] = v.text(sentence+" "+v.withoutPlaces(err.Error()), protocol.MaxReportSummary)
	return VerificationOutcome{Report: report, Verdict: protocol.VerdictInconclusive}
}
