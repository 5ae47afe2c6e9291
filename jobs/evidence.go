package jobs

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// facts is what is known of a run so far, for the evidence of its end.
type facts struct {
	started   time.Time
	rules     *policies.Effective
	plan      policies.Plan
	image     images.Digest
	base      gitops.ObjectID
	commit    gitops.ObjectID
	tree      gitops.ObjectID
	cleanRoom bool
	baseline  *testRun
	after     *testRun
	summary   string
	repairs   int
	rounds    int
	formats   int // answers of the model that had to be asked for again
	ignored   int // new files that .gitignore leaves out
	limits    []sandbox.Limit
}

func (f *facts) noteRound(result coding.Result) {
	f.rounds++
	f.formats += result.FormatRepairs
	f.limits = append(f.limits, result.Limits...)
	if result.Summary != "" {
		f.summary = result.Summary
	}
}

func (f *facts) policySHA256() string {
	if f.rules == nil {
		return ""
	}
	digest, err := f.rules.Digest(string(f.image))
	if err != nil {
		return ""
	}
	return digest
}

// succeeded closes the log and assembles the evidence of success.
func (j *job) succeeded() Outcome {
	j.enter(protocol.PhaseSubmitting, "Submitting the result")
	evidence := j.complete(maps.Clone(j.draft))
	evidence[protocol.KeyOutcome] = protocol.OutcomeSucceeded
	return Outcome{Evidence: evidence}
}

// failed keeps the first failure. What another try could cure says so by its
// code alone; why it failed stands in the summary, which nobody searches.
func (j *job) failed(ctx context.Context, err error) Outcome {
	if reason := abandonment(ctx, err, j.run.Deadline); reason != "" {
		j.files.say("abandoned: %s: %q", reason, err.Error())
		j.log.Warn("job abandoned", "reason", reason, "error", err)
		return Outcome{Abandoned: reason}
	}
	code := codeOf(err)
	j.log.Warn("job failed", "code", code, "error", err)
	j.files.say("failed: %s: %q", code, err.Error())
	j.run.Progress.Phase(protocol.PhaseFailed, protocol.Lookup(code).Sentence)
	evidence := maps.Clone(j.draft)
	if evidence == nil {
		evidence = j.facts.evidence(j)
	}
	evidence = j.complete(evidence)
	evidence[protocol.KeySummary] = protocol.CutText(j.cfg.Secrets.String(j.withoutPlaces(err.Error())), protocol.MaxSummary)
	evidence.Fail(code)
	return Outcome{Evidence: evidence, Failure: code}
}

// withoutPlaces takes this host's directories out of a text that others read.
func (j *job) withoutPlaces(text string) string {
	return strings.ReplaceAll(text, j.run.Dir, "(the run's directory)")
}

// complete adds what is known only at the end, the log's hash last.
func (j *job) complete(e protocol.Evidence) protocol.Evidence {
	j.leave()
	j.noting.Wait()
	input, output := j.run.Ledger.Spent()
	e[protocol.KeyUsage] = map[string]any{"input_tokens": input, "output_tokens": output}
	e[protocol.KeyCompletedAt] = time.Now().UTC().Format(time.RFC3339)
	e[protocol.KeyLogSHA256] = j.files.closeLog()
	j.tell(j.log)
	return e
}

// evidence states the facts by the wire's names, as far as they are known.
func (f *facts) evidence(j *job) protocol.Evidence {
	work := j.run.Job
	e := protocol.Evidence{
		protocol.KeyAssignmentID: string(work.Assignment), protocol.KeyLeaseID: string(work.Lease.ID), protocol.KeyJobID: work.JobID,
		protocol.KeyBranch: work.Delivery.Branch, protocol.KeyBaseBranch: work.Repository.TargetBranch,
		protocol.KeyProvider: j.cfg.Provider, protocol.KeyModel: j.cfg.Model, protocol.KeyRuntimeVersion: j.cfg.Version,
		protocol.KeyStartedAt:    f.started.UTC().Format(time.RFC3339),
		protocol.KeySummary:      protocol.CutText(j.cfg.Secrets.String(f.summary), protocol.MaxSummary),
		protocol.KeySetupCommand: "", protocol.KeySetupOutput: "",
		protocol.KeyRepairAttempts: f.repairs, protocol.KeyModelOutputRepairs: f.formats,
		protocol.KeyLimitsHit: f.limitsHit(),
		protocol.KeySandbox:   f.sandbox(j.cfg),
	}
	f.addPlan(e)
	f.addRuns(j, e)
	f.addIDs(e)
	return e
}

func (f *facts) addIDs(e protocol.Evidence) {
	if f.base != "" {
		e[protocol.KeyBaseCommitSHA] = string(f.base)
	}
	if f.commit != "" {
		e[protocol.KeyCommitSHA] = string(f.commit)
	}
	if f.cleanRoom {
		e[protocol.KeyCleanRoom] = true
		e[protocol.KeyTreeSHA] = string(f.tree)
	}
	if f.rules != nil {
		e[protocol.KeyPolicy] = f.rules.Policy.Name
		e[protocol.KeyPolicySHA256] = f.policySHA256()
	}
}

func (f *facts) addPlan(e protocol.Evidence) {
	commands := make([]string, 0, len(f.plan.Commands))
	for _, command := range f.plan.Commands {
		commands = append(commands, protocol.CutText(command, protocol.MaxCommand))
	}
	e[protocol.KeyValidationToolchain] = string(f.plan.Toolchain)
	e[protocol.KeyValidationSource] = f.plan.Source
	e[protocol.KeyValidationCommands] = commands
	e[protocol.KeyTestCommand] = protocol.CutText(strings.Join(f.plan.Commands, " ; "), protocol.MaxCommand)
}

func (f *facts) addRuns(j *job, e protocol.Evidence) {
	if f.baseline != nil {
		e[protocol.KeyBaselineCommand] = e[protocol.KeyTestCommand]
		e[protocol.KeyBaselineReturnCode] = f.baseline.code
		e[protocol.KeyBaselineOutput] = protocol.CutText(j.cfg.Secrets.String(f.baseline.output), protocol.MaxOutput)
	}
	if f.after != nil {
		e[protocol.KeyTestReturnCode] = f.after.code
		e[protocol.KeyTestOutput] = protocol.CutText(j.cfg.Secrets.String(f.after.output), protocol.MaxOutput)
	}
}

// limitsHit lists the limits that any command of strangers ran into.
func (f *facts) limitsHit() []string {
	hit := []string{}
	add := func(limits []sandbox.Limit) {
		for _, limit := range limits {
			hit = append(hit, string(limit))
		}
	}
	add(f.limits)
	for _, run := range []*testRun{f.baseline, f.after} {
		if run != nil {
			add(run.limits)
		}
	}
	slices.Sort(hit)
	return slices.Compact(hit)
}

// sandbox says what the walls were. Versions of host software stay in the
// local record.
func (f *facts) sandbox(cfg Config) map[string]any {
	s := map[string]any{protocol.KeyBackend: cfg.Report.Backend, protocol.KeyIsolation: string(cfg.Report.Isolation)}
	if f.image != "" {
		s[protocol.KeyImageDigest] = string(f.image)
	}
	// In gVisor no filter of ours binds a command: its kernel does.
	if digest, err := policies.SeccompDigest(policies.SeccompJob); err == nil && cfg.Report.Isolation != sandbox.IsolationGVisor {
		s[protocol.KeySeccompDigest] = digest
	}
	if cfg.Proof != nil {
		if digest := cfg.Proof(); digest != "" {
			s[protocol.KeyProofSHA256] = digest
		}
	}
	if f.rules != nil {
		s[protocol.KeyLimits] = f.rules.Policy.Limits.Map()
	}
	return s
}

// listedChanges are both names of everything the host lists.
func listedChanges(files []pulls.File) []policies.Change {
	var changes []policies.Change
	for _, file := range files {
		kind := policies.ChangeModify
		if file.Status == "removed" {
			kind = policies.ChangeDelete
		}
		changes = append(changes, policies.Change{Path: file.Filename, Kind: kind})
		if file.Previous != "" {
			changes = append(changes, policies.Change{Path: file.Previous, Kind: policies.ChangeDelete})
		}
	}
	return changes
}
