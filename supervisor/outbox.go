package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// submitter sends results; controlplane.Client is the real one.
type submitter interface {
	SubmitJobResult(ctx context.Context, r protocol.JobResultRequest) controlplane.Answer[protocol.JobResultReply]
	SubmitQualification(ctx context.Context, r protocol.QualificationSubmission) controlplane.Answer[protocol.QualificationReply]
	SubmitVerificationResult(ctx context.Context, r protocol.VerificationResultRequest) controlplane.Answer[protocol.VerificationResultReply]
}

// verdict is what one send came to.
type verdict struct {
	taken    bool
	revoked  bool
	definite bool // a refusal that proves that nothing was stored
	status   int
	class    string
	say      string
	wait     time.Duration
	receipt  []byte
}

// outbox sends every sealed result until it is answered for good. Each result
// has a goroutine of its own.
type outbox struct {
	s *Supervisor

	mu      sync.Mutex
	entries map[runKey]*entry
	waiting sync.WaitGroup
}

// entry is one result on its way.
type entry struct {
	lease  *lease
	sealed sealed
	// kept is closed once the owner's copy was written, or could not be.
	kept <-chan struct{}
	// unknown says that some send of any revision was not refused for sure: it
	// may have been stored, so nothing else may ever follow.
	unknown bool
	// revised says that a failure has taken the place of the result.
	revised bool
	lost    repeats
	// sends and said are for status, under the outbox's mu.
	sends int
	said  string
}

func newOutbox(s *Supervisor) *outbox { return &outbox{s: s, entries: map[runKey]*entry{}} }

func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.entries) == 0
}

// add begins to send a result. past are the answers that the journal holds of
// earlier sends.
func (o *outbox) add(l *lease, e sealed, past []journal.Answer) {
	entry := &entry{lease: l, sealed: e, kept: o.keep(nil, l.key, e), unknown: holdsUnknown(past), revised: e.revision > 1}
	o.mu.Lock()
	o.entries[l.key] = entry
	o.waiting.Add(1)
	o.mu.Unlock()
	go func() {
		defer o.waiting.Done()
		o.deliver(entry)
		<-entry.kept
		o.mu.Lock()
		defer o.mu.Unlock()
		// Whoever added a revision has replaced the entry.
		delete(o.entries, l.key)
		o.s.leases.remove(l.key)
	}()
}

// keep writes the owner's copy beside the send, after the copy before it. The
// journal's counts, and is written.
func (o *outbox) keep(before <-chan struct{}, key runKey, e sealed) <-chan struct{} {
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if before != nil {
			<-before
		}
		o.s.keepEvidence(key, e)
	}()
	return kept
}

// size is how many results are on their way, and when the oldest was sealed.
func (o *outbox) size() (n int, oldest time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.entries {
		if oldest.IsZero() || e.sealed.at.Before(oldest) {
			oldest = e.sealed.at
		}
	}
	return len(o.entries), oldest
}

// classSending is journaled before a send and says that its answer is not known.
const (
	classSending  = "sending"
	classDefinite = "definite"
)

// holdsUnknown tells whether any send was not refused for sure: its answer said
// so, or a crash left it without one.
func holdsUnknown(past []journal.Answer) bool {
	open := 0
	for _, a := range past {
		switch a.Class {
		case classSending:
			open++
		case classDefinite:
			open--
		default:
			return true
		}
	}
	return open > 0
}

// deliver sends until the result is taken, or until we know by ourselves that
// it can't be any more: lease over, or a newer one seen.
func (o *outbox) deliver(e *entry) {
	ctx := e.lease.ctx
	for try := 0; ctx.Err() == nil; try++ {
		if e.over() {
			o.expire(e)
			return
		}
		v := o.send(ctx, e)
		o.publish(e, v)
		if v.taken {
			o.taken(ctx, e, v)
			return
		}
		if o.reviseNow(e, v) {
			o.revise(ctx, e)
			try = 0
			continue
		}
		if wait.For(ctx, o.wait(e, v, try)) != nil {
			break
		}
	}
	if !stopped(ctx) && !errors.Is(context.Cause(ctx), errCancelled) {
		o.abandon(e, reasonOf(ctx, ""))
	}
	// Else this process ends: the journal keeps the result for the next one.
}

// qualificationKept is how long a submission is offered. Its lease moves with
// beats and may come back to life, so only age or a newer one ends it.
const qualificationKept = 24 * time.Hour

// over tells whether a result can't be taken any more, by our own knowledge.
func (e *entry) over() bool {
	if e.lease.key.Kind == journal.KindQualification {
		return time.Since(e.sealed.at) > qualificationKept
	}
	return e.lease.left() <= 0
}

// expire ends a result that can't be taken any more. A verdict that may have
// been is told apart: after the lease not even the same one is answered (protocol
// section 7, step 4).
func (o *outbox) expire(e *entry) {
	switch {
	case e.lease.key.Kind == journal.KindVerification && e.unknown:
		o.unanswered(e)
	case o.s.parts.Pairing.State() == Revoked:
		o.abandon(e, string(protocol.CodeRevoked))
	default:
		o.abandon(e, string(protocol.CodeLeaseLost))
	}
}

// sentUnanswered is what status says of a verdict without an answer.
const sentUnanswered = "A verdict was sent, but no answer came before its lease ended: it is kept as delivered, unknown."

func (o *outbox) unanswered(e *entry) {
	key := e.lease.key
	o.s.log.Warn("a verdict was not answered before its lease ended", "assignment", key.ID, "lease", key.Lease,
		"sends", e.sends, "last_answer", e.said)
	o.s.note(sentUnanswered)
	o.s.board.showReview(protocol.AssignmentID(key.ID), protocol.VerificationSubmitted, protocol.VerificationSubmitting,
		"The verdict was sent and not answered before the lease ended")
	if err := o.s.parts.Journal.DeliverUnknown(context.Background(), key); err != nil {
		o.s.log.Error("the end of a run could not be journaled", "error", err)
	}
}

// wait is the pause before the next send: growing, as the answer asks, and not
// past the moment when a revision is due.
func (o *outbox) wait(e *entry, v verdict, try int) time.Duration {
	wait := max(backoff(try), v.wait)
	if e.lease.key.Kind == journal.KindQualification {
		return wait
	}
	if due := e.lease.left() - protocol.ResendUntil; due > 0 {
		wait = min(wait, due)
	}
	return min(wait, max(e.lease.left(), 0))
}

// send journals that it sends, sends, and journals what came back: a crash in
// between counts as an unknown answer.
func (o *outbox) send(ctx context.Context, e *entry) verdict {
	client := o.s.client.Load()
	if client == nil || o.s.parts.Pairing.State() == Revoked {
		return verdict{revoked: true, class: "revoked", say: "not connected"}
	}
	if err := o.s.parts.Journal.Answer(ctx, e.lease.key, classSending, 0, time.Now()); err != nil {
		return verdict{say: "the journal can't be written: " + err.Error()}
	}
	o.mu.Lock()
	e.sends++
	o.mu.Unlock()
	v := o.call(ctx, client, e)
	class := v.class
	if v.definite {
		class = classDefinite
	} else if !v.taken {
		e.unknown = true
	}
	// A shutdown must not keep the answer from being stored.
	if err := o.s.parts.Journal.Answer(context.WithoutCancel(ctx), e.lease.key, class, v.status, time.Now()); err != nil {
		o.s.log.Error("an answer could not be journaled", "error", err)
	}
	return v
}

func (o *outbox) call(ctx context.Context, client submitter, e *entry) verdict {
	switch e.lease.key.Kind {
	case journal.KindQualification:
		return o.callQualification(ctx, client, e)
	case journal.KindVerification:
		a := client.SubmitVerificationResult(ctx, protocol.VerificationResultRequest{
			VerificationID: protocol.AssignmentID(e.lease.key.ID), LeaseToken: e.lease.newest(),
			Report: e.sealed.body, Signature: e.sealed.signature,
		})
		v := judge(a)
		v.taken = v.taken && a.Reply.OK && string(a.Reply.VerificationID) == e.lease.key.ID
		v.receipt, _ = json.Marshal(a.Reply)
		return v
	}
	a := client.SubmitJobResult(ctx, protocol.JobResultRequest{
		AssignmentID: protocol.AssignmentID(e.lease.key.ID), LeaseToken: e.lease.newest(),
		Evidence: e.sealed.body, EvidenceHash: e.sealed.hash, Signature: e.sealed.signature,
	})
	v := judge(a)
	v.taken = v.taken && a.Reply.OK && string(a.Reply.AssignmentID) == e.lease.key.ID
	v.receipt, _ = json.Marshal(a.Reply)
	return v
}

func (o *outbox) callQualification(ctx context.Context, client submitter, e *entry) verdict {
	sub, err := o.s.readSubmission(ctx, e.lease.key)
	if err != nil {
		return verdict{say: err.Error()}
	}
	request := protocol.QualificationSubmission{
		QualificationID: protocol.QualificationID(e.lease.key.ID), LeaseToken: e.lease.newest(),
		Provider: orUnset(o.s.config.Provider), Model: orUnset(o.s.config.Model), RuntimeVersion: o.s.config.Version,
		Files: e.sealed.body, TestReturnCode: sub.TestReturnCode, TestOutput: sub.TestOutput,
		Signature: e.sealed.signature, RuntimeError: sub.RuntimeError,
	}
	if sub.RuntimeError != "" {
		request.Files, request.Signature = nil, ""
	}
	a := client.SubmitQualification(ctx, request)
	v := judge(a)
	v.taken = v.taken && a.Reply.OK && string(a.Reply.QualificationID) == e.lease.key.ID
	v.receipt, _ = json.Marshal(a.Reply)
	if v.taken {
		o.s.qualified(a.Reply)
	}
	return v
}

func judge[T any](a controlplane.Answer[T]) verdict {
	return verdict{
		taken: a.Class == protocol.ClassTaken, revoked: a.Class == protocol.ClassRevoked,
		definite: a.Definite, status: a.Status, class: a.Class.String(), say: a.Say(), wait: a.RetryAfter,
	}
}

// taken ends a result well.
func (o *outbox) taken(ctx context.Context, e *entry, v verdict) {
	key := e.lease.key
	o.s.log.Info("delivered", "assignment", key.ID, "lease", key.Lease, "revision", e.sealed.revision, "hash", e.sealed.hash)
	<-e.kept
	for try := 0; ; try++ {
		err := o.s.parts.Journal.Deliver(context.WithoutCancel(ctx), key, v.receipt)
		if err == nil {
			break
		}
		// The next start would send the same bytes once more: harmless.
		o.s.log.Error("the delivery could not be journaled", "error", err)
		if wait.For(ctx, backoff(try)) != nil {
			return
		}
	}
	o.s.showDelivered(key, e.sealed)
	o.s.heart.urge()
}

func (o *outbox) abandon(e *entry, reason string) {
	key := e.lease.key
	o.s.log.Error("a sealed result was not taken and is kept", "assignment", key.ID, "lease", key.Lease,
		"reason", reason, "sends", e.sends, "last_answer", e.said)
	if err := o.s.parts.Journal.Abandon(context.Background(), key, reason); err != nil {
		o.s.log.Error("the end of a run could not be journaled", "error", err)
	}
}

// publish keeps what was said, for status and the log.
func (o *outbox) publish(e *entry, v verdict) {
	o.mu.Lock()
	e.said = v.say
	o.mu.Unlock()
	if !v.taken && e.lost.failed(time.Now()) {
		o.s.log.Warn("a result was not taken", "so_far", e.lost.count, "assignment", e.lease.key.ID, "lease", e.lease.key.Lease,
			"class", v.class, "said", v.say, "left", e.lease.left().Round(time.Second).String())
	}
}

// reviseNow tells whether a failure should now take the place of a result:
// every answer was a definite refusal, the lease is nearly over, and the failure
// lets the job be given out again.
func (o *outbox) reviseNow(e *entry, v verdict) bool {
	return e.lease.key.Kind == journal.KindJob && v.definite && !v.revoked && !e.unknown && !e.revised &&
		e.lease.left() <= protocol.ResendUntil+time.Second && succeeded(e.sealed.body)
}

func succeeded(body []byte) bool {
	var said struct {
		Outcome string `json:"outcome"`
	}
	return json.Unmarshal(body, &said) == nil && said.Outcome == protocol.OutcomeSucceeded
}

// revise seals a RESULT_REFUSED in place of the result; both stay in the
// journal.
func (o *outbox) revise(ctx context.Context, e *entry) {
	e.revised = true
	next, err := o.s.sealRevision(ctx, e.lease, e.sealed)
	if err != nil {
		o.s.log.Error("a refused result could not be revised", "error", err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e.sealed, e.kept = next, o.keep(e.kept, e.lease.key, next)
}
