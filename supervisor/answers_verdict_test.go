package supervisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// eachReplyInReview is eachReply for a verifier; runs counts its reviews.
func eachReplyInReview(t *testing.T, test func(l *lab, p *tape, r reply, runs *int)) {
	t.Helper()
	for name, r := range replies {
		t.Run(name, func(t *testing.T) {
			runs := 0
			inReview(t, controlplanetest.Options{}, func(ctx context.Context, run jobs.VerificationRun) jobs.VerificationOutcome {
				runs++
				return approve(ctx, run)
			}, func(l *lab) {
				p := l.record()
				test(l, p, r, &runs)
				p.onlyHome(t)
			})
		})
	}
}

// wantOneVerdict: one lease, one review, one verdict taken, nothing left behind.
func (l *lab) wantOneVerdict(runs int) {
	l.t.Helper()
	if c := l.plane.View().Counts; c.Verdicts != 1 || c.Reviews != 1 || runs != 1 {
		l.t.Errorf("counts %+v, %d runs, want one lease, one run and one verdict", c, runs)
	}
	left, err := l.journal.Unfinished(context.Background())
	if err != nil || len(left) != 0 || len(l.sup.Status().Outbox) != 0 {
		l.t.Errorf("unfinished %v, %v, outbox %+v", left, err, l.sup.Status().Outbox)
	}
}

func TestAnswersToVerifiersCredentialQuestions(t *testing.T) {
	eachReplyInReview(t, func(l *lab, p *tape, r reply, runs *int) {
		l.spoil(controlplanetest.VerificationCredential, r, 3)
		l.plane.AddVerification(submission())
		l.wait("a verdict is taken", judged(1))
		l.pass(2 * time.Minute)
		l.wantOneVerdict(*runs)
		p.wantCalls(l.t, controlplanetest.VerificationCredential, 4)
		if shortest, _ := p.pauses(controlplanetest.VerificationCredential); shortest < max(r.asks, time.Second*3/4) {
			l.t.Errorf("asked again after %v", shortest)
		}
	})
}

func TestAnswersToVerdicts(t *testing.T) {
	eachReplyInReview(t, func(l *lab, p *tape, r reply, runs *int) {
		l.spoil(controlplanetest.VerificationResult, r, 3)
		l.plane.AddVerification(submission())
		l.pass(5 * time.Minute)
		l.wantOneVerdict(*runs)
		p.wantCalls(l.t, controlplanetest.VerificationResult, 4)
		p.wantSameBytes(l.t, controlplanetest.VerificationResult, r, "report", "signature")
	})
}

// The same until the lease is over: a verdict is never replaced, and one that
// may have been taken is kept as delivered. A verification that nobody answered
// for is given out again, so only what happened within the first lease counts.
func TestLastingAnswersToVerdicts(t *testing.T) {
	eachReplyInReview(t, func(l *lab, p *tape, r reply, _ *int) {
		l.spoil(controlplanetest.VerificationResult, r, 0)
		id := l.plane.AddVerification(submission())
		l.pass(29*time.Minute + 50*time.Second)
		if signatures := p.values(controlplanetest.VerificationResult, "signature"); len(signatures) != 1 {
			l.t.Errorf("%d different verdicts were sent within one lease", len(signatures))
		}
		if calls := len(p.of(controlplanetest.VerificationResult)); calls < 30 || calls > 120 {
			l.t.Errorf("%d sends in half an hour", calls)
		}
		// No more tasks, so that the first run can be looked at.
		l.plane.DeliveryErrors(l.plane.View().Agents[0].ID, "not now")
		l.pass(time.Minute)
		first := l.first(id)
		want := "abandoned"
		if !r.definite {
			want = "delivered"
		}
		if first.State != want {
			l.t.Errorf("the first run is %s (%s), want %s", first.State, first.Reason, want)
		}
		effects := 0
		if r.done() {
			effects = 1
		}
		if got := l.plane.View().Counts.Verdicts; got != effects {
			l.t.Errorf("%d verdicts were taken, want %d", got, effects)
		}
	})
}

// first is the oldest run of an assignment.
func (l *lab) first(id string) supervisor.JobView {
	l.t.Helper()
	runs, err := l.sup.Job(context.Background(), id)
	if err != nil || len(runs) == 0 {
		l.t.Fatalf("runs %+v, %v", runs, err)
	}
	return runs[len(runs)-1]
}
