package supervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

type verifierFunc func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome

func (f verifierFunc) Execute(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
	return f(ctx, run)
}

// inReview is inLab for a verifier that is paired.
func inReview(t *testing.T, opts controlplanetest.Options, verifier verifierFunc, test func(l *lab)) {
	t.Helper()
	inLab(t, opts, func(l *lab) {
		l.role, l.verifier = protocol.RoleVerifier, verifier
		l.restart()
		id := l.plane.AddAgent(controlplanetest.AgentSpec{Role: "VERIFIER"})
		l.introduce(id)
		l.wait("the verifier is active", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
		l.pass(1100 * time.Millisecond)
		test(l)
	})
}

func submission() controlplanetest.VerificationSpec {
	return controlplanetest.VerificationSpec{
		Owner: "o", Name: "n", CommitSHA: "0123456789abcdef0123456789abcdef01234567", PullRequest: 3,
		ChangedFiles: []string{"b.py", "a.py"}, Criteria: []any{"It works.", map[string]any{"statement": "It is fast."}},
		RequiredCommands: []string{"pytest"},
	}
}

func report(run jobs.VerificationRun, verdict protocol.Verdict) protocol.Report {
	v := run.Verification
	criteria := []map[string]any{}
	for range v.Work.AcceptanceCriteria {
		criteria = append(criteria, map[string]any{"passed": verdict == protocol.VerdictApproved, "evidence": "seen"})
	}
	return protocol.Report{
		"verdict": string(verdict), "summary": "judged", "commit_sha": v.Submission.CommitSHA,
		"pull_request_number": v.Submission.PullRequestNumber, "changed_files": v.Submission.ChangedFiles,
		"independent_test_command": "pytest", "independent_test_return_code": 0, "independent_test_output": "ok",
		"environment_setup_command": "", "environment_setup_output": "",
		"acceptance_criteria": criteria, "security_findings": []map[string]any{},
		"provider": "scripted", "model": "model-1", "runtime_version": "1.2.3",
		"started_at": "2026-11-29T10:00:00Z", "completed_at": "2026-11-29T10:00:01Z",
	}
}

func says(run jobs.VerificationRun, verdict protocol.Verdict) jobs.VerificationOutcome {
	return jobs.VerificationOutcome{Report: report(run, verdict), Verdict: verdict}
}

// approve is a verifier that fetched, tested and is content.
func approve(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
	run.Progress.Phase(protocol.VerificationCheckout, "Checking out")
	if _, err := run.Credentials.Credential(ctx, false); err != nil {
		return jobs.VerificationOutcome{Failure: protocol.CodeCredentialRefused}
	}
	return says(run, protocol.VerdictApproved)
}

func judged(n int) func(controlplanetest.View) bool {
	return func(v controlplanetest.View) bool { return v.Counts.Verdicts >= n }
}

// records are the runs of the journal, newest first.
func (l *lab) records() []supervisor.JobView {
	l.t.Helper()
	runs, err := l.sup.Jobs(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return runs
}

func TestFromDeliveryToAcceptedVerdict(t *testing.T) {
	for _, verdict := range []protocol.Verdict{protocol.VerdictApproved, protocol.VerdictRejected, protocol.VerdictInconclusive} {
		t.Run(string(verdict), func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
				run.Progress.Phase(protocol.VerificationValidation, "Running the tests")
				time.Sleep(20 * time.Second)
				return says(run, verdict)
			}, func(l *lab) {
				id := l.plane.AddVerification(submission())
				view := l.wait("a verdict is taken", judged(1))
				l.pass(20 * time.Second)
				got := view.Verifications[0]
				if got.ID != id || got.Verdict != string(verdict) || got.Leases != 1 {
					t.Errorf("verification %+v", got)
				}
				if len(got.Phases) == 0 || got.Phases[0] != "RUNNING_VALIDATION" {
					t.Errorf("phases %v", got.Phases)
				}
				beat := l.plane.View().Agents[0].LastBeat
				if beat["verification_status"] != strings.ToLower(string(verdict)) || beat["verification_phase"] != "COMPLETED" ||
					beat["verification_assignment_id"] != id || beat["job_assignment_id"] != nil {
					t.Errorf("beat %v", beat)
				}
				if runs := l.records(); len(runs) != 1 || runs[0].Kind != "verification" || runs[0].State != "delivered" || runs[0].Reason != "" {
					t.Errorf("runs %+v", runs)
				}
				if _, err := os.Stat(filepath.Join(l.state, "jobs", id, got.LeaseID, "report.json")); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Attack case G08: each role takes its own tasks only, whatever is delivered.
func TestG08RolesTakeTheirOwnTasksOnly(t *testing.T) {
	t.Run("verifier", func(t *testing.T) {
		inReview(t, controlplanetest.Options{}, func(context.Context, jobs.VerificationRun) jobs.VerificationOutcome {
			t.Error("the verifier saw a job")
			return jobs.VerificationOutcome{Abandoned: "X"}
		}, func(l *lab) {
			l.way = &rewriting{"verification_task", "job_task", l.way}
			l.restart()
			l.plane.AddVerification(submission())
			l.pass(time.Minute)
			l.untouched()
		})
	})
	t.Run("worker", func(t *testing.T) {
		inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
			l.worker = func(context.Context, jobs.Run) jobs.Outcome {
				t.Error("the worker saw a verification")
				return jobs.Outcome{Abandoned: "X"}
			}
			l.way = &rewriting{"job_task", "verification_task", l.way}
			l.restart()
			l.pair()
			l.plane.AddJob(job())
			l.pass(time.Minute)
			l.untouched()
		})
	})
}

// untouched fails if anything was accepted, fetched or sent.
func (l *lab) untouched() {
	l.t.Helper()
	view := l.plane.View()
	for _, e := range []controlplanetest.Endpoint{
		controlplanetest.JobCredential, controlplanetest.JobResult,
		controlplanetest.VerificationCredential, controlplanetest.VerificationResult,
	} {
		if view.Calls[e] != 0 {
			l.t.Errorf("%d calls of %s", view.Calls[e], e)
		}
	}
	if runs := l.records(); len(runs) != 0 {
		l.t.Errorf("runs %+v", runs)
	}
}

// Attack case I14: a report that is better than its tests, or about something
// else, is never signed; no report is sent.
func TestI14ReportsThatBreakRulesAreNotSigned(t *testing.T) {
	for name, spoil := range map[string]func(o *jobs.VerificationOutcome){
		"failing tests":   func(o *jobs.VerificationOutcome) { o.Report["independent_test_return_code"] = 1 },
		"other commit":    func(o *jobs.VerificationOutcome) { o.Report["commit_sha"] = strings.Repeat("a", 40) },
		"other files":     func(o *jobs.VerificationOutcome) { o.Report["changed_files"] = []string{"a.py", "b.py"} },
		"other verdict":   func(o *jobs.VerificationOutcome) { o.Verdict = protocol.VerdictRejected },
		"failed criteria": func(o *jobs.VerificationOutcome) { o.Report["acceptance_criteria"] = []any{} },
		"grave finding": func(o *jobs.VerificationOutcome) {
			o.Report["security_findings"] = []any{map[string]any{"severity": "CRITICAL", "title": "t", "detail": "d"}}
		},
		"a float": func(o *jobs.VerificationOutcome) { o.Report["x"] = 1.5 },
		"empty":   func(o *jobs.VerificationOutcome) { o.Report = protocol.Report{} },
		"nothing": func(o *jobs.VerificationOutcome) { o.Report = nil },
	} {
		t.Run(name, func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
				outcome := approve(ctx, run)
				spoil(&outcome)
				return outcome
			}, func(l *lab) {
				l.plane.AddVerification(submission())
				l.pass(5 * time.Minute)
				l.noReport(protocol.CodeInternalError)
			})
		})
	}
}

// noReport expects one run that ended without a report, for a code.
func (l *lab) noReport(code protocol.Code) {
	l.t.Helper()
	view := l.plane.View()
	if n := view.Calls[controlplanetest.VerificationResult]; n != 0 {
		l.t.Errorf("%d reports were sent", n)
	}
	got := view.Verifications[0]
	if got.LastStatus != "failed" || got.LastSaid != protocol.Lookup(code).Sentence || len(got.Phases) == 0 || got.Phases[len(got.Phases)-1] != "FAILED" {
		l.t.Errorf("progress %+v", got)
	}
	if runs := l.records(); len(runs) != 1 || runs[0].State != "abandoned" || runs[0].Reason != string(code) || runs[0].Signature != "" {
		l.t.Errorf("runs %+v", runs)
	}
}

// Attack case I14: a credential that can write is refused before anything is
// fetched with it; the lease runs out, and another one follows.
func TestI14WriteCredentialsAreRefused(t *testing.T) {
	const token = "ghs_0123456789012345678901234567890123456789"
	head := `{"token":"` + token + `","expires_at":"2099-01-01T00:00:00Z","repository":"o/n","clone_url":"x"`
	for name, body := range map[string]string{
		"write access":        head + `,"write_access":true,"permissions":{"contents":"read"}}`,
		"contents":            head + `,"write_access":false,"permissions":{"contents":"write"}}`,
		"pull requests":       head + `,"write_access":false,"permissions":{"contents":"read","pull_requests":"write"}}`,
		"administration":      head + `,"write_access":false,"permissions":{"administration":"admin"}}`,
		"unknown level":       head + `,"permissions":{"contents":"READ"}}`,
		"says nothing":        head + `}`,
		"another repository":  strings.Replace(head, "o/n", "o/other", 1) + `,"write_access":false}`,
		"really from a plane": "",
	} {
		t.Run(name, func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
				got, err := run.Credentials.Credential(ctx, false)
				// The test ends while the second lease's run begins.
				if ctx.Err() == nil && (!errors.Is(err, jobs.ErrCredentialRefused) || got != "") {
					t.Errorf("a token, or error %v", err)
				}
				return jobs.VerificationOutcome{Failure: protocol.CodeCredentialRefused}
			}, func(l *lab) {
				spec := submission()
				spec.WriteCredential = body == ""
				if body != "" {
					l.plane.Fault(controlplanetest.VerificationCredential, 0, controlplanetest.Fault{
						Status: 200, ContentType: "application/json", Body: body,
					})
				}
				l.plane.AddVerification(spec)
				l.pass(10 * time.Minute)
				l.noReport(protocol.CodeCredentialRefused)
				if n := l.plane.View().Calls[controlplanetest.VerificationCredential]; n != 1 {
					t.Errorf("%d questions", n)
				}
				l.wait("it is given out again", func(v controlplanetest.View) bool { return v.Counts.Reviews == 2 })
			})
		})
	}
}

// Attack cases G04, G07 and G13: an invalid verification reaches no verifier, and
// nothing is sent for it.
func TestInvalidVerificationsGetNoReport(t *testing.T) {
	for name, c := range map[string]struct {
		change func(task map[string]any)
		code   protocol.Code // "": not even a run
	}{
		"submit url": {func(task map[string]any) { task["submit_url"] = "https://evil.example/x/" }, protocol.CodeTaskInvalid},
		"clone url": {func(task map[string]any) {
			task["repository"].(map[string]any)["clone_url"] = "https://evil.example/o/n.git"
		}, protocol.CodeTaskInvalid},
		"commit": {func(task map[string]any) { task["submission"].(map[string]any)["commit_sha"] = "HEAD" }, protocol.CodeTaskInvalid},
		"short lease": {func(task map[string]any) {
			task["lease_expires_at"] = time.Now().Add(100 * time.Second).UTC().Format(time.RFC3339)
		}, protocol.CodeLeaseTooShort},
		"lease over": {func(task map[string]any) { task["lease_expires_at"] = "1999-01-01T00:00:00Z" }, ""},
		"id":         {func(task map[string]any) { task["id"] = "../../x" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, func(context.Context, jobs.VerificationRun) jobs.VerificationOutcome {
				t.Error("the verifier saw the task")
				return jobs.VerificationOutcome{Abandoned: "X"}
			}, func(l *lab) {
				spec := submission()
				spec.Change = c.change
				l.plane.AddVerification(spec)
				l.pass(time.Minute)
				if c.code == "" {
					l.untouched()
					return
				}
				l.noReport(c.code)
				l.restart()
				l.pass(time.Minute)
				if runs := l.records(); len(runs) != 1 {
					t.Errorf("after a restart: %+v", runs)
				}
			})
		})
	}
}

// Attack case G08: a newer lease of the same verification fences the older run.
func TestG08NewerVerificationLeaseFencesTheOlder(t *testing.T) {
	var running, most atomic.Int32
	var leases []string
	inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		leases = append(leases, string(run.Verification.ID))
		if len(leases) == 1 {
			<-ctx.Done()
			time.Sleep(time.Minute) // it takes its time to end
		}
		return says(run, protocol.VerdictApproved)
	}, func(l *lab) {
		id := l.plane.AddVerification(submission())
		l.pass(20 * time.Second)
		l.plane.ExpireVerification(id)
		view := l.wait("a verdict is taken", judged(1))
		if len(leases) != 2 || leases[1] != view.Verifications[0].LeaseID || most.Load() != 1 {
			t.Errorf("leases %v, %d at once", leases, most.Load())
		}
		if view.Calls[controlplanetest.VerificationResult] != 1 {
			t.Errorf("%d reports were sent", view.Calls[controlplanetest.VerificationResult])
		}
		if runs := l.records(); len(runs) != 2 || runs[1].Reason != "LEASE_LOST" || len(runs[1].Hash) == 0 {
			t.Errorf("runs %+v", runs)
		}
	})
}

// Not ready and a verification all the same: it waits, and is left to its lease
// when too little of that is left.
func TestUnreadyHostLetsAVerificationWait(t *testing.T) {
	why := newSentence("")
	inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
		<-ctx.Done()
		return jobs.VerificationOutcome{Abandoned: string(protocol.CodeCancelled)}
	}, func(l *lab) {
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.restart()
		l.plane.AddVerification(submission())
		l.pass(20 * time.Second)
		why.set("The disk is full.")
		l.verifier = approve
		l.restart() // the run is in the journal
		l.pass(10 * time.Minute)
		if s := l.sup.Status(); s.Running != nil || s.Ready != "disk" {
			t.Errorf("status %+v", s)
		}
		l.pass(18 * time.Minute)
		if runs := l.records(); runs[len(runs)-1].Reason != "HOST_DISK_FLOOR" {
			t.Errorf("runs %+v", runs)
		}
		why.set("")
		l.wait("it comes again and is judged", judged(1))
	})
}

// A host whose role was changed leaves what it began in the other role, a push
// that was written down as intended, too.
func TestRunsOfTheOtherRoleAreLeft(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			if err := run.Checkpoints.Save(ctx, "publish", []byte("{}")); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return jobs.Outcome{Abandoned: string(protocol.CodeCancelled)}
		}
		l.restart()
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		l.role, l.verifier = protocol.RoleVerifier, approve
		l.worker = func(context.Context, jobs.Run) jobs.Outcome {
			t.Error("a verifier did a job")
			return jobs.Outcome{Abandoned: "X"}
		}
		l.restart()
		l.pass(time.Minute)
		if s := l.sup.Status(); s.Running != nil || s.Ready != "role" {
			t.Errorf("status %+v", s)
		}
		l.role, l.worker = protocol.RoleWorker, success
		l.restart()
		l.wait("the job is done in its own role", accepted(1))
	})
}

// The whole way with the real signer: link, claim, beats, a verdict, and a start
// that finds journal and signing log of one mind.
func TestFromLinkToAcceptedVerdict(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{})
	h.role, h.verifier = protocol.RoleVerifier, approve
	h.boot()
	id := h.plane.AddAgent(controlplanetest.AgentSpec{Role: "VERIFIER"})
	if _, err := h.plane.PairWith(h.context(), h.link(), controlplanetest.PairOptions{AgentID: id}); err != nil {
		t.Fatal(err)
	}
	h.plane.AddVerification(submission())
	h.wait("a verdict is taken", judged(1))
	h.until("the outbox is empty", func(s supervisor.Status) bool { return len(s.Outbox) == 0 && s.Running == nil })
	h.reboot()
	h.plane.AddVerification(submission())
	if view := h.wait("another verdict is taken", judged(2)); view.Verifications[1].Verdict != "APPROVED" {
		t.Errorf("verifications %+v", view.Verifications)
	}
}
