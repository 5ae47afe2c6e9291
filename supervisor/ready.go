package supervisor

import (
	"context"
	"sync/atomic"
	"time"
)

// Check is one reason why no work can be taken. Say returns "" while all is
// well, else one sentence that says what to do. It may be slow: nothing waits
// for it.
type Check struct {
	// Reason is a label of ready{reason}: provider, image, runner, signer,
	// policy, disk, budget, panic.
	Reason string
	Say    func() string
}

const (
	reasonOK        = "ok"
	reasonNotPaired = "not_paired"
	reasonRole      = "role"
	reasonProvider  = "provider"
	reasonDraining  = "draining"

	// readyEvery is how often the checks are asked.
	readyEvery = 2 * time.Second
	// readyStale is when the last answers no longer count: a check hangs.
	readyStale = 30 * time.Second
)

// readiness is the first reason that holds, and whether the provider is well.
type readiness struct {
	Reason, Sentence string
	Provider         string // why the provider is not ready, or ""
	At               time.Time
}

func (r readiness) ok() bool { return r.Reason == reasonOK }

// watch asks the checks in turn and keeps what they said last. It is the only
// goroutine that calls them.
type watch struct {
	checks []Check
	last   atomic.Pointer[readiness]
	// changed is told when another reason holds than before.
	changed func()
}

func newWatch(checks []Check, changed func()) *watch {
	w := &watch{checks: checks, changed: changed}
	w.last.Store(unasked(checks))
	return w
}

// unasked is what holds before the first answers: nothing is ready yet.
func unasked(checks []Check) *readiness {
	r := &readiness{Reason: reasonOK}
	const sentence = "The host is being checked."
	for _, check := range checks {
		if r.ok() {
			r.Reason, r.Sentence = check.Reason, sentence
		}
		if check.Reason == reasonProvider {
			r.Provider = sentence
		}
	}
	return r
}

// now is the last answer; one that is too old is a reason of its own.
func (w *watch) now(at time.Time) readiness {
	last := *w.last.Load()
	if len(w.checks) > 0 && !last.At.IsZero() && at.Sub(last.At) > readyStale {
		last.Reason, last.Sentence = "runner", "A check of this host does not answer."
	}
	return last
}

// ask calls every check once.
func (w *watch) ask() {
	r := readiness{Reason: reasonOK}
	for _, check := range w.checks {
		sentence := check.Say()
		if sentence == "" {
			continue
		}
		if check.Reason == reasonProvider {
			r.Provider = sentence
		}
		if r.ok() {
			r.Reason, r.Sentence = check.Reason, sentence
		}
	}
	r.At = time.Now()
	before := w.last.Swap(&r)
	if before.Reason != r.Reason || before.Provider != r.Provider {
		w.changed()
	}
}

// run asks until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		w.ask()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
