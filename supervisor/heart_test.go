package supervisor_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// gaps is a way to the plane that notes when beats start.
type gaps struct {
	http.RoundTripper
	mu     sync.Mutex
	starts []time.Time
}

func (g *gaps) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == protocol.PathHeartbeat {
		g.mu.Lock()
		g.starts = append(g.starts, time.Now())
		g.mu.Unlock()
	}
	return g.RoundTripper.RoundTrip(r)
}

// check fails on a gap over most or under least from the n-th beat on.
func (g *gaps) check(t *testing.T, from int, least, most time.Duration) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.starts) < from+2 {
		t.Fatalf("only %d beats", len(g.starts))
	}
	for i := from + 1; i < len(g.starts); i++ {
		if gap := g.starts[i].Sub(g.starts[i-1]); gap > most || gap < least {
			t.Errorf("gap %d is %v, want %v to %v", i, gap, least, most)
		}
	}
}

func (g *gaps) first() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.starts[0]
}

func (g *gaps) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.starts)
}

func inPacedLab(t *testing.T, test func(l *lab, g *gaps)) {
	t.Helper()
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		g := &gaps{RoundTripper: l.way}
		l.way = g
		l.restart()
		test(l, g)
	})
}

func TestBeatsKeepTheirInterval(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		l.pair()
		l.pass(100 * time.Second)
		g.check(t, 1, 5*time.Second, 5*time.Second)
	})
}

// What changed there may have brought a task: the beat after it comes as soon as
// the protocol lets it, and the one after that in its time.
func TestBeatsComeSoonerOnceSomethingChanged(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		l.worker = success
		l.restart()
		l.pair()
		l.pass(11 * time.Second)
		want := []time.Duration{protocol.HeartbeatFloor, 5 * time.Second} // the first beat confirms the pairing
		for range 3 {
			g.wantLast(t, want...)
			l.plane.AddJob(job())
			l.pass(7 * time.Second)
			want = []time.Duration{5 * time.Second, protocol.HeartbeatFloor}
		}
		if got := l.plane.View().Counts.AcceptedResults; got != 3 {
			t.Errorf("%d results were accepted, want 3", got)
		}
	})
}

// wantLast compares the last gaps.
func (g *gaps) wantLast(t *testing.T, want ...time.Duration) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, gap := range want {
		at := len(g.starts) - len(want) + i
		if at < 1 || g.starts[at].Sub(g.starts[at-1]) != gap {
			t.Errorf("beats at %v, the last gaps should be %v", g.starts, want)
			return
		}
	}
}

// Attack case G01 and protocol section 4: whatever the answer, no gap is over
// ten seconds, and nothing is made of a broken answer.
func TestG01NoAnswerStretchesTheGap(t *testing.T) {
	for name, fault := range map[string]controlplanetest.Fault{
		"lost":          {Lose: true},
		"answer lost":   {Lose: true, Effect: true},
		"never answers": {Effect: true}, // Delay is set in the bubble
		"500":           {Status: 500, Body: "<html>"},
		"502":           {Status: 502, Body: "<html>"},
		"429":           {Status: 429, Header: http.Header{"Retry-After": {"86400"}}},
		"redirect":      {Redirect: "https://elsewhere.example/"},
		"empty":         {Status: 200, ContentType: "application/json"},
		"null":          {Status: 200, ContentType: "application/json", Body: "null"},
		"list":          {Status: 200, ContentType: "application/json", Body: "[]"},
		"other agent":   {Status: 200, ContentType: "application/json", Body: `{"ok":true,"agent_id":"` + someLease + `"}`},
		"cut":           {CutBody: true},
		"404":           {Status: 404, Body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			inPacedLab(t, func(l *lab, g *gaps) {
				l.pair()
				l.pass(11 * time.Second)
				from := g.count() - 1
				if name == "never answers" {
					fault.Delay = make(chan struct{})
				}
				l.plane.Fault(controlplanetest.Heartbeat, 0, fault)
				l.pass(5 * time.Minute)
				g.check(t, from, 700*time.Millisecond, protocol.HeartbeatGap)
				if s := l.sup.Status(); s.Pairing != supervisor.Paired || s.Running != nil {
					t.Errorf("status %+v", s)
				}
				l.plane.Heal(controlplanetest.Heartbeat)
				beats := l.plane.View().Counts.Beats
				l.wait("beats are stored again", func(v controlplanetest.View) bool { return v.Counts.Beats > beats+1 })
			})
		})
	}
}

func TestFirstBeatWaitsForTheClaimToBeStored(t *testing.T) {
	var stored chan struct{}
	inLab(t, controlplanetest.Options{Qualified: true, BeforeStore: func() { <-stored }}, func(l *lab) {
		stored = make(chan struct{})
		g := &gaps{RoundTripper: l.way}
		l.way = g
		l.restart()
		claimed := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); l.introduce("") }()
		l.pass(20 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Claimed {
			t.Errorf("pairing %s before the first 200", s.Pairing)
		}
		g.check(t, 0, 2*time.Second, 2*time.Second)
		if first := g.first().Sub(claimed); first != time.Second {
			t.Errorf("the first beat came %v after the claim, want 1s", first)
		}
		close(stored)
		<-done
		l.pass(3 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Paired {
			t.Errorf("pairing %s after the first 200", s.Pairing)
		}
	})
}

// UNHEALTHY from an active agent is stored and answered 500: no outage.
func TestUnhealthyIsNoOutage(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		why := newSentence("")
		l.checks = []supervisor.Check{{Reason: "disk", Say: why.say}}
		l.restart()
		l.pair()
		why.set("The disk is nearly full.")
		l.pass(11 * time.Second)
		from := g.count() - 1
		before := l.plane.View()
		l.pass(100 * time.Second)
		g.check(t, from, 5*time.Second, 5*time.Second)
		view := l.plane.View()
		if n := view.Counts.Beats - before.Counts.Beats; n < 19 {
			t.Errorf("%d UNHEALTHY beats were stored, want 20", n)
		}
		beat := view.Agents[0].LastBeat
		if beat["health"] != "UNHEALTHY" || beat["message"] != why.say() || beat["provider_ready"] != true {
			t.Errorf("beat %v", beat)
		}
		if s := l.sup.Status(); s.Ready != "disk" || s.BeatResult != "unhealthy" {
			t.Errorf("status %+v", s)
		}
		why.set("")
		l.pass(10 * time.Second)
		if s := l.sup.Status(); s.Ready != "ok" || s.BeatResult != "ok" {
			t.Errorf("status after healing %+v", s)
		}
	})
}

// Attack cases G11 and H11: only a lasting 401 opens the door again, and only to
// the same agent.
func TestG11LastingRefusalOpensTheDoorForTheSameAgent(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		id := l.pair()
		if _, err := l.sup.Link(false); err != supervisor.ErrPaired {
			t.Fatalf("link while paired: %v", err)
		}
		l.plane.Fault(controlplanetest.Heartbeat, 0, controlplanetest.Fault{
			Status: 401, ContentType: "application/json", Body: `{"detail":"revoked"}`,
		})
		l.pass(20 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Paired {
			t.Errorf("pairing %s after 20 s of 401", s.Pairing)
		}
		l.plane.Heal(controlplanetest.Heartbeat)
		l.pass(15 * time.Second)
		l.plane.Disconnect(id)
		from := g.count()
		l.pass(20 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Paired {
			t.Errorf("two short refusals count as a lasting one: %s", s.Pairing)
		}
		l.pass(30 * time.Second)
		g.check(t, from, 700*time.Millisecond, protocol.HeartbeatGap)
		if s := l.sup.Status(); s.Pairing != supervisor.Revoked || s.Ready != "not_paired" {
			t.Fatalf("status after a lasting 401: %+v", s)
		}
		l.restart()
		link, err := l.sup.Link(false)
		if err != nil {
			t.Fatal(err)
		}
		other := l.plane.AddAgent(controlplanetest.AgentSpec{})
		if _, err := l.plane.PairWith(context.Background(), link, controlplanetest.PairOptions{
			AgentID: id, Claim: func(body map[string]any) { body["agent_id"] = other },
		}); err == nil {
			t.Error("another agent took the identity")
		}
		l.introduce(id)
		l.wait("the agent is active again", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
		l.pass(5 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Paired {
			t.Errorf("pairing %s after connecting again", s.Pairing)
		}
	})
}

// The gauge of the pairing follows it at once, both ways, and not with the next of
// the samples that are taken every few seconds.
func TestMetricsFollowThePairing(t *testing.T) {
	inLab(t, controlplanetest.Options{}, func(l *lab) {
		want := func(state supervisor.PairState, line string) {
			t.Helper()
			for range 100_000 { // milliseconds of the bubble's time
				if l.pass(time.Millisecond); l.sup.Status().Pairing == state {
					break
				}
			}
			page := httptest.NewRecorder()
			l.metrics.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if got := l.sup.Status().Pairing; got != state || !strings.Contains(page.Body.String(), "\n"+line+"\n") {
				t.Errorf("pairing %s, want %s, and %q on the page", got, state, line)
			}
		}
		want(supervisor.Unpaired, "veyra_sandboxd_paired 0")
		id := l.introduce("")
		want(supervisor.Paired, "veyra_sandboxd_paired 1")
		l.plane.Disconnect(id)
		want(supervisor.Revoked, "veyra_sandboxd_paired 0")
		l.introduce(id)
		want(supervisor.Paired, "veyra_sandboxd_paired 1")
	})
}

// A claim whose answer was lost: beats stay 500 for ever, a new link cures it.
func TestH03LostClaimAnswerIsCuredByANewLink(t *testing.T) {
	inPacedLab(t, func(l *lab, _ *gaps) {
		link, err := l.sup.Link(false)
		if err != nil {
			t.Fatal(err)
		}
		id, err := l.plane.PairWith(context.Background(), link, controlplanetest.PairOptions{LoseClaim: true})
		if err != nil {
			t.Fatal(err)
		}
		l.pass(2 * time.Minute)
		if s := l.sup.Status(); s.Pairing != supervisor.Claimed || s.Why == "" {
			t.Errorf("status %+v", s)
		}
		l.introduce(id)
		l.pass(5 * time.Second)
		if s := l.sup.Status(); s.Pairing != supervisor.Paired {
			t.Errorf("pairing %s", s.Pairing)
		}
	})
}

// Attack case G16: a lease's end is kept by the measured offset.
func TestG16OffsetOfTheClocksIsMeasured(t *testing.T) {
	inPacedLab(t, func(l *lab, g *gaps) {
		inner := g.RoundTripper
		g.RoundTripper = roundTrip(func(r *http.Request) (*http.Response, error) {
			res, err := inner.RoundTrip(r)
			if err == nil {
				res.Header.Set("Date", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
			}
			return res, err
		})
		l.pair()
		l.pass(10 * time.Second)
		if s := l.sup.Status(); s.ClockOffset < 599 || s.ClockOffset > 601 {
			t.Errorf("offset %v, want about 600", s.ClockOffset)
		}
	})
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDeliveryErrorsAreShown(t *testing.T) {
	inPacedLab(t, func(l *lab, _ *gaps) {
		id := l.pair()
		l.plane.DeliveryErrors(id, "GitHub App\x1b is not installed")
		l.pass(6 * time.Second)
		s := l.sup.Status()
		if len(s.DeliveryErrors) != 1 || s.DeliveryErrors[0].Message != "GitHub App is not installed" {
			t.Errorf("delivery errors %+v", s.DeliveryErrors)
		}
	})
}

func TestRoleMismatchTakesNoWork(t *testing.T) {
	inPacedLab(t, func(l *lab, _ *gaps) {
		id := l.plane.AddAgent(controlplanetest.AgentSpec{Configuration: map[string]any{"agent_role": "VERIFIER"}})
		l.introduce(id)
		l.pass(10 * time.Second)
		l.plane.AddJob(job())
		l.pass(time.Minute)
		s := l.sup.Status()
		if view := l.plane.View(); s.Ready != "role" || view.Agents[0].LastBeat["health"] != "UNHEALTHY" || view.Counts.Leases > 0 {
			t.Errorf("status %+v, plane %+v", s, view)
		}
	})
}
