package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// leastLease is what must be left of a lease for anything to be worth
	// starting; with less a task ends LEASE_TOO_SHORT.
	leastLease = 2 * time.Minute
	// qualificationLease is how long a qualification's lease lasts from the
	// last delivery.
	qualificationLease = 15 * time.Minute
	// lookEvery is how often waiting tasks and the lease are looked at.
	lookEvery = 250 * time.Millisecond
	// storeTokenEvery bounds how often the newest token goes to the disk: older
	// ones stay valid for the lease and two minutes.
	storeTokenEvery = time.Minute
)

// dispatcher takes what beats deliver and runs one task at a time. One goroutine
// owns it.
type dispatcher struct {
	s       *Supervisor
	current *run
	// resume holds what recovery found, the oldest first.
	resume []resumable
	// doubtful are those whose lease is over by a clock that may be wrong.
	doubtful []resumable
	// began is when this process did.
	began time.Time
	// waiting is a task that was left unanswered because this host is not ready;
	// UNHEALTHY beats bring no task, so it would not come again. nil: none.
	waiting *waitingTask
	// unanswered is a delivery whose qualification waits in the same way.
	unanswered *delivery
	// stored is when each lease's token was last put on the disk.
	stored map[runKey]time.Time
	// said keeps oddities from being logged with every beat.
	said map[string]bool
}

func newDispatcher(s *Supervisor, resume []resumable) *dispatcher {
	d := &dispatcher{s: s, began: time.Now(), stored: map[runKey]time.Time{}, said: map[string]bool{}}
	for _, one := range resume {
		if one.lapsed() {
			d.doubtful = append(d.doubtful, one)
		} else {
			d.resume = append(d.resume, one)
		}
	}
	return d
}

// run dispatches until ctx ends or, while draining, until nothing is left to do.
func (d *dispatcher) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var ended chan struct{}
		if d.current != nil {
			ended = d.current.done
		}
		select {
		case <-ctx.Done():
			return
		case v := <-d.s.mail.values():
			d.take(ctx, v)
		case <-ended:
			d.current = nil
			d.s.running.Store(nil)
		case <-tick.C:
		}
		d.settle(ctx)
		d.resumeNext(ctx)
		d.reconsider(ctx)
		d.watchLease()
		if d.current == nil && d.s.draining.Load() && (d.s.cancelling.Load() || d.s.outbox.empty()) {
			close(d.s.idle)
			return
		}
	}
}

// waitingTask is one that may still be started or refused.
type waitingTask struct {
	lease *lease
	v     delivery
	task  assigned
}

// reconsider looks again at a task that waits.
func (d *dispatcher) reconsider(ctx context.Context) {
	if v := d.unanswered; v != nil && d.current == nil && time.Since(v.at) < qualificationLease {
		d.unanswered = nil
		d.qualification(ctx, *v)
	}
	w := d.waiting
	switch {
	case w == nil || d.current != nil || d.s.draining.Load():
	case w.lease.left() <= 0 || w.lease.ctx.Err() != nil:
		d.waiting = nil
	default:
		d.decide(ctx, w.lease, w.v, w.task)
	}
}

// once logs a sentence the first time only.
func (d *dispatcher) once(key, sentence string, args ...any) {
	if d.said[key] {
		return
	}
	if len(d.said) > 1000 {
		clear(d.said)
	}
	d.said[key] = true
	d.s.log.Warn(sentence, args...)
}

// take judges one delivery: a worker takes qualifications and jobs only, a
// verifier verifications only, whatever is delivered. A task that is missing from
// it is not cancelled.
func (d *dispatcher) take(ctx context.Context, v delivery) {
	if d.current != nil {
		d.current.lease.absent(v.at)
	}
	d.s.leases.follow(d.s.clock)
	if d.waiting != nil {
		d.waiting.lease.follow(d.s.clock)
	}
	for kind, raw := range map[string]json.RawMessage{
		journal.KindQualification: v.reply.QualificationTask, journal.KindJob: v.reply.JobTask,
		journal.KindVerification: v.reply.VerificationTask,
	} {
		if protocol.Present(raw) && !d.s.does(kind) {
			d.once("role:"+kind, "a task of the other role was delivered and is ignored", "kind", kind, "role", d.s.config.Role)
		}
	}
	verifier := d.s.config.Role == protocol.RoleVerifier
	switch {
	case verifier && protocol.Present(v.reply.VerificationTask):
		d.assignment(ctx, v, journal.KindVerification, v.reply.VerificationTask)
	case verifier:
	case protocol.Present(v.reply.QualificationTask):
		d.qualification(ctx, v)
	case protocol.Present(v.reply.JobTask):
		d.assignment(ctx, v, journal.KindJob, v.reply.JobTask)
	}
}

// assignment judges a delivered job or verification: known, newer, refused or
// started.
func (d *dispatcher) assignment(ctx context.Context, v delivery, kind string, raw json.RawMessage) {
	task, unleased := d.s.readAssigned(kind, raw)
	if unleased != nil {
		d.s.note("A " + kind + " without valid ids was delivered and cannot be answered.")
		d.once("ids", "a task without valid ids was delivered and cannot be answered", "kind", kind, "error", unleased)
		return
	}
	held := task.lease
	key := runKey{Kind: kind, ID: string(held.Assignment), Lease: string(held.ID)}
	if d.known(ctx, key, raw, held.Token, nil) || d.busy(key) {
		return
	}
	end := d.s.clock.local(held.Ends)
	if !end.After(time.Now()) {
		d.once("over:"+key.Lease, "a task whose lease is over was delivered and is not started", "kind", kind, "assignment", key.ID)
		return
	}
	l := d.leaseOf(key, held.Token, end)
	if l.theirs.IsZero() { // at first sight
		l.theirs = held.Ends
	}
	d.decide(ctx, l, v, task)
}

// leaseOf is the lease of a new run, or of one that waits already.
func (d *dispatcher) leaseOf(key runKey, token protocol.LeaseToken, end time.Time) *lease {
	if w := d.waiting; w != nil {
		if w.lease.key == key {
			w.lease.renew(token, *w.lease.end.Load())
			return w.lease
		}
		w.lease.lose(errEnded)
		d.waiting = nil
	}
	return d.s.newLease(key, token, end)
}

// decide starts a new task, refuses it, or leaves it unanswered for a while.
func (d *dispatcher) decide(ctx context.Context, l *lease, v delivery, task assigned) {
	l.digest = contentDigest(task.raw)
	work, err := task.prepare(v.bound.Origin)
	if err != nil {
		d.begin(ctx, l, task, func(r *run, _ time.Time) {
			r.log.Warn("the task is invalid", "error", err)
			task.refuse(r, protocol.CodeTaskInvalid, err.Error())
		})
		return
	}
	if l.left() < leastLease {
		d.begin(ctx, l, task, func(r *run, _ time.Time) {
			task.refuse(r, protocol.CodeLeaseTooShort, fmt.Sprintf("%s were left of the lease.", l.left().Round(time.Second)))
		})
		return
	}
	if code, why := d.s.unready(); code != "" {
		d.wait(ctx, l, v, task, code, why)
		return
	}
	d.begin(ctx, l, task, func(r *run, accepted time.Time) { work(l.ctx, r, accepted) })
}

// wait leaves a task unanswered while this host may still become ready in time.
// Answering at once would burn a job's four attempts within seconds.
func (d *dispatcher) wait(ctx context.Context, l *lease, v delivery, task assigned, code protocol.Code, why string) {
	d.waiting = &waitingTask{l, v, task}
	if l.left() > lastMoment(task.minutes) {
		d.s.note("A " + task.kind + " waits: " + why)
		d.once("wait:"+l.key.Lease+why, "a task was delivered and waits", "kind", task.kind, "assignment", l.key.ID, "why", why)
		return
	}
	d.begin(ctx, l, task, func(r *run, _ time.Time) { task.refuse(r, code, why) })
}

// lastMoment is what must be left of a lease for a task to be started at all: a
// quarter of its minutes, not under leastLease.
func lastMoment(minutes int64) time.Duration {
	minutes = min(max(minutes, 0), protocol.MaxMinutes)
	return max(leastLease, time.Duration(minutes)*time.Minute/4)
}

// known tells whether a task was seen before, and takes the newest lease token
// from it. end is the new end of a lease that moves with beats, else nil.
func (d *dispatcher) known(ctx context.Context, key runKey, raw json.RawMessage, token protocol.LeaseToken, end *time.Time) bool {
	l := d.s.leases.get(key)
	if l == nil {
		return d.ended(ctx, key)
	}
	if end == nil {
		end = l.end.Load()
	}
	l.renew(token, *end)
	if l.digest != "" && l.digest != contentDigest(raw) {
		d.once("differs:"+key.Lease, "a task came again with other content: its first sight counts", "assignment", key.ID)
	}
	if time.Since(d.stored[key]) >= storeTokenEvery {
		d.stored[key] = time.Now()
		if _, err := d.s.accept(ctx, l, raw); err != nil {
			d.once("renew:"+key.Lease, "the newest lease token could not be stored", "error", err)
		}
	}
	return true
}

// ended tells whether the journal knows the run as over.
func (d *dispatcher) ended(ctx context.Context, key runKey) bool {
	_, err := d.s.parts.Journal.Get(ctx, key)
	found := !errors.Is(err, journal.ErrUnknown)
	if found && err != nil {
		d.once("journal", "the journal can't be read: no work is taken", "error", err)
		return true
	}
	if found {
		d.once("ended:"+key.ID+key.Lease, "a task was delivered again that has ended here", "assignment", key.ID)
	}
	return found
}

// busy tells whether a new task has to wait for the current run. A newer lease
// of the same assignment fences the old run: it is cancelled, and the new one
// starts with a later beat, once everything of the old one is gone.
func (d *dispatcher) busy(key runKey) bool {
	d.s.leases.fence(key)
	if d.current == nil {
		return false
	}
	if context.Cause(d.current.lease.ctx) == nil {
		d.once("busy:"+key.ID, "a second task was delivered while one runs: it waits", "assignment", key.ID)
	}
	return true
}

// begin records a task as accepted, before anything else, and starts its run.
func (d *dispatcher) begin(ctx context.Context, l *lease, task assigned, work func(*run, time.Time)) {
	accepted, err := d.s.accept(ctx, l, task.raw)
	if err != nil {
		d.s.note("A " + task.kind + " could not be written to the journal.")
		d.once("accept", "a task could not be written to the journal and is not started", "kind", task.kind, "error", err)
		return
	}
	d.start(d.s.newRun(l, task.lease.JobID), func(r *run) { work(r, accepted) })
}

// accept writes a task into the journal, or a newer token and end of one that is
// there; the first sight of a task stays.
func (s *Supervisor) accept(ctx context.Context, l *lease, raw json.RawMessage) (time.Time, error) {
	_, record, err := s.parts.Journal.Accept(ctx, l.key, raw, l.newest(), *l.end.Load(), time.Now())
	return record.Accepted, err
}

// start runs work in a goroutine that the supervisor waits for.
func (d *dispatcher) start(r *run, work func(*run)) {
	d.s.leases.add(r.lease)
	d.current, d.waiting, d.unanswered = r, nil, nil
	d.s.running.Store(r)
	d.s.note("")
	r.log.Info("accepted", "left", r.lease.left().Round(time.Second).String())
	d.s.runs.Add(1)
	go func() {
		defer d.s.runs.Done()
		defer close(r.done)
		work(r)
	}()
}

// qualification judges a delivered qualification. Its lease is renewed by each
// delivery.
func (d *dispatcher) qualification(ctx context.Context, v delivery) {
	raw := v.reply.QualificationTask
	task, err := protocol.DecodeQualificationTask(raw)
	id, attempt, _, unkeyed := task.Key()
	if unkeyed != nil {
		d.s.note("A qualification without valid ids was delivered and cannot be answered.")
		d.once("ids", "a qualification without valid ids was delivered and cannot be answered", "error", unkeyed)
		return
	}
	key := runKey{Kind: journal.KindQualification, ID: string(id), Lease: strconv.Itoa(attempt)}
	end := v.at.Add(qualificationLease)
	if d.known(ctx, key, raw, task.LeaseToken, &end) || d.busy(key) {
		return
	}
	q, invalid := task.Validate(v.bound.Origin)
	if err == nil {
		err = invalid
	}
	if err != nil {
		// Giving up costs one of two attempts: an owner should see it first.
		d.s.note("An invalid qualification was delivered: " + err.Error())
		d.once("invalid:"+key.ID, "an invalid qualification was delivered and is not answered", "error", err)
		return
	}
	if code, why := d.s.unready(); code != "" {
		d.s.note("A qualification waits: " + why)
		d.unanswered = &v
		return
	}
	l := d.s.newLease(key, task.LeaseToken, end)
	l.digest = contentDigest(raw)
	if _, err := d.s.accept(ctx, l, raw); err != nil {
		d.once("accept", "a qualification could not be written to the journal and is not started", "error", err)
		return
	}
	d.start(d.s.newRun(l, 0), func(r *run) { d.s.executeQualification(l.ctx, r, q) })
}

// watchLease ends a run whose lease is over; a qualification's may move.
func (d *dispatcher) watchLease() {
	if d.current != nil && d.current.key.Kind != journal.KindQualification && d.current.lease.left() <= 0 {
		d.current.lease.lose(errLeaseOver)
	}
}

// contentDigest is over a task without its token, which changes with each beat.
func contentDigest(raw json.RawMessage) string {
	v, err := canonjson.Parse(raw)
	members, isObject := v.(map[string]any)
	if err != nil || !isObject {
		return ""
	}
	delete(members, "lease_token")
	hash, err := canonjson.Hash(members)
	if err != nil {
		sum := sha256.Sum256(raw)
		return hex.EncodeToString(sum[:])
	}
	return hash
}
