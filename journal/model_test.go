package journal_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// model is what a run must look like after the calls so far.
type model struct {
	state   journal.State
	task    string
	token   protocol.LeaseToken
	drafts  []string // each revision's text
	sealed  int      // the newest sealed revision, 0 for none
	steps   map[string]string
	answers int
	spent   int64
	reason  string
}

func (m *model) ended() bool { return m.state == journal.Delivered || m.state == journal.Abandoned }

// TestJournalAgreesWithAModel makes random calls on three runs, right and wrong
// ones, with reopenings between them.
func TestJournalAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, err := os.MkdirTemp(fastDir(), "journal-")
		noError(t, err)
		defer os.RemoveAll(state)
		play := &player{t: t, state: state, runs: map[int]*model{}}
		play.reopen()
		defer func() { _ = play.j.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"":           func(t *rapid.T) { play.t = t; play.compare() },
			"accept":     func(t *rapid.T) { play.t = t; play.accept() },
			"checkpoint": func(t *rapid.T) { play.t = t; play.checkpoint() },
			"draft":      func(t *rapid.T) { play.t = t; play.draft() },
			"seal":       func(t *rapid.T) { play.t = t; play.seal() },
			"answer":     func(t *rapid.T) { play.t = t; play.answer() },
			"deliver":    func(t *rapid.T) { play.t = t; play.deliver() },
			"unknown":    func(t *rapid.T) { play.t = t; play.deliverUnknown() },
			"abandon":    func(t *rapid.T) { play.t = t; play.abandon() },
			"spend":      func(t *rapid.T) { play.t = t; play.spend() },
			"reopen":     func(t *rapid.T) { play.t = t; noError(t, play.j.Close()); play.reopen() },
		})
	})
}

// fastDir is a file system in memory, where syncing costs nothing, or "".
func fastDir() string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return "/dev/shm"
	}
	return ""
}

func noError(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type player struct {
	t     *rapid.T
	j     *journal.Journal
	state string
	runs  map[int]*model
}

func (p *player) reopen() {
	j, err := journal.Open(p.state)
	noError(p.t, err)
	p.j = j
}

// pick draws a run and returns its model, nil before it was accepted.
func (p *player) pick() (int, journal.Key, *model) {
	n := rapid.IntRange(0, 2).Draw(p.t, "run")
	return n, keyOf(n), p.runs[n]
}

// expect compares a call's error with the one that the model asks for.
func (p *player) expect(m *model, allowed bool, err error) bool {
	p.t.Helper()
	want := error(nil)
	switch {
	case m == nil:
		want = journal.ErrUnknown
	case !allowed:
		want = journal.ErrOrder
	}
	if !errors.Is(err, want) {
		p.t.Fatalf("got %v, want %v", err, want)
	}
	return want == nil
}

func (p *player) accept() {
	n, key, m := p.pick()
	task := rapid.StringMatching("[a-z]{1,9}").Draw(p.t, "task")
	token := protocol.LeaseToken(rapid.StringMatching("[A-Z]{1,9}").Draw(p.t, "token"))
	fresh, _, err := p.j.Accept(p.t.Context(), key, []byte(task), token, someEnd, someTime)
	noError(p.t, err)
	if fresh != (m == nil) {
		p.t.Fatalf("fresh %v", fresh)
	}
	if m == nil {
		m = &model{state: journal.Accepted, task: task, steps: map[string]string{}}
		p.runs[n] = m
	}
	if !m.ended() {
		m.token = token
	}
}

func (p *player) checkpoint() {
	_, key, m := p.pick()
	step := rapid.SampledFrom([]string{"base", "commit"}).Draw(p.t, "step")
	value := rapid.StringN(0, 5, -1).Draw(p.t, "value")
	err := p.j.Checkpoint(p.t.Context(), key, step, []byte(value))
	if p.expect(m, m != nil && !m.ended(), err) {
		m.steps[step] = value
	}
}

func (p *player) draft() {
	_, key, m := p.pick()
	body := rapid.StringMatching("[ab]{1,2}").Draw(p.t, "body")
	revision, err := p.j.DraftEvidence(p.t.Context(), key, []byte(body), hashOf(body))
	if !p.expect(m, m != nil && !m.ended(), err) {
		return
	}
	if len(m.drafts) == 0 || m.drafts[len(m.drafts)-1] != body {
		m.drafts = append(m.drafts, body)
	}
	if revision != len(m.drafts) {
		p.t.Fatalf("revision %d, want %d", revision, len(m.drafts))
	}
}

func (p *player) seal() {
	_, key, m := p.pick()
	body := rapid.StringMatching("[ab]{1,2}").Draw(p.t, "body")
	newest := m != nil && len(m.drafts) > 0 && m.drafts[len(m.drafts)-1] == body
	again := newest && m.sealed == len(m.drafts)
	err := p.j.Seal(p.t.Context(), key, hashOf(body), signatureOf(body))
	if p.expect(m, again || newest && !m.ended(), err) && !again {
		m.sealed, m.state = len(m.drafts), journal.Sealed
	}
}

func (p *player) answer() {
	_, key, m := p.pick()
	err := p.j.Answer(p.t.Context(), key, "refused", 409, someTime)
	if p.expect(m, m != nil && m.sealed > 0, err) {
		m.answers++
	}
}

func (p *player) deliver() {
	_, key, m := p.pick()
	err := p.j.Deliver(p.t.Context(), key, []byte("receipt"))
	if p.expect(m, m != nil && (m.state == journal.Sealed || m.state == journal.Delivered), err) {
		m.state = journal.Delivered
	}
}

func (p *player) deliverUnknown() {
	_, key, m := p.pick()
	err := p.j.DeliverUnknown(p.t.Context(), key)
	if p.expect(m, m != nil && (m.state == journal.Sealed || m.state == journal.Delivered), err) && m.state == journal.Sealed {
		m.state, m.reason = journal.Delivered, journal.ReasonUnknown
	}
}

func (p *player) abandon() {
	_, key, m := p.pick()
	reason := rapid.StringMatching("[a-z]{1,9}").Draw(p.t, "reason")
	err := p.j.Abandon(p.t.Context(), key, reason)
	if p.expect(m, m != nil && m.state != journal.Delivered, err) && m.state != journal.Abandoned {
		m.state, m.reason = journal.Abandoned, reason
	}
}

func (p *player) spend() {
	_, key, m := p.pick()
	tokens := rapid.Int64Range(0, 1000).Draw(p.t, "tokens")
	if p.expect(m, m != nil, p.j.Spend(p.t.Context(), key, tokens)) {
		m.spent += tokens
	}
}

// compare reads everything back.
func (p *player) compare() {
	counts := map[journal.State]int{}
	for n, m := range p.runs {
		counts[m.state]++
		rec, err := p.j.Get(p.t.Context(), keyOf(n))
		noError(p.t, err)
		got := fmt.Sprint(rec.State, string(rec.Task), rec.LeaseToken == m.token, rec.Reason, p.evidence(rec))
		want := fmt.Sprint(m.state, m.task, true, m.reason, m.evidence())
		if got != want {
			p.t.Fatalf("run %d is %s, want %s", n, got, want)
		}
		p.compareWork(n, m)
	}
	have, err := p.j.Counts(p.t.Context())
	noError(p.t, err)
	for state, n := range have {
		if n != counts[state] {
			p.t.Fatalf("%d are %s, want %d", n, state, counts[state])
		}
	}
}

func (p *player) evidence(rec journal.Record) (seen [2]string) {
	if rec.Seal != nil {
		seen[0] = fmt.Sprint(rec.Seal.Revision, string(rec.Seal.Body), rec.Seal.Signature)
	}
	if rec.Draft != nil {
		seen[1] = fmt.Sprint(rec.Draft.Revision, string(rec.Draft.Body), rec.Draft.Signature)
	}
	return seen
}

func (m *model) evidence() (want [2]string) {
	if m.sealed > 0 {
		body := m.drafts[m.sealed-1]
		want[0] = fmt.Sprint(m.sealed, body, signatureOf(body))
	}
	if last := len(m.drafts); last > m.sealed {
		want[1] = fmt.Sprint(last, m.drafts[last-1], "")
	}
	return want
}

func (p *player) compareWork(n int, m *model) {
	steps, err := p.j.Checkpoints(p.t.Context(), keyOf(n))
	noError(p.t, err)
	answers, err := p.j.Answers(p.t.Context(), keyOf(n))
	noError(p.t, err)
	spent, err := p.j.Spent(p.t.Context(), keyOf(n))
	noError(p.t, err)
	if len(steps) != len(m.steps) || len(answers) != m.answers || spent != m.spent {
		p.t.Fatalf("run %d: %d steps, %d answers, %d spent; want %+v", n, len(steps), len(answers), spent, m)
	}
	for step, value := range m.steps {
		if string(steps[step]) != value {
			p.t.Fatalf("run %d: step %s is %q, want %q", n, step, steps[step], value)
		}
	}
}
