package supervisor_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// inSkewedLab is inLab with a control plane whose clock can be set. In a bubble
// ours can't be: theirs is set the other way.
func inSkewedLab(t *testing.T, opts controlplanetest.Options, test func(l *lab, set func(time.Duration))) {
	t.Helper()
	var skew atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	opts.Now, opts.Qualified = now, true
	inLab(t, opts, func(l *lab) {
		inner := l.way
		l.way = roundTrip(func(r *http.Request) (*http.Response, error) {
			res, err := inner.RoundTrip(r)
			if err == nil {
				res.Header.Set("Date", now().UTC().Format(http.TimeFormat))
			}
			return res, err
		})
		l.restart()
		test(l, func(d time.Duration) { skew.Store(int64(d)) })
	})
}

// Attack case J13: a host that starts with its clock far ahead throws no finished
// work away, whether it is sealed, drafted or to be done.
func TestJ13ClockAheadAtTheStartLosesNothing(t *testing.T) {
	for name, reach := range map[string]func(l *lab){
		"sealed": func(l *lab) {
			l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Status: 503})
		},
		"begun": func(l *lab) {
			l.worker = func(ctx context.Context, _ jobs.Run) jobs.Outcome {
				<-ctx.Done()
				return jobs.Outcome{Abandoned: string(protocol.CodeCancelled)}
			}
			l.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inSkewedLab(t, controlplanetest.Options{}, func(l *lab, set func(time.Duration)) {
				l.pair()
				reach(l)
				l.plane.AddJob(job())
				l.pass(time.Minute)
				l.crash()
				l.plane.Heal(controlplanetest.JobResult)
				l.worker = success
				time.Sleep(3 * time.Hour) // ours goes on, theirs stands still
				set(-3 * time.Hour)
				l.start()
				l.pass(time.Minute)
				if view := l.plane.View(); view.Counts.AcceptedResults != 1 || view.Counts.Leases != 1 {
					t.Errorf("counts %+v, status %+v", view.Counts, l.sup.Status())
				}
			})
		})
	}
}

// What is over by the control plane's clock as well, or by ours if nobody tells
// the time, ends.
func TestJ13LeasesThatAreOverEndAfterAStart(t *testing.T) {
	for name, fault := range map[string]controlplanetest.Fault{
		"they tell the time": {}, "nobody answers": {Lose: true},
	} {
		t.Run(name, func(t *testing.T) {
			inSkewedLab(t, controlplanetest.Options{Attempts: 1}, func(l *lab, _ func(time.Duration)) {
				l.pair()
				l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Status: 503})
				l.plane.AddJob(job())
				l.pass(time.Minute)
				l.crash()
				time.Sleep(3 * time.Hour)
				if fault.Lose {
					l.plane.Fault(controlplanetest.Heartbeat, 0, fault)
					l.plane.Fault(controlplanetest.Configuration, 0, fault)
				}
				l.start()
				l.pass(5 * time.Minute)
				listed, err := l.sup.Jobs(context.Background())
				if err != nil || len(listed) != 1 || listed[0].State != "abandoned" || listed[0].Reason != "LEASE_LOST" {
					t.Errorf("jobs %+v, %v", listed, err)
				}
			})
		})
	}
}

// Attack case J13: a machine that was suspended has lost the time that its own
// clocks did not count; no lease lives longer for it.
func TestJ13SuspendedTimeCounts(t *testing.T) {
	inSkewedLab(t, controlplanetest.Options{Attempts: 1}, func(l *lab, set func(time.Duration)) {
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			<-ctx.Done()
			return jobs.Outcome{Evidence: evidence(run)}
		}
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		if l.sup.Status().Running == nil {
			t.Fatal("nothing runs")
		}
		set(time.Hour)
		l.pass(10 * time.Second)
		listed, err := l.sup.Jobs(context.Background())
		if err != nil || len(listed) != 1 || listed[0].State != "abandoned" || l.sup.Status().Running != nil {
			t.Errorf("jobs %+v, %v, status %+v", listed, err, l.sup.Status())
		}
	})
}
