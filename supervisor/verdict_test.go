package supervisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// rewriting moves a beat's task to the member of the other role.
type rewriting struct {
	wanted, other string
	way           http.RoundTripper
}

func (r *rewriting) RoundTrip(q *http.Request) (*http.Response, error) {
	res, err := r.way.RoundTrip(q)
	if err != nil || !strings.HasSuffix(q.URL.Path, "heartbeat/") {
		return res, err
	}
	text, err := io.ReadAll(res.Body)
	var body map[string]any
	if err == nil && json.Unmarshal(text, &body) == nil {
		body[r.wanted], body[r.other] = nil, body[r.wanted]
		text, _ = json.Marshal(body)
		res.Header.Del("Content-Length")
	}
	res.Body = io.NopCloser(bytes.NewReader(text))
	return res, err
}

// Attack case G09 for verdicts: the same bytes until 200, one effect.
func TestG09VerdictsAreDeliveredOnce(t *testing.T) {
	for name, fault := range pairs {
		t.Run(name, func(t *testing.T) {
			runs := 0
			inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
				runs++
				return approve(ctx, run)
			}, func(l *lab) {
				for n := 1; n <= 3; n++ {
					l.plane.Fault(controlplanetest.VerificationResult, n, fault)
				}
				l.plane.AddVerification(submission())
				l.wait("a verdict is taken", judged(1))
				l.pass(2 * time.Minute)
				view := l.plane.View()
				if view.Counts.Verdicts != 1 || view.Counts.Reviews != 1 || runs != 1 || len(l.sup.Status().Outbox) != 0 {
					t.Errorf("counts %+v, %d runs, outbox %v", view.Counts, runs, l.sup.Status().Outbox)
				}
				if got := l.records(); len(got) != 1 || got[0].State != "delivered" || len(got[0].Receipt) == 0 {
					t.Errorf("runs %+v", got)
				}
			})
		})
	}
}

func TestReadCredentialsAreAskedForAgain(t *testing.T) {
	for name, fault := range pairs {
		t.Run(name, func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, approve, func(l *lab) {
				for n := 1; n <= 3; n++ {
					l.plane.Fault(controlplanetest.VerificationCredential, n, fault)
				}
				l.plane.AddVerification(submission())
				view := l.wait("a verdict is taken", judged(1))
				if n := view.Calls[controlplanetest.VerificationCredential]; n > 5 {
					t.Errorf("%d questions", n)
				}
			})
		})
	}
}

// Attack case G09: a verdict whose answers were all lost until its lease ended is
// delivered, unknown, also when the process ends in between; one that was only
// ever refused is not.
func TestG09UnansweredVerdictsAreDeliveredUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		fault         controlplanetest.Fault
		down          bool // over the lease's end
		state, reason string
	}{
		"lost":               {controlplanetest.Fault{Lose: true}, false, "delivered", "unknown"},
		"done, lost":         {controlplanetest.Fault{Lose: true, Effect: true}, false, "delivered", "unknown"},
		"500":                {controlplanetest.Fault{Status: 500, Body: "<html>"}, false, "delivered", "unknown"},
		"lost, while down":   {controlplanetest.Fault{Lose: true}, true, "delivered", "unknown"},
		"refused":            {jsonFault(409, "not now"), false, "abandoned", "LEASE_LOST"},
		"refused while down": {jsonFault(409, "not now"), true, "abandoned", "LEASE_LOST"},
	} {
		t.Run(name, func(t *testing.T) {
			inReview(t, controlplanetest.Options{}, approve, func(l *lab) {
				l.plane.Fault(controlplanetest.VerificationResult, 0, c.fault)
				l.plane.AddVerification(submission())
				l.pass(time.Minute)
				l.plane.DeliveryErrors(l.plane.View().Agents[0].ID, "not now") // no newer lease
				if c.down {
					l.crash()
					time.Sleep(31 * time.Minute)
					l.start()
				}
				l.pass(31 * time.Minute)
				got := l.records()
				first := got[len(got)-1]
				if first.State != c.state || first.Reason != c.reason || first.Signature == "" || len(first.Receipt) != 0 {
					t.Errorf("run %+v", first)
				}
				if left := l.sup.Status().Outbox; len(left) != 0 {
					t.Errorf("outbox %+v", left)
				}
				if n := l.plane.View().Counts.Verdicts; n > 1 {
					t.Errorf("%d verdicts", n)
				}
			})
		})
	}
}

// A newer lease proves that no report was taken under the older one, whatever its
// answers left open.
func TestG08NewerLeaseEndsAnUnansweredVerdict(t *testing.T) {
	inReview(t, controlplanetest.Options{}, approve, func(l *lab) {
		l.plane.Fault(controlplanetest.VerificationResult, 0, controlplanetest.Fault{Lose: true})
		id := l.plane.AddVerification(submission())
		l.pass(time.Minute)
		l.plane.ExpireVerification(id)
		l.pass(20 * time.Second)
		l.plane.Heal(controlplanetest.VerificationResult)
		l.wait("a verdict is taken", judged(1))
		l.pass(20 * time.Second)
		got := l.records()
		if len(got) != 2 || got[1].Reason != "LEASE_LOST" || got[0].State != "delivered" || got[0].Reason != "" {
			t.Errorf("runs %+v", got)
		}
	})
}

// Attack case J01 for verifications: a crash at every point between acceptance
// and delivery leads to one verdict with one signature.
func TestJ01VerificationsSurviveCrashes(t *testing.T) {
	inReview(t, controlplanetest.Options{}, approve, func(l *lab) {
		working := make(chan struct{})
		l.verifier = func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
			if err := run.Ledger.Spend(ctx, 100, 20); err != nil {
				t.Error(err)
			}
			close(working)
			<-ctx.Done()
			return jobs.VerificationOutcome{Failure: protocol.CodeProviderUnavailable} // what a shutdown may look like
		}
		l.restart()
		l.plane.AddVerification(submission())
		<-working
		l.verifier = func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
			if in, out := run.Ledger.Spent(); in != 100 || out != 20 {
				t.Errorf("spent %d and %d", in, out)
			}
			return approve(ctx, run)
		}
		l.signer.err = signer.ErrGone
		l.restart()
		l.pass(30 * time.Second)
		l.verifier = func(context.Context, jobs.VerificationRun) jobs.VerificationOutcome {
			t.Error("judged again after the report was drafted")
			return jobs.VerificationOutcome{Abandoned: "X"}
		}
		l.signer.err = nil
		l.plane.Fault(controlplanetest.VerificationResult, 0, controlplanetest.Fault{Lose: true, Effect: true})
		l.restart()
		first := l.wait("a verdict is taken", judged(1)).Verifications[0]
		l.plane.Heal(controlplanetest.VerificationResult)
		l.restart()
		l.pass(time.Minute)
		view := l.plane.View()
		if view.Counts.Verdicts != 1 || view.Counts.Reviews != 1 || view.Verifications[0].Signature != first.Signature {
			t.Errorf("plane %+v", view)
		}
		if got := l.records(); len(got) != 1 || got[0].State != "delivered" || got[0].Reason != "" {
			t.Errorf("runs %+v", got)
		}
	})
}

// Attack case G17 for reports: outputs of any kind and length fit, without
// secrets.
func TestG17ReportsAreMadeToFit(t *testing.T) {
	inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
		token, err := run.Credentials.Credential(ctx, false)
		if err != nil {
			t.Error(err)
		}
		outcome := says(run, protocol.VerdictRejected)
		noise := strings.Repeat("\x01", 100_000) + "\x00\xff" + string(token)
		outcome.Report["independent_test_output"], outcome.Report["summary"] = noise, noise
		outcome.Report["acceptance_criteria"] = []map[string]any{
			{"passed": false, "evidence": noise}, {"passed": false, "evidence": string(token)},
		}
		outcome.Report["security_findings"] = []any{map[string]any{"severity": "LOW", "title": noise, "detail": noise}}
		return outcome
	}, func(l *lab) {
		l.plane.AddVerification(submission())
		got := l.wait("a verdict is taken", judged(1)).Verifications[0].Report
		text, err := json.Marshal(got)
		if err != nil || bytes.Contains(text, []byte("ghs_")) {
			t.Errorf("the report shows the token, or %v", err)
		}
	})
}

// A panic of the verifier costs no verdict.
func TestPanicsLeaveTheLeaseToRunOut(t *testing.T) {
	inReview(t, controlplanetest.Options{}, func(context.Context, jobs.VerificationRun) jobs.VerificationOutcome {
		panic("a bug")
	}, func(l *lab) {
		l.plane.AddVerification(submission())
		l.pass(time.Minute)
		l.noReport(protocol.CodeInternalError)
	})
}
