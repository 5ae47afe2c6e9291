package supervisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// reply is a row of the table of answers (protocol section 2): what comes back,
// and what it proves.
type reply struct {
	fault controlplanetest.Fault
	// definite: a result was refused for sure.
	definite bool
	// revoked: the credential is not known any more.
	revoked bool
	// asks is the pause that the answer asks for, as far as it counts.
	asks time.Duration
	// silent holds the answer back until the caller gives up.
	silent bool
}

func status(code int, kind, body string) controlplanetest.Fault {
	return controlplanetest.Fault{Status: code, ContentType: kind, Body: body}
}

func withHeader(f controlplanetest.Fault, name, value string) controlplanetest.Fault {
	f.Header = http.Header{name: {value}}
	return f
}

const (
	asJSON = "application/json"
	asHTML = "text/html"
	page   = "<!doctype html><title>Error</title>"
	detail = `{"detail":"The lease has expired."}`
)

// replies are the rows. Every 4xx is there with JSON and without.
var replies = map[string]reply{
	"400 json":          {fault: status(400, asJSON, detail), definite: true},
	"400 html":          {fault: status(400, asHTML, page)},
	"403 json":          {fault: status(403, asJSON, detail), definite: true},
	"403 html":          {fault: status(403, asHTML, page)},
	"404 json":          {fault: status(404, asJSON, detail), definite: true},
	"404 html":          {fault: status(404, asHTML, page)},
	"405 json":          {fault: status(405, asJSON, detail), definite: true},
	"405 empty":         {fault: status(405, asJSON, "")},
	"406 json":          {fault: status(406, asJSON, detail), definite: true},
	"406 text":          {fault: status(406, "text/plain", "no")},
	"413 json":          {fault: status(413, asJSON, detail), definite: true},
	"413 html":          {fault: status(413, asHTML, page)},
	"415 json":          {fault: status(415, asJSON, detail), definite: true},
	"415 html":          {fault: status(415, asHTML, page)},
	"409 json":          {fault: status(409, asJSON, detail), definite: true},
	"409 other shape":   {fault: status(409, asJSON, `{"error":{"code":"x","message":"GitHub","request_id":"r"}}`), definite: true},
	"409 html":          {fault: status(409, asHTML, page)},
	"409 half json":     {fault: status(409, asJSON, `{"detail":"Git`)},
	"401 json":          {fault: status(401, asJSON, detail), definite: true, revoked: true},
	"401 html":          {fault: status(401, asHTML, page)},
	"429 seconds":       {fault: withHeader(status(429, asJSON, detail), "Retry-After", "20"), asks: 20 * time.Second},
	"429 an hour":       {fault: withHeader(status(429, asHTML, page), "Retry-After", "3600"), asks: 30 * time.Second},
	"500 html":          {fault: status(500, asHTML, page)},
	"500 json":          {fault: status(500, asJSON, detail)},
	"502 html":          {fault: status(502, asHTML, page)},
	"503 seconds":       {fault: withHeader(status(503, asHTML, page), "Retry-After", "10"), asks: 10 * time.Second},
	"200 html":          {fault: status(200, asHTML, page)},
	"200 empty":         {fault: status(200, asJSON, "")},
	"200 null":          {fault: status(200, asJSON, "null")},
	"200 half, done":    {fault: controlplanetest.Fault{CutBody: true}},
	"500 html, done":    {fault: controlplanetest.Fault{Effect: true, Status: 500, Body: page}},
	"504 html, done":    {fault: controlplanetest.Fault{Effect: true, Status: 504, Body: page}},
	"502 json, done":    {fault: controlplanetest.Fault{Effect: true, Status: 502, ContentType: asJSON, Body: detail}},
	"nothing":           {fault: controlplanetest.Fault{Lose: true}},
	"nothing, done":     {fault: controlplanetest.Fault{Lose: true, Effect: true}},
	"no end":            {silent: true},
	"no end, done":      {silent: true, fault: controlplanetest.Fault{Effect: true}},
	"301":               {fault: withHeader(status(301, asHTML, page), "Location", "https://elsewhere.example/")},
	"302 json":          {fault: withHeader(status(302, asJSON, detail), "Location", "https://elsewhere.example/")},
	"307":               {fault: controlplanetest.Fault{Redirect: "https://elsewhere.example/"}},
	"308 same origin":   {fault: withHeader(status(308, asHTML, page), "Location", origin+"/elsewhere/")},
	"303 without place": {fault: status(303, asHTML, page)},
}

// done tells whether the control plane did what was asked all the same.
func (r reply) done() bool { return r.fault.Effect || r.fault.CutBody }

// spoil makes the next calls of an endpoint be answered so: n of them, or all
// from now on if n is 0. The channel that nobody closes belongs to the bubble.
func (l *lab) spoil(e controlplanetest.Endpoint, r reply, n int) {
	fault := r.fault
	if r.silent {
		fault.Delay = make(chan struct{})
	}
	if n == 0 {
		l.plane.Fault(e, 0, fault)
	}
	for i := range n {
		l.plane.Fault(e, l.plane.View().Calls[e]+1+i, fault)
	}
}

// sent is one request as it left this host.
type sent struct {
	at   time.Time
	body map[string]any
}

// tape records what is sent, by endpoint, and every host that is called.
type tape struct {
	way http.RoundTripper

	mu    sync.Mutex
	sent  map[controlplanetest.Endpoint][]sent
	hosts map[string]bool
}

// RoundTrip passes a request on and records it.
func (p *tape) RoundTrip(q *http.Request) (*http.Response, error) {
	s := sent{at: time.Now()}
	if q.Body != nil {
		text, err := io.ReadAll(q.Body)
		if err != nil {
			return nil, err
		}
		_ = json.Unmarshal(text, &s.body)
		q.Body = io.NopCloser(bytes.NewReader(text))
	}
	e := controlplanetest.Endpoint(strings.TrimSuffix(strings.TrimPrefix(q.URL.Path, controlplanetest.Prefix), "/"))
	p.mu.Lock()
	p.sent[e] = append(p.sent[e], s)
	p.hosts[q.URL.Scheme+"://"+q.URL.Host] = true
	p.mu.Unlock()
	return p.way.RoundTrip(q)
}

// record begins to record, from a restart on.
func (l *lab) record() *tape {
	l.t.Helper()
	p := &tape{way: l.way, sent: map[controlplanetest.Endpoint][]sent{}, hosts: map[string]bool{}}
	l.way = p
	l.restart()
	return p
}

func (p *tape) of(e controlplanetest.Endpoint) []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]sent(nil), p.sent[e]...)
}

// values are the different values of a member, in the order of their sending.
func (p *tape) values(e controlplanetest.Endpoint, member string) []any {
	var all []any
	for _, s := range p.of(e) {
		if v := s.body[member]; len(all) == 0 || all[len(all)-1] != v {
			all = append(all, v)
		}
	}
	return all
}

// pauses returns the shortest and longest time between two calls in a row.
func (p *tape) pauses(e controlplanetest.Endpoint) (shortest, longest time.Duration) {
	all := p.of(e)
	for i := 1; i < len(all); i++ {
		pause := all[i].at.Sub(all[i-1].at)
		if longest = max(longest, pause); i == 1 || pause < shortest {
			shortest = pause
		}
	}
	return shortest, longest
}

// onlyHome wants that no redirect was followed.
func (p *tape) onlyHome(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) != 1 || !p.hosts[origin] {
		t.Errorf("hosts that were called: %v", p.hosts)
	}
}

// eachReply runs a test in a bubble for each row.
func eachReply(t *testing.T, opts controlplanetest.Options, test func(l *lab, p *tape, r reply)) {
	t.Helper()
	for name, r := range replies {
		t.Run(name, func(t *testing.T) {
			inLab(t, opts, func(l *lab) {
				p := l.record()
				test(l, p, r)
				p.onlyHome(t)
			})
		})
	}
}

// wantCalls wants the recorded number, which is the number of sends.
func (p *tape) wantCalls(t *testing.T, e controlplanetest.Endpoint, want int) {
	t.Helper()
	if got := len(p.of(e)); got != want {
		t.Errorf("%s was called %d times, want %d", e, got, want)
	}
}

// wantOneJob: one lease, one run's result taken, nothing left behind.
func (l *lab) wantOneJob() {
	l.t.Helper()
	view := l.plane.View()
	if c := view.Counts; c.AcceptedResults != 1 || c.FailedResults != 0 || c.Leases != 1 {
		l.t.Errorf("counts %+v, want one lease and one result", c)
	}
	left, err := l.journal.Unfinished(context.Background())
	if err != nil || len(left) != 0 || len(l.sup.Status().Outbox) != 0 {
		l.t.Errorf("unfinished %v, %v, outbox %+v", left, err, l.sup.Status().Outbox)
	}
}

// Beats that are answered badly three times in a row: the next comes in time,
// the pairing stands, and the job that follows is done once.
func TestAnswersToBeats(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true}, func(l *lab, p *tape, r reply) {
		l.pair()
		l.plane.AddJob(job())
		l.spoil(controlplanetest.Heartbeat, r, 3)
		l.wait("a result is accepted", accepted(1))
		l.pass(2 * time.Minute)
		l.wantOneJob()
		p.wantCalls(l.t, controlplanetest.JobResult, 1)
		if _, longest := p.pauses(controlplanetest.Heartbeat); longest > 10*time.Second {
			l.t.Errorf("a gap of %v between beats", longest)
		}
		if state := l.sup.Status().Pairing; state != supervisor.Paired {
			l.t.Errorf("the pairing is %s", state)
		}
	})
}

// The same for two minutes: beats go on in time, and only a lasting 401 opens
// the way for a new link. When it is over, so is everything else.
func TestLastingAnswersToBeats(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true}, func(l *lab, p *tape, r reply) {
		l.pair()
		l.spoil(controlplanetest.Heartbeat, r, 0)
		l.pass(2 * time.Minute)
		want := supervisor.Paired
		if r.revoked {
			want = supervisor.Revoked
		}
		if state := l.sup.Status().Pairing; state != want {
			l.t.Errorf("after two minutes the pairing is %s, want %s", state, want)
		}
		l.plane.Heal(controlplanetest.Heartbeat)
		l.plane.AddJob(job())
		l.wait("a result is accepted", accepted(1))
		l.pass(time.Minute)
		l.wantOneJob()
		if _, longest := p.pauses(controlplanetest.Heartbeat); longest > 10*time.Second {
			l.t.Errorf("a gap of %v between beats", longest)
		}
	})
}

// A configuration that doesn't come keeps nobody from working; it is asked for
// again with growing pauses and then every few minutes.
func TestAnswersToConfigurations(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true}, func(l *lab, p *tape, r reply) {
		l.spoil(controlplanetest.Configuration, r, 3)
		l.pair()
		l.plane.AddJob(job())
		l.wait("a result is accepted", accepted(1))
		l.pass(10 * time.Minute)
		l.wantOneJob()
		if n := len(p.of(controlplanetest.Configuration)); n < 4 || n > 8 {
			l.t.Errorf("the configuration was asked for %d times within ten minutes", n)
		}
		if shortest, _ := p.pauses(controlplanetest.Configuration); shortest < time.Second*3/4 {
			l.t.Errorf("it was asked for again after %v", shortest)
		}
	})
}

// A qualification's files are offered until they were judged, once.
func TestAnswersToQualifications(t *testing.T) {
	eachReply(t, controlplanetest.Options{}, func(l *lab, p *tape, r reply) {
		l.spoil(controlplanetest.Qualification, r, 3)
		l.pair()
		l.pass(5 * time.Minute)
		view := l.plane.View()
		if view.Counts.Qualifications != 1 || len(view.Agents[0].Qualifications) != 1 {
			l.t.Errorf("%d judged, attempts %+v", view.Counts.Qualifications, view.Agents[0].Qualifications)
		}
		p.wantCalls(l.t, controlplanetest.Qualification, 4)
		p.wantSameBytes(l.t, controlplanetest.Qualification, r, "files", "signature")
	})
}

// wantSameBytes wants that repeats say the same, after the pauses that were
// asked for.
func (p *tape) wantSameBytes(t *testing.T, e controlplanetest.Endpoint, r reply, members ...string) {
	t.Helper()
	first := p.of(e)[0].body
	for i, s := range p.of(e) {
		for _, member := range members {
			want, _ := json.Marshal(first[member])
			if got, _ := json.Marshal(s.body[member]); !bytes.Equal(got, want) || len(want) < 5 {
				t.Errorf("send %d: %s is %.200s, not %.200s", i+1, member, got, want)
			}
		}
	}
	shortest, longest := p.pauses(e)
	if least := max(r.asks, time.Second*3/4); shortest < least {
		t.Errorf("sent again after %v, want at least %v", shortest, least)
	}
	// Call and pause: the longest time-out of a call is below 30 s.
	if longest > time.Minute {
		t.Errorf("sent again after %v only", longest)
	}
}

// A credential is asked for again, and the job done once.
func TestAnswersToCredentialQuestions(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true}, func(l *lab, p *tape, r reply) {
		l.pair()
		l.spoil(controlplanetest.JobCredential, r, 3)
		l.plane.AddJob(job())
		l.wait("a result is accepted", accepted(1))
		l.pass(2 * time.Minute)
		l.wantOneJob()
		p.wantCalls(l.t, controlplanetest.JobCredential, 4)
		if shortest, _ := p.pauses(controlplanetest.JobCredential); shortest < max(r.asks, time.Second*3/4) {
			l.t.Errorf("asked again after %v", shortest)
		}
	})
}

// A result is sent as the same bytes until it was taken, and taken once.
func TestAnswersToResults(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true}, func(l *lab, p *tape, r reply) {
		l.pair()
		l.spoil(controlplanetest.JobResult, r, 3)
		l.plane.AddJob(job())
		l.pass(5 * time.Minute)
		l.wantOneJob()
		p.wantCalls(l.t, controlplanetest.JobResult, 4)
		p.wantSameBytes(l.t, controlplanetest.JobResult, r, "evidence", "evidence_hash", "signature")
	})
}

// The same until the lease is over. A success that was refused for sure every
// time is followed by one failure, shortly before the end; one that may have
// been taken by nothing but itself. Afterwards nothing is sent.
func TestLastingAnswersToResults(t *testing.T) {
	eachReply(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab, p *tape, r reply) {
		l.pair()
		l.spoil(controlplanetest.JobResult, r, 0)
		l.plane.AddJob(job())
		const lease = 32 * time.Minute
		l.pass(lease - 2*time.Minute)
		if hashes := p.values(controlplanetest.JobResult, "evidence_hash"); len(hashes) != 1 {
			l.t.Errorf("two minutes before the end %d different results were sent", len(hashes))
		}
		l.pass(3 * time.Minute)
		calls := len(p.of(controlplanetest.JobResult))
		l.pass(5 * time.Minute)
		p.wantCalls(l.t, controlplanetest.JobResult, calls)
		if calls < 30 || calls > 120 {
			l.t.Errorf("%d sends in half an hour", calls)
		}
		p.wantRevision(l.t, r.definite && !r.revoked)
		view := l.plane.View()
		effects := 0
		if r.done() {
			effects = 1
		}
		if view.Counts.AcceptedResults != effects || view.Counts.FailedResults != 0 || view.Counts.Leases != 1 {
			l.t.Errorf("counts %+v, want %d results", view.Counts, effects)
		}
		runs, err := l.sup.Jobs(context.Background())
		if err != nil || len(runs) != 1 || runs[0].State != "abandoned" || runs[0].Reason != "LEASE_LOST" {
			l.t.Errorf("runs %+v, %v", runs, err)
		}
	})
}

// wantRevision wants a success alone, or a success and then a failure that lets
// the job be given out again.
func (p *tape) wantRevision(t *testing.T, revised bool) {
	t.Helper()
	hashes := p.values(controlplanetest.JobResult, "evidence_hash")
	signatures := p.values(controlplanetest.JobResult, "signature")
	want := 1
	if revised {
		want = 2
	}
	if len(hashes) != want || len(signatures) != want {
		t.Fatalf("%d results and %d signatures were sent, want %d", len(hashes), len(signatures), want)
	}
	all := p.of(controlplanetest.JobResult)
	first, _ := all[0].body["evidence"].(map[string]any)
	last, _ := all[len(all)-1].body["evidence"].(map[string]any)
	if first["outcome"] != "SUCCEEDED" || revised != (last["outcome"] == "FAILED") {
		t.Errorf("first %v, last %v", first["outcome"], last["outcome"])
	}
	if revised && (last["failure_code"] != "RESULT_REFUSED" || last["failure_stage"] != "runtime_infrastructure") {
		t.Errorf("revision %v", last)
	}
}

// One unknown answer among sure refusals, wherever it stands, keeps a success
// from being followed by anything else, also over a restart.
func TestOneUnknownAnswerForbidsRevisions(t *testing.T) {
	for _, name := range []string{"500 html", "409 html", "429 seconds", "nothing", "200 half, done"} {
		for _, at := range []int{1, 2, 20} {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				inLab(t, controlplanetest.Options{Qualified: true, Attempts: 1}, func(l *lab) {
					p := l.record()
					l.pair()
					l.plane.Fault(controlplanetest.JobResult, at, replies[name].fault)
					l.spoil(controlplanetest.JobResult, replies["409 json"], 0)
					l.plane.AddJob(job())
					l.pass(15 * time.Minute)
					l.restart()
					l.pass(18 * time.Minute)
					p.wantRevision(t, false)
				})
			})
		}
	}
}
