package supervisor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// withCredentials runs test as the worker of one job.
func withCredentials(t *testing.T, opts controlplanetest.Options, test func(ctx context.Context, l *lab, run jobs.Run)) {
	t.Helper()
	opts.Qualified = true
	inLab(t, opts, func(l *lab) {
		done := make(chan struct{})
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			defer close(done)
			test(ctx, l, run)
			return jobs.Outcome{Abandoned: "CANCELLED"}
		}
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		<-done
	})
}

// Attack case D13: a token is renewed under five minutes and before the push, an
// equal one is no error, and there is no loop.
func TestD13CredentialsAreAskedForRarely(t *testing.T) {
	withCredentials(t, controlplanetest.Options{}, func(ctx context.Context, l *lab, run jobs.Run) {
		issued := func() int { return l.plane.View().Counts.TokensIssued }
		first, err := run.Credentials.Credential(ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, fresh := range []bool{false, true} {
			for range 10 {
				if again, err := run.Credentials.Credential(ctx, fresh); err != nil || again != first {
					t.Errorf("token changed, or %v", err)
				}
			}
			if want := map[bool]int{false: 1, true: 2}[fresh]; issued() != want {
				t.Errorf("%d tokens within a minute, before a push %t, want %d", issued(), fresh, want)
			}
		}
		time.Sleep(2 * time.Minute)
		if again, err := run.Credentials.Credential(ctx, true); err != nil || again != first || issued() != 3 {
			t.Errorf("before the push: %v, %d issued", err, issued())
		}
	})
}

func TestD13UnfitCredentialsAreRefused(t *testing.T) {
	soon := func() time.Time { return time.Now().Add(30 * time.Minute) }
	good := func() string { return "ghs_0123456789012345678901234567890123456789" }
	for name, give := range map[string]func() (string, time.Time){
		"short":   func() (string, time.Time) { return "ghs_short", soon() },
		"newline": func() (string, time.Time) { return good() + "\nX: y", soon() },
		"expired": func() (string, time.Time) { return good(), time.Now().Add(-time.Second) },
		"one megabyte": func() (string, time.Time) {
			return string(make([]byte, 0)) + longText(1<<20), soon()
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := controlplanetest.Options{RepoToken: func(string) (string, time.Time) { return give() }}
			withCredentials(t, opts, func(ctx context.Context, _ *lab, run jobs.Run) {
				if _, err := run.Credentials.Credential(ctx, false); !errors.Is(err, jobs.ErrCredentialRefused) {
					t.Errorf("error %v, want ErrCredentialRefused", err)
				}
			})
		})
	}
	for name, body := range map[string]string{
		"other repository": `{"token":"` + good() + `","expires_at":"2099-01-01T00:00:00Z","repository":"o/other","clone_url":"x"}`,
		"read only":        `{"token":"` + good() + `","expires_at":"2099-01-01T00:00:00Z","repository":"o/n","clone_url":"x","permissions":{"contents":"read"}}`,
		"no end":           `{"token":"` + good() + `","expires_at":"never","repository":"o/n","clone_url":"x"}`,
		"nothing":          `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			withCredentials(t, controlplanetest.Options{}, func(ctx context.Context, l *lab, run jobs.Run) {
				l.plane.Fault(controlplanetest.JobCredential, 0, controlplanetest.Fault{
					Status: 200, ContentType: "application/json", Body: body,
				})
				if _, err := run.Credentials.Credential(ctx, false); !errors.Is(err, jobs.ErrCredentialRefused) {
					t.Errorf("error %v, want ErrCredentialRefused", err)
				}
			})
		})
	}
}

func longText(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = 'x'
	}
	return string(text)
}

// Attack case G08: a refusal alone may be cured by time; with a task that beats
// no longer carry it means that the lease is lost.
func TestLastingCredentialTroubleIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		fault    controlplanetest.Fault
		vanished bool
		want     error
	}{
		"409":              {jsonFault(409, "lease"), false, jobs.ErrCredentialUnavailable},
		"409 and vanished": {jsonFault(409, "lease"), true, jobs.ErrLeaseLost},
		"500 and vanished": {controlplanetest.Fault{Status: 500}, true, jobs.ErrCredentialUnavailable},
		"401":              {jsonFault(401, "revoked"), false, jobs.ErrLeaseLost},
		"500":              {controlplanetest.Fault{Status: 500}, false, jobs.ErrCredentialUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			withCredentials(t, controlplanetest.Options{}, func(ctx context.Context, l *lab, run jobs.Run) {
				l.plane.Fault(controlplanetest.JobCredential, 0, c.fault)
				if c.vanished {
					l.plane.DeliveryErrors(l.plane.View().Agents[0].ID, "not now")
				}
				begin := time.Now()
				if _, err := run.Credentials.Credential(ctx, false); !errors.Is(err, c.want) {
					t.Errorf("error %v, want %v", err, c.want)
				}
				if took := time.Since(begin); took > 11*time.Minute {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// Beats of a host that is not ready bring no task, however long that lasts: it is
// no sign that the lease was taken, and passing refusals cost no finished work.
func TestG08UnreadyHostsKeepTheirLease(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			why.set("The disk is nearly full.")
			time.Sleep(10 * time.Minute)
			l.plane.Fault(controlplanetest.JobCredential, 0, jsonFault(409, "GitHub is slow"))
			time.AfterFunc(2*time.Minute, func() { l.plane.Heal(controlplanetest.JobCredential) })
			return success(ctx, run)
		}
		l.restart()
		l.pair()
		l.plane.AddJob(job())
		view := l.wait("the run ended", func(controlplanetest.View) bool {
			st := l.sup.Status()
			counts, err := l.journal.Counts(context.Background())
			return err == nil && st.Running == nil && counts[journal.Delivered]+counts[journal.Abandoned] > 0
		})
		if view.Counts.AcceptedResults != 1 {
			t.Errorf("%d results were accepted", view.Counts.AcceptedResults)
		}
	})
}

// A host works for years: what nobody has any more is no secret.
func TestTokensAreForgottenInTheEnd(t *testing.T) {
	withCredentials(t, controlplanetest.Options{}, func(ctx context.Context, l *lab, run jobs.Run) {
		token, err := run.Credentials.Credential(ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		known := func() [2]bool {
			return [2]bool{l.secrets.Contains([]byte(token)), l.secrets.Contains([]byte(run.Job.Token))}
		}
		if known() != [2]bool{true, true} {
			t.Errorf("at the beginning: %v", known())
		}
		time.Sleep(20 * time.Minute)
		if !known()[0] {
			t.Error("the repository token was forgotten within the lease")
		}
		time.Sleep(2 * time.Hour)
		if known() != [2]bool{} {
			t.Errorf("when all is over: %v", known())
		}
	})
}

// Attack case D05: the token shows in no text.
func TestD05CredentialsPrintNothing(t *testing.T) {
	withCredentials(t, controlplanetest.Options{}, func(ctx context.Context, l *lab, run jobs.Run) {
		token, err := run.Credentials.Credential(ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		if !l.secrets.Contains([]byte(token)) || !l.secrets.Contains([]byte(run.Job.Token)) {
			t.Error("repository or lease token is no known secret")
		}
		var _ protocol.RepoToken = token
	})
}
