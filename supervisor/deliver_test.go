package supervisor_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

func jsonFault(status int, detail string) controlplanetest.Fault {
	return controlplanetest.Fault{Status: status, ContentType: "application/json", Body: `{"detail":"` + detail + `"}`}
}

// pairs are the ways in which a remote call fails, and the ones in which it was
// done but the answer was lost.
var pairs = map[string]controlplanetest.Fault{
	"failed: connection lost": {Lose: true},
	"failed: 500":             {Status: 500, Body: "<html>"},
	"failed: 502":             {Status: 502, Body: "<html>"},
	"failed: 429":             {Status: 429, Header: http.Header{"Retry-After": {"3600"}}},
	"failed: 409":             jsonFault(409, "GitHub is not available"),
	"failed: redirect":        {Redirect: "https://elsewhere.example/"},
	"failed: 200 and empty":   {Status: 200, ContentType: "application/json"},
	"failed: 200 and null":    {Status: 200, ContentType: "application/json", Body: "null"},
	"done, connection lost":   {Effect: true, Lose: true},
	"done, 500":               {Effect: true, Status: 500, Body: "<html>"},
	"done, body cut":          {CutBody: true},
	"done, 504 html":          {Effect: true, Status: 504, Body: "<html>"},
}

func eachPair(t *testing.T, e controlplanetest.Endpoint, test func(l *lab)) {
	t.Helper()
	for name, fault := range pairs {
		t.Run(name, func(t *testing.T) {
			inLab(t, controlplanetest.Options{}, func(l *lab) {
				for n := 1; n <= 3; n++ {
					l.plane.Fault(e, n, fault)
				}
				test(l)
			})
		})
	}
}

// Attack case G09: same evidence, hash and signature until 200; one effect.
func TestG09ResultsAreDeliveredOnce(t *testing.T) {
	eachPair(t, controlplanetest.JobResult, func(l *lab) {
		runs := 0
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome { runs++; return success(ctx, run) }
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		l.wait("a result is accepted", accepted(1))
		l.pass(2 * time.Minute)
		view := l.plane.View()
		if view.Counts.AcceptedResults != 1 || view.Counts.FailedResults != 0 || runs != 1 {
			t.Errorf("counts %+v, %d runs", view.Counts, runs)
		}
		records, err := l.journal.Unfinished(context.Background())
		if err != nil || len(records) != 0 || len(l.sup.Status().Outbox) != 0 {
			t.Errorf("unfinished %v, %v, outbox %v", records, err, l.sup.Status().Outbox)
		}
		text, err := os.ReadFile(filepath.Join(l.state, "jobs", view.Jobs[0].AssignmentID, view.Jobs[0].LeaseID, "evidence.json"))
		if err != nil || !strings.Contains(string(text), "ok \u2028 <&>\\u0001") {
			t.Errorf("evidence.json %q, %v", text, err)
		}
	})
}

func TestQualificationsAreDeliveredOnce(t *testing.T) {
	eachPair(t, controlplanetest.Qualification, func(l *lab) {
		l.pair()
		l.pass(2 * time.Minute)
		view := l.plane.View()
		if view.Counts.Qualifications != 1 || len(view.Agents[0].Qualifications) != 1 {
			t.Errorf("plane %+v", view)
		}
	})
}

func TestCredentialsAreAskedForAgain(t *testing.T) {
	eachPair(t, controlplanetest.JobCredential, func(l *lab) {
		l.pair()
		l.plane.AddJob(job())
		view := l.wait("a result is accepted", accepted(1))
		if view.Counts.AcceptedResults != 1 || view.Calls[controlplanetest.JobCredential] > 5 {
			t.Errorf("plane %+v", view)
		}
	})
}

// Attack case J01: a crash at every point between acceptance and delivery leads
// to one accepted result with the same signature.
func TestJ01CrashesLoseAndDoubleNothing(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		l.pair()
		working := make(chan struct{})
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			if err := run.Checkpoints.Save(ctx, "step", []byte("reached")); err != nil {
				t.Error(err)
			}
			if err := run.Ledger.Spend(ctx, 100, 20); err != nil {
				t.Error(err)
			}
			close(working)
			<-ctx.Done()
			return jobs.Outcome{Abandoned: string(protocol.CodeCancelled)}
		}
		l.restart()
		l.plane.AddJob(job())
		<-working
		// Between accept and seal: the run is executed again, what was spent counts.
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			value, found := run.Checkpoints.Load("step")
			in, out := run.Ledger.Spent()
			if string(value) != "reached" || !found || in != 100 || out != 20 {
				t.Errorf("after a restart: checkpoint %q, spent %d and %d", value, in, out)
			}
			return success(ctx, run)
		}
		// Between draft and seal: the signer is gone.
		l.signer.err = signer.ErrGone
		l.restart()
		l.pass(30 * time.Second)
		if n := l.plane.View().Counts.AcceptedResults; n != 0 {
			t.Fatalf("%d results without a signature", n)
		}
		l.worker = func(context.Context, jobs.Run) jobs.Outcome {
			t.Error("the job was done again after its evidence was drafted")
			return jobs.Outcome{Abandoned: "X"}
		}
		// Between seal and deliver: no send arrives.
		l.signer.err = nil
		l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Lose: true})
		l.restart()
		l.pass(20 * time.Second)
		// Delivered, but the answer is lost.
		l.plane.Heal(controlplanetest.JobResult)
		l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Lose: true, Effect: true})
		l.restart()
		first := l.wait("a result is accepted", accepted(1)).Jobs[0]
		l.pass(10 * time.Second)
		l.plane.Heal(controlplanetest.JobResult)
		l.restart()
		l.pass(time.Minute)
		view := l.plane.View()
		if view.Counts.AcceptedResults != 1 || view.Counts.Leases != 1 || view.Jobs[0].Signature != first.Signature {
			t.Errorf("plane %+v", view)
		}
		if left := l.sup.Status().Outbox; len(left) != 0 {
			t.Errorf("outbox %+v", left)
		}
	})
}

// What was sealed is sent as soon as the next process lives, and not after the
// pause that follows a failed send.
func TestSealedResultsAreSentAtOnce(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Lose: true})
		l.plane.AddJob(job())
		l.wait("a result is sent in vain", func(v controlplanetest.View) bool { return v.Calls[controlplanetest.JobResult] > 0 })
		l.crash()
		l.plane.Heal(controlplanetest.JobResult)
		sent := l.plane.View().Calls[controlplanetest.JobResult]
		l.start()
		synctest.Wait() // no time passes
		if v := l.plane.View(); v.Counts.AcceptedResults != 1 || v.Calls[controlplanetest.JobResult] != sent+1 {
			t.Errorf("after the start: %+v", v)
		}
	})
}

// neverFound is a GitHub that has not caught up.
type neverFound struct{}

func (neverFound) PullRequest(context.Context, string, int) (controlplanetest.PullRequest, error) {
	return controlplanetest.PullRequest{}, errors.New("404")
}

// Attack cases G10 and G17: 409 is never final; near the lease's end one
// failure may follow that lets the job be given out again.
func TestG10RefusedResultsAreRevisedAtTheEnd(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true, GitHub: neverFound{}, Attempts: 2}, func(l *lab) {
		l.pair()
		l.plane.AddJob(job())
		begin := time.Now()
		view := l.wait("a failure is taken", func(v controlplanetest.View) bool { return v.Counts.FailedResults == 1 })
		e := view.Jobs[0].Evidence
		if e["failure_code"] != "RESULT_REFUSED" || e["failure_stage"] != "runtime_infrastructure" {
			t.Errorf("evidence %v", e)
		}
		lease := 32 * time.Minute
		if took := time.Since(begin); took < lease-70*time.Second || took > lease {
			t.Errorf("revised after %v of %v", took, lease)
		}
		if view.Counts.Leases != 2 {
			t.Errorf("%d leases, want the job given out again", view.Counts.Leases)
		}
	})
}

// After one unknown answer nothing else may follow, whatever comes then.
func TestG09NothingFollowsAnUnknownAnswer(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true, GitHub: neverFound{}}, func(l *lab) {
		l.plane.Fault(controlplanetest.JobResult, 2, controlplanetest.Fault{Status: 500, Body: "<html>"})
		l.pair()
		l.plane.AddJob(job())
		l.pass(time.Minute)
		l.restart() // also over a restart
		l.pass(40 * time.Minute)
		view := l.plane.View()
		if view.Counts.FailedResults != 0 || view.Counts.AcceptedResults != 0 {
			t.Errorf("counts %+v", view.Counts)
		}
		jobs, err := l.sup.Jobs(context.Background())
		if err != nil || len(jobs) != 1 || jobs[0].State != "abandoned" || jobs[0].Reason != "LEASE_LOST" {
			t.Errorf("jobs %+v, %v", jobs, err)
		}
	})
}

// Attack case G11: a result of a revoked runtime is kept, and sent if the owner
// connects the same agent again in time.
func TestG11RevokedResultsAreKept(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		id := l.pair()
		release := make(chan struct{})
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			<-release
			return jobs.Outcome{Evidence: evidence(run)}
		}
		l.restart()
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		l.plane.Disconnect(id)
		l.pass(time.Minute)
		close(release)
		l.pass(time.Minute)
		if n := l.plane.View().Calls[controlplanetest.JobResult]; n != 0 {
			t.Errorf("%d results were sent while revoked", n)
		}
		if s := l.sup.Status(); len(s.Outbox) != 1 {
			t.Errorf("outbox %+v", s.Outbox)
		}
		l.introduce(id)
		l.wait("the result is accepted after all", accepted(1))
	})
}

// Attack cases D06 and G17: secrets are taken out, and outputs of any kind fit.
func TestG17EvidenceIsMadeToFit(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			token, err := run.Credentials.Credential(ctx, false)
			if err != nil {
				t.Error(err)
			}
			e := evidence(run)
			e["test_output"] = strings.Repeat("\x01", 1_000_000) + "\x00\xff" + string(token)
			e["summary"] = "the token is " + string(token)
			return jobs.Outcome{Evidence: e}
		}
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		e := l.wait("a result is accepted", accepted(1)).Jobs[0].Evidence
		if n := len([]rune(e["test_output"].(string))); n > 12000 {
			t.Errorf("test_output has %d characters", n)
		}
		for _, name := range []string{"summary", "test_output"} {
			if strings.Contains(e[name].(string), "ghs_") {
				t.Errorf("%s shows the token", name)
			}
		}
	})
}
