package supervisor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// page is what the metrics say now.
func (l *lab) page() string {
	page := httptest.NewRecorder()
	l.metrics.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

// agree wants the metrics to say what status and journal say at this moment.
func (l *lab) agree(what string) {
	l.t.Helper()
	st := l.sup.Status()
	counts, err := l.journal.Counts(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	lines := []string{
		fmt.Sprintf("paired %d", btoi(st.Pairing == supervisor.Paired)), fmt.Sprintf("ready{reason=%q} 1", st.Ready),
		fmt.Sprintf("jobs_running %d", btoi(st.Running != nil)), fmt.Sprintf("outbox_depth %d", len(st.Outbox)),
	}
	for state, n := range counts {
		lines = append(lines, fmt.Sprintf("journal_records{state=%q} %d", state, n))
	}
	page := l.page()
	for _, line := range lines {
		if !strings.Contains(page, "\nveyra_sandboxd_"+line+"\n") {
			l.t.Errorf("%s: the metrics lack %q", what, line)
		}
	}
	if leased := strings.Contains(page, "\nveyra_sandboxd_lease_remaining_seconds "); leased != (st.Running != nil) {
		l.t.Errorf("%s: lease_remaining_seconds is there: %t, running %v", what, leased, st.Running)
	}
	if waits := strings.Contains(page, "\nveyra_sandboxd_outbox_oldest_timestamp_seconds "); waits != (len(st.Outbox) > 0) {
		l.t.Errorf("%s: outbox_oldest_timestamp_seconds is there: %t, outbox %v", what, waits, st.Outbox)
	}
}

func btoi(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// become lets milliseconds pass until status meets cond; the metrics agree with it
// in that very millisecond.
func (l *lab) become(what string, cond func(supervisor.Status) bool) {
	l.t.Helper()
	for range 100_000 {
		if l.pass(time.Millisecond); cond(l.sup.Status()) {
			l.agree(what)
			return
		}
	}
	l.t.Fatalf("%s: it is %+v", what, l.sup.Status())
}

// Nothing that metrics say is a sample of some seconds ago: at each turn of a
// host's life they agree with status and the journal.
func TestMetricsAndStatusAgreeAtEachTurn(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		why, end := newSentence(""), make(chan struct{})
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			<-end
			return success(ctx, run)
		}
		l.restart()
		ready := func(reason string) func(supervisor.Status) bool {
			return func(st supervisor.Status) bool { return st.Ready == reason }
		}
		l.become("before the pairing", ready("not_paired"))
		id := l.introduce("")
		l.become("after it", ready("ok"))
		why.set("The disk is nearly full.")
		l.become("not ready", ready("disk"))
		why.set("")
		l.become("ready again", ready("ok"))
		l.plane.Fault(controlplanetest.JobResult, 0, controlplanetest.Fault{Status: 503})
		l.plane.AddJob(job())
		l.become("a job runs", func(st supervisor.Status) bool { return st.Running != nil })
		close(end)
		l.become("its result waits", func(st supervisor.Status) bool { return st.Running == nil && len(st.Outbox) == 1 })
		l.plane.Heal(controlplanetest.JobResult)
		l.become("it is delivered", func(st supervisor.Status) bool { return len(st.Outbox) == 0 })
		l.plane.Disconnect(id)
		l.become("disconnected", ready("not_paired"))
		l.sup.Drain()
		l.become("draining", ready("draining"))
	})
}

// What keeps a host from working is told to the control plane with the next beat
// that the protocol lets it send: what is assigned meanwhile could only wait.
func TestBeatsTellSoonWhatChanged(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.restart()
		l.pair()
		healthy := func() bool { return l.plane.View().Agents[0].LastBeat["health"] == "HEALTHY" }
		tells := func(what string, change func(), ready string) {
			t.Helper()
			for beats := g.count(); g.count() == beats; { // a beat was just sent
				l.pass(time.Millisecond)
			}
			change()
			for range 100_000 {
				if l.pass(time.Millisecond); l.sup.Status().Ready == ready {
					break
				}
			}
			if l.pass(protocol.HeartbeatFloor); healthy() != (ready == "ok") {
				t.Errorf("%s: no beat told so within the floor, status says %s", what, l.sup.Status().Ready)
			}
		}
		tells("not ready", func() { why.set("The disk is nearly full.") }, "disk")
		tells("ready again", func() { why.set("") }, "ok")
	})
}

// Attack case D06: what a check or a run says is told to the control plane without
// the secrets that it may quote.
func TestD06BeatsShowNoSecrets(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		const secret = "sk-canary-0123456789abcdef"
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "provider", Say: why.say}}
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			run.Progress.Phase(protocol.PhaseValidation, "asked with "+secret)
			<-ctx.Done()
			return jobs.Outcome{Abandoned: string(protocol.CodeCancelled)}
		}
		l.restart()
		if err := l.secrets.Add(secret); err != nil {
			t.Fatal(err)
		}
		l.pair()
		l.plane.AddJob(job())
		l.pass(10 * time.Second)
		why.set("The address https://" + secret + "@models.example is none.")
		l.pass(10 * time.Second)
		beat := l.plane.View().Agents[0].LastBeat
		message, progress := fmt.Sprint(beat["message"]), fmt.Sprint(beat["job_message"])
		if strings.Contains(message+progress, secret) || !strings.Contains(message, "The address") || !strings.Contains(progress, "asked with") {
			t.Errorf("message %q, progress %q", message, progress)
		}
	})
}
