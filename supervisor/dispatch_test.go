package supervisor_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// Attack case G08: a newer lease fences the older one, and what the old run
// brings is not sent.
func TestG08NewerLeaseFencesTheOlder(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		var running, most atomic.Int32
		var leases []string
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			leases = append(leases, string(run.Job.ID))
			if len(leases) == 1 {
				<-ctx.Done()
				time.Sleep(time.Minute) // it takes its time to end
				return jobs.Outcome{Evidence: evidence(run)}
			}
			return success(ctx, run)
		}
		l.restart()
		id := l.plane.AddJob(job())
		l.pass(20 * time.Second)
		l.plane.Lease(id)
		view := l.wait("a result is accepted", accepted(1))
		if len(leases) != 2 || leases[1] != view.Jobs[0].LeaseID || most.Load() != 1 {
			t.Errorf("leases %v, %d at once", leases, most.Load())
		}
		if view.Calls[controlplanetest.JobResult] != 1 {
			t.Errorf("%d results were sent", view.Calls[controlplanetest.JobResult])
		}
		listed, err := l.sup.Jobs(context.Background())
		if err != nil || len(listed) != 2 || listed[1].Reason != "LEASE_LOST" {
			t.Errorf("jobs %+v, %v", listed, err)
		}
	})
}

// Attack cases G05 and G08: many beats, one execution; a task that is missing is
// not cancelled.
func TestG05OneExecutionOverManyBeats(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		id := l.pair()
		runs := 0
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			runs++
			select {
			case <-ctx.Done():
				t.Error("the run was cancelled")
			case <-time.After(5 * time.Minute):
			}
			return success(ctx, run)
		}
		l.restart()
		spec := job()
		spec.Change = func(task map[string]any) {
			task["work"].(map[string]any)["title"] = "Changed at " + time.Now().String()
		}
		l.plane.AddJob(spec)
		l.pass(time.Minute)
		l.plane.DeliveryErrors(id, "not now")
		l.pass(time.Minute)
		l.plane.DeliveryErrors(id)
		l.wait("a result is accepted", accepted(1))
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})
}

func TestDrainFinishesAndDelivers(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			time.Sleep(time.Minute)
			return success(ctx, run)
		}
		l.restart()
		l.plane.AddJob(job())
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		l.sup.Drain()
		beats := l.plane.View().Counts.Beats
		if err := <-l.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.ended <- nil
		view := l.plane.View()
		if view.Counts.AcceptedResults != 1 || view.Counts.Leases != 1 || view.Counts.Beats < beats+8 {
			t.Errorf("counts %+v", view.Counts)
		}
		l.startAnew()
		l.wait("the second job is done after the restart", accepted(2))
	})
}

// startAnew starts anew after Run has ended by itself.
func (l *lab) startAnew() { l.crash(); l.start() }

func TestCancelAbandonsWhatRuns(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		l.worker = func(ctx context.Context, _ jobs.Run) jobs.Outcome {
			<-ctx.Done()
			return jobs.Outcome{Abandoned: string(protocol.CodeCancelled)}
		}
		l.restart()
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		l.sup.Drain()
		l.sup.Cancel()
		if err := <-l.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.ended <- nil
		jobs, err := l.sup.Jobs(context.Background())
		if err != nil || len(jobs) != 1 || jobs[0].Reason != "CANCELLED" {
			t.Errorf("jobs %+v, %v", jobs, err)
		}
	})
}

// Not ready and a task all the same: it waits, and starts once the host is.
func TestUnreadyHostLeavesATaskUnanswered(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "runner", Say: why.say}}
		hold := make(chan struct{})
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			select {
			case <-hold:
				return success(ctx, run)
			case <-ctx.Done():
				return jobs.Outcome{Abandoned: "CANCELLED"}
			}
		}
		l.restart()
		l.pass(6 * time.Second)
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		why.set("The runner is gone: restart the daemon.")
		l.restart() // the run is in the journal
		l.pass(10 * time.Minute)
		if view := l.plane.View(); view.Counts.AcceptedResults+view.Counts.FailedResults != 0 {
			t.Errorf("answered while not ready: %+v", view.Counts)
		}
		if s := l.sup.Status(); s.Ready != "runner" || s.Running != nil {
			t.Errorf("status %+v", s)
		}
		close(hold)
		why.set("")
		l.wait("a result is accepted", accepted(1))
	})
}

func TestUnreadyHostRefusesAtTheEnd(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab) {
		l.pair()
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.worker = func(ctx context.Context, _ jobs.Run) jobs.Outcome {
			<-ctx.Done()
			return jobs.Outcome{Abandoned: "CANCELLED"}
		}
		l.restart()
		l.pass(6 * time.Second)
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		why.set("The disk is full.")
		l.restart()
		view := l.wait("a failure is taken", func(v controlplanetest.View) bool { return v.Counts.FailedResults == 1 })
		if code := view.Jobs[0].Evidence["failure_code"]; code != "HOST_DISK_FLOOR" {
			t.Errorf("failure %v", code)
		}
	})
}

// Attack cases G04, G07 and G13: what can't be worked on has a named outcome and
// reaches no worker.
func TestInvalidTasksAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(task map[string]any)
		code   string // "" = nothing is sent
	}{
		"submit url":     {func(task map[string]any) { task["submit_url"] = "https://evil.example/x/" }, "TASK_INVALID"},
		"credential url": {func(task map[string]any) { task["credential_url"] = origin + "/other/" }, "TASK_INVALID"},
		"clone url": {func(task map[string]any) {
			task["repository"].(map[string]any)["clone_url"] = "https://evil.example/octo/demo.git"
		}, "TASK_INVALID"},
		"minutes": {func(task map[string]any) {
			task["policy"].(map[string]any)["maximum_execution_minutes"] = 0
		}, "TASK_INVALID"},
		"branch": {func(task map[string]any) { task["delivery"].(map[string]any)["branch"] = "main" }, "TASK_INVALID"},
		"short lease": {func(task map[string]any) {
			task["lease_expires_at"] = time.Now().Add(100 * time.Second).UTC().Format(time.RFC3339)
		}, "LEASE_TOO_SHORT"},
		"lease over": {func(task map[string]any) { task["lease_expires_at"] = "1999-01-01T00:00:00Z" }, ""},
		"naive time": {func(task map[string]any) { task["lease_expires_at"] = "2030-01-01T00:00:00" }, ""},
		"id":         {func(task map[string]any) { task["id"] = "../../x" }, ""},
		"no token":   {func(task map[string]any) { task["lease_token"] = "" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab) {
				l.worker = func(context.Context, jobs.Run) jobs.Outcome {
					t.Error("the worker saw the task")
					return jobs.Outcome{Abandoned: "X"}
				}
				l.restart()
				l.pair()
				spec := job()
				spec.Change = c.change
				l.plane.AddJob(spec)
				l.pass(time.Minute)
				view := l.plane.View()
				if c.code == "" {
					if view.Calls[controlplanetest.JobResult]+view.Calls[controlplanetest.JobCredential] != 0 {
						t.Errorf("calls %v", view.Calls)
					}
					return
				}
				if view.Counts.FailedResults != 1 || view.Jobs[0].Evidence["failure_code"] != c.code {
					t.Errorf("job %+v", view.Jobs[0])
				}
			})
		})
	}
}

func TestPanicsBecomeInternalErrors(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab) {
		l.worker = func(context.Context, jobs.Run) jobs.Outcome { panic("a bug") }
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		view := l.wait("a failure is taken", func(v controlplanetest.View) bool { return v.Counts.FailedResults == 1 })
		if e := view.Jobs[0].Evidence; e["failure_code"] != "INTERNAL_ERROR" || strings.Contains(e["summary"].(string), "bug") {
			t.Errorf("evidence %v", e)
		}
	})
}

func TestGivingUpAQualificationCostsAnAttempt(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		tries := 0
		l.qualifier = func(ctx context.Context, run jobs.QualificationRun) jobs.QualificationOutcome {
			if tries++; tries == 1 {
				return jobs.QualificationOutcome{Failure: protocol.CodeModelRefused}
			}
			return pass(ctx, run)
		}
		l.restart()
		l.pair()
		q := l.plane.View().Agents[0].Qualifications
		if len(q) != 2 || q[0].RuntimeError != protocol.Lookup(protocol.CodeModelRefused).Sentence || q[1].Status != "PASSED" {
			t.Errorf("qualifications %+v", q)
		}
	})
}
