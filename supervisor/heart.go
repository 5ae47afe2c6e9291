package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// afterClaim is how long the first beat waits: the control plane stores the
	// claim's answer after it arrives and answers 500 until then.
	afterClaim = time.Second
	// untilFirst is the pause between beats until the first 200.
	untilFirst = 2 * time.Second
	// sayAfter is when the owner is told that a claim leads to nothing.
	sayAfter = 60 * time.Second
	// unboundPause is how long an unpaired heart sleeps; a claim wakes it.
	unboundPause = time.Hour
)

// beater sends beats; controlplane.Client is the real one.
type beater interface {
	Heartbeat(ctx context.Context, beat protocol.HeartbeatRequest) controlplane.Answer[protocol.HeartbeatReply]
}

// delivery is what a beat brought.
type delivery struct {
	reply protocol.HeartbeatReply
	at    time.Time
	bound *binding
}

// heart beats. It shares no lock, queue or pool with jobs and listeners: what it
// says comes from atomic snapshots, what it brings goes into a mailbox, and what
// must be stored is stored by somebody else.
type heart struct {
	interval time.Duration
	// afterClaim and untilFirst are the pauses of a binding that is new.
	afterClaim, untilFirst time.Duration

	pairing *Pairing
	dial    func(*binding) beater
	compose func(now time.Time) protocol.HeartbeatRequest
	woken   <-chan struct{}
	urged   chan struct{} // of one
	deliver func(delivery)
	// later runs a durable write on another goroutine; false: it is busy, try
	// with the next beat.
	later func(func()) bool
	clock *clock
	note  heartNotes
	log   *slog.Logger

	// What follows belongs to the goroutine that calls step.
	bound        *binding // the last binding seen
	client       beater
	heard        bool // a beat of this binding was answered 200 in this process
	failures     int
	lost         repeats
	lastStart    time.Time
	nextStart    time.Time
	refusedSince time.Time // of 401s in a row
	told         bool      // the owner was told that a claim leads to nothing

	view atomic.Pointer[heartView]
}

// heartNotes are where measurements go; telemetry.Metrics fills them.
type heartNotes struct {
	beat   func(result string)
	gap    func(time.Duration)
	stored func(time.Time)
	offset func(time.Duration)
}

// heartView is what status shows of the heart.
type heartView struct {
	LastBeat, LastStored time.Time
	Result               string
	Said                 string
	DeliveryErrors       []protocol.DeliveryError
	RefusedSince         time.Time
}

// run beats until ctx ends.
func (h *heart) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.woken:
		case <-h.urged:
			h.hasten()
		case <-timer.C:
		}
		now := time.Now()
		timer.Reset(time.Until(h.step(ctx, now)))
	}
}

// urge asks for the next beat as soon as may be: something changed there, so
// that a task may be waiting. It never blocks.
func (h *heart) urge() {
	select {
	case h.urged <- struct{}{}:
	default: // asked already
	}
}

// hasten brings the next beat forward to the protocol's floor, and returns its
// time. A back-off stays.
func (h *heart) hasten() time.Time {
	soonest := h.lastStart.Add(protocol.HeartbeatFloor)
	if h.failures == 0 && !h.lastStart.IsZero() && soonest.Before(h.nextStart) {
		h.nextStart = soonest
	}
	return h.nextStart
}

// step sends a beat if one is due and returns when the next one is.
func (h *heart) step(ctx context.Context, now time.Time) time.Time {
	b := h.pairing.current.Load()
	if b == nil {
		return now.Add(unboundPause)
	}
	h.meet(b)
	if due := h.due(b, now); due.After(now) {
		return due
	}
	if !h.lastStart.IsZero() {
		h.note.gap(now.Sub(h.lastStart))
	}
	h.lastStart = now
	beat := h.compose(now)
	answer := h.client.Heartbeat(ctx, beat)
	if ctx.Err() != nil {
		return h.next(now, 0)
	}
	return h.take(b, beat, answer, now)
}

// meet takes note of the binding; another credential is another client.
func (h *heart) meet(b *binding) {
	if h.bound != nil && h.bound.Credential == b.Credential && h.bound.AgentID == b.AgentID {
		h.bound = b
		return
	}
	h.bound, h.client = b, h.dial(b)
	h.heard, h.told, h.failures = false, false, 0
	h.lastStart, h.refusedSince = time.Time{}, time.Time{}
}

// due is the earliest time for the next beat: a wake-up by a stored change must
// not make beats denser than the floor.
func (h *heart) due(b *binding, now time.Time) time.Time {
	if h.lastStart.IsZero() {
		first := b.ClaimedAt.Add(h.afterClaim)
		// A clock that was set back since the claim must not delay us.
		if first.After(now.Add(h.afterClaim)) {
			first = now
		}
		return first
	}
	return h.nextStart
}

// take judges an answer and returns the time of the next beat.
func (h *heart) take(b *binding, beat protocol.HeartbeatRequest, a controlplane.Answer[protocol.HeartbeatReply], start time.Time) time.Time {
	if a.Dated {
		h.clock.measured(a.Offset)
		h.note.offset(a.Offset)
	}
	result := judgeBeat(beat, a)
	h.note.beat(result)
	h.publish(result, a, start)
	h.logBeat(result, a.Say(), start)
	confirms := h.waiting() && result == "ok" // from now on there may be a task
	switch result {
	case "ok":
		h.answered(b, start)
		h.failures = 0
		h.deliver(delivery{reply: a.Reply, at: time.Now(), bound: b})
	case "unhealthy":
		// Stored all the same (protocol section 4): no outage, no back-off.
		h.note.stored(start)
		h.failures, h.refusedSince = 0, time.Time{}
	case "unauthorized":
		h.failures++
		h.refused(b, start)
	default:
		h.failures++
		h.refusedSince = time.Time{}
		h.tellOwner(b, start)
	}
	due := h.next(start, a.RetryAfter)
	if confirms {
		due = h.hasten()
	}
	return due
}

// judgeBeat names what became of a beat, in the words of heartbeats_total.
func judgeBeat(beat protocol.HeartbeatRequest, a controlplane.Answer[protocol.HeartbeatReply]) string {
	var timeout net.Error
	switch {
	case a.Class == protocol.ClassTaken && a.Reply.OK && a.Reply.AgentID == beat.AgentID:
		return "ok"
	case a.Status == 500 && a.Err == nil && (beat.Health == protocol.Unhealthy || !beat.ProviderReady):
		return "unhealthy"
	case a.Class == protocol.ClassRevoked: // a proxy's own 401 page is not
		return "unauthorized"
	case errors.As(a.Err, &timeout) && timeout.Timeout():
		return "timeout"
	case a.Status >= 400 && a.Status < 500:
		return "refused"
	}
	return "error"
}

// answered notes a 200: the first one of a binding makes it paired.
func (h *heart) answered(b *binding, start time.Time) {
	h.note.stored(start)
	h.heard, h.refusedSince = true, time.Time{}
	if b.ConfirmedAt.IsZero() || !b.RevokedAt.IsZero() {
		h.later(func() {
			if err := h.pairing.confirm(b); err != nil {
				h.log.Error("the pairing could not be stored: trying again with the next beat", "error", err)
			}
		})
	}
}

// refused notes a 401. When it lasts the owner has disconnected this runtime:
// links are possible again, identity and key stay.
func (h *heart) refused(b *binding, start time.Time) {
	if h.refusedSince.IsZero() {
		h.refusedSince = start
	}
	lasting := start.Sub(h.refusedSince) >= protocol.RevokedAfter
	if !lasting || b.state() != Paired {
		return
	}
	h.later(func() {
		if err := h.pairing.revoked(b); err != nil {
			h.log.Error("the end of the pairing could not be stored", "error", err)
			return
		}
		h.log.Warn("the control plane no longer knows this runtime: its owner disconnected it or paired it anew; a new link is possible")
	})
}

// tellOwner says once that a claim leads to nothing.
func (h *heart) tellOwner(b *binding, start time.Time) {
	if h.heard || h.told || !b.ConfirmedAt.IsZero() || start.Sub(b.ClaimedAt) < sayAfter {
		return
	}
	h.told = true
	h.log.Warn("claimed a minute ago and no beat was taken yet: the answer to the claim may have been lost; make a new link and connect again")
}

// waiting tells whether the binding is new and no beat of it was answered 200.
func (h *heart) waiting() bool { return !h.heard && h.bound.ConfirmedAt.IsZero() }

// pause is the shortest time from the start of one beat to the next.
func (h *heart) pause() time.Duration {
	if h.waiting() {
		return h.untilFirst
	}
	if h.failures == 0 {
		return h.interval
	}
	return min(time.Second<<min(h.failures-1, 4), protocol.HeartbeatGap)
}

// next is when the next beat starts: backed off with jitter, never more than
// HeartbeatGap after the start of the last one.
func (h *heart) next(start time.Time, retryAfter time.Duration) time.Time {
	wait := h.pause()
	if h.failures > 0 && !h.waiting() {
		wait = min(max(wait, retryAfter), protocol.HeartbeatGap)
		wait -= rand.N(wait/4 + 1)
	}
	h.nextStart = start.Add(wait)
	return h.nextStart
}

func (h *heart) publish(result string, a controlplane.Answer[protocol.HeartbeatReply], start time.Time) {
	view := heartView{LastBeat: start, Result: result, RefusedSince: h.refusedSince}
	if old := h.view.Load(); old != nil {
		view.LastStored = old.LastStored
	}
	if result == "ok" || result == "unhealthy" {
		view.LastStored = start
	} else {
		view.Said = a.Say()
	}
	for _, e := range a.Reply.DeliveryErrors[:min(len(a.Reply.DeliveryErrors), 10)] {
		view.DeliveryErrors = append(view.DeliveryErrors, protocol.DeliveryError{
			Stage: oneLine(e.Stage, 80), Message: oneLine(e.Message, 500),
		})
	}
	h.view.Store(&view)
}

// logBeat logs a failure as often as a repeated one is worth it, and the end.
func (h *heart) logBeat(result, said string, start time.Time) {
	if result == "ok" || result == "unhealthy" {
		if n := h.lost.recovered(); n > 0 {
			h.log.Info("beats are taken again", "lost", n)
		}
		return
	}
	if h.lost.failed(start) {
		h.log.Warn("a beat was not taken", "result", result, "said", said, "so_far", h.lost.count)
	}
}
