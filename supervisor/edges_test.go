package supervisor_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// Attack case J01 for qualifications: a crash while it is worked on, and one
// between draft and seal, cost no attempt.
func TestJ01QualificationsSurviveCrashes(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		working := make(chan struct{})
		l.qualifier = func(ctx context.Context, _ jobs.QualificationRun) jobs.QualificationOutcome {
			close(working)
			<-ctx.Done()
			return jobs.QualificationOutcome{Abandoned: string(protocol.CodeCancelled)}
		}
		l.restart()
		l.introduce("")
		<-working
		l.qualifier = pass
		l.signer.err = signer.ErrGone
		l.restart()
		l.pass(time.Minute)
		if n := l.plane.View().Calls[controlplanetest.Qualification]; n != 0 {
			t.Fatalf("%d submissions without a signature", n)
		}
		l.qualifier = func(context.Context, jobs.QualificationRun) jobs.QualificationOutcome {
			t.Error("done again after its files were drafted")
			return jobs.QualificationOutcome{Abandoned: "X"}
		}
		l.signer.err = nil
		l.restart()
		view := l.wait("the agent is active", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
		if view.Counts.Qualifications != 1 {
			t.Errorf("%d judged", view.Counts.Qualifications)
		}
	})
}

// A qualification outlives its lease: beats that bring nothing for an hour, then
// the same one again.
func TestQualificationWaitsForItsLeaseToComeBack(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		l.plane.Fault(controlplanetest.Qualification, 0, controlplanetest.Fault{Status: 503, Body: "<html>"})
		id := l.introduce("")
		l.pass(time.Minute)
		l.plane.DeliveryErrors(id, "not now")
		l.pass(time.Hour)
		l.plane.Heal(controlplanetest.Qualification)
		l.pass(time.Minute)
		l.plane.DeliveryErrors(id)
		l.wait("the agent is active", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
	})
}

func TestInvalidQualificationsCostNoAttempt(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		id := l.plane.AddAgent(controlplanetest.AgentSpec{})
		l.plane.AddQualification(id, &controlplanetest.QualificationSpec{
			Title: "t", Instructions: "i", Target: "../x", Files: [][2]string{{"../x", ""}},
		})
		l.introduce(id)
		l.pass(time.Minute)
		view := l.plane.View()
		if view.Calls[controlplanetest.Qualification] != 0 || !strings.Contains(l.sup.Status().Why, "invalid qualification") {
			t.Errorf("calls %v, why %q", view.Calls, l.sup.Status().Why)
		}
	})
}

// Evidence that can't be sealed as it is becomes a failure by name.
func TestUnsealableEvidenceFailsByName(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(e protocol.Evidence)
		code  string
	}{
		"a float": {func(e protocol.Evidence) { e["x"] = 1.5 }, "INTERNAL_ERROR"},
		"too long": {func(e protocol.Evidence) {
			files := make([]string, 900)
			for i := range files {
				files[i] = strings.Repeat("x", 4000)
			}
			e["changed_files"] = files
		}, "CHANGE_TOO_LARGE"},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab) {
				l.worker = func(_ context.Context, run jobs.Run) jobs.Outcome {
					e := evidence(run)
					c.spoil(e)
					return jobs.Outcome{Evidence: e}
				}
				l.restart()
				l.pair()
				l.plane.AddJob(job())
				view := l.wait("a failure is taken", func(v controlplanetest.View) bool { return v.Counts.FailedResults == 1 })
				if code := view.Jobs[0].Evidence["failure_code"]; code != c.code {
					t.Errorf("failure %v, want %s", code, c.code)
				}
			})
		})
	}
}

// Attack case G07: past its lease a run sends nothing; what it found is kept.
func TestG07EvidenceThatCameTooLateIsKept(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			<-ctx.Done()
			return jobs.Outcome{Evidence: evidence(run)}
		}
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		l.pass(40 * time.Minute)
		if n := l.plane.View().Calls[controlplanetest.JobResult]; n != 0 {
			t.Errorf("%d results were sent after the lease", n)
		}
		id := l.plane.View().Jobs[0].AssignmentID
		runs, err := l.sup.Job(context.Background(), id)
		if err != nil || len(runs) != 1 || runs[0].Reason != "LEASE_LOST" || len(runs[0].Evidence) == 0 || runs[0].Signature != "" {
			t.Errorf("runs %+v, %v", runs, err)
		}
	})
}

// A second assignment that comes while one runs waits for it.
func TestG08SecondAssignmentWaits(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		var mu sync.Mutex // of order, which the plane reads, too
		var order []protocol.AssignmentID
		begun := func(id protocol.AssignmentID) int {
			mu.Lock()
			defer mu.Unlock()
			if id != "" {
				order = append(order, id)
			}
			return len(order)
		}
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			if begun(run.Job.Assignment) == 1 {
				time.Sleep(10 * time.Minute)
			}
			return success(ctx, run)
		}
		l.restart()
		spec := job()
		spec.Change = func(task map[string]any) {
			// While the first one runs the plane names another assignment.
			if begun("") == 1 {
				task["id"] = someID
			}
		}
		l.plane.AddJob(spec)
		l.wait("a result is accepted", accepted(1))
		if order[0] == protocol.AssignmentID(someID) {
			t.Errorf("runs %v", order)
		}
	})
}

func TestStatusSaysWhyNoJobComes(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "image", Say: why.say}}
		l.restart()
		says := func(part string) {
			t.Helper()
			if got := l.sup.Status().Why; !strings.Contains(got, part) {
				t.Errorf("why %q, want %q in it", got, part)
			}
		}
		l.pass(time.Second)
		says("veyra-sandboxd link")
		l.pair()
		says("Ready")
		why.set("The image python is missing.")
		l.pass(10 * time.Second)
		says("The image python is missing.")
		why.set("")
		l.pass(10 * time.Second)
		l.plane.Fault(controlplanetest.Heartbeat, 0, controlplanetest.Fault{Status: 502, Body: "<html>"})
		l.pass(10 * time.Second)
		says("502")
		l.plane.Heal(controlplanetest.Heartbeat)
		l.pass(20 * time.Second)
		l.sup.Drain()
		l.pass(100 * time.Millisecond)
		says("draining")
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
		l.ended <- nil
	})
}
