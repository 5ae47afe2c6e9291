package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// resumable is a run that was accepted and not sealed when the last process
// ended. It goes on by the code that starts runs.
type resumable struct {
	lease  *lease
	record journal.Record
}

// recover compares the journal with the signer's log and takes up what is
// unfinished: sealed results go to the outbox, the rest is returned, to be sealed
// or run.
func (s *Supervisor) recover(ctx context.Context) ([]resumable, error) {
	if err := s.compareLogs(ctx); err != nil {
		return nil, err
	}
	records, err := s.parts.Journal.Unfinished(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading unfinished runs: %w: %w", err, ErrState)
	}
	var resume []resumable
	for _, record := range records {
		s.log.Info("unfinished run found", "kind", record.Kind, "assignment", record.ID, "lease", record.Lease, "state", string(record.State))
		again, err := s.recoverOne(ctx, record)
		if err != nil {
			return nil, err
		}
		if again != nil {
			resume = append(resume, *again)
		}
	}
	return resume, nil
}

func (s *Supervisor) recoverOne(ctx context.Context, record journal.Record) (*resumable, error) {
	l := s.leaseAgain(record)
	s.leases.add(l)
	one := resumable{l, record}
	if one.lapsed() {
		// Only by this host's clock, which may have been set anywhere meanwhile.
		return &one, nil
	}
	return s.takeUp(ctx, one)
}

// leaseAgain is the lease of a record. Its end has a monotonic reading, so that a
// later step of the clock moves nothing.
func (s *Supervisor) leaseAgain(record journal.Record) *lease {
	end := record.LeaseEnd
	if record.Kind == journal.KindQualification {
		// Its lease moves with beats: the next one tells.
		end = time.Now().Add(qualificationLease)
	}
	l := s.newLease(record.Key, record.LeaseToken, time.Now().Add(time.Until(end)))
	l.digest = contentDigest(record.Task)
	if record.Kind != journal.KindQualification {
		if task, err := s.readAssigned(record.Kind, record.Task); err == nil {
			l.theirs = task.lease.Ends
		}
	}
	return l
}

// lapsed tells whether the lease is over; a qualification's may come back.
func (r resumable) lapsed() bool {
	return r.record.Kind != journal.KindQualification && r.lease.left() <= 0
}

// doubtPatience is how long a lease that is over by our clock is not believed to
// be while the control plane has not told its time.
const doubtPatience = 2 * time.Minute

// settle ends what is over by the control plane's clock, and takes up what is not:
// a host that starts with a clock ahead of the time must not throw finished work
// away. If nobody tells the time ours counts, as it is by then.
func (d *dispatcher) settle(ctx context.Context) {
	if len(d.doubtful) == 0 || !d.s.clock.knows() && time.Since(d.began) < doubtPatience {
		return
	}
	for _, one := range d.doubtful {
		end := time.Now().Add(time.Until(one.record.LeaseEnd))
		one.lease.end.Store(&end)
		one.lease.follow(d.s.clock)
		again, err := d.s.takeUp(ctx, one)
		if err != nil {
			d.s.log.Error("an unfinished run can't be taken up: the next start tries again", "error", err)
		}
		if again != nil {
			d.resume = append(d.resume, *again)
		}
	}
	d.doubtful = nil
}

// takeUp ends a recovered run whose lease is over, has a sealed result sent, and
// returns what is to be sealed or run.
func (s *Supervisor) takeUp(ctx context.Context, one resumable) (*resumable, error) {
	l, record := one.lease, one.record
	if one.lapsed() {
		s.log.Warn("its lease ran out meanwhile", "assignment", record.ID)
		s.leases.remove(record.Key)
		return nil, s.lapse(ctx, record)
	}
	if unsealed := record.Draft != nil || record.Seal == nil; unsealed && !s.does(record.Kind) {
		// A verifier has nothing that could push, whatever it was before.
		s.log.Warn("an unfinished run of the other role is left as it is", "kind", record.Kind, "assignment", record.ID, "role", s.config.Role)
		s.leases.remove(record.Key)
		return nil, nil
	}
	if record.Seal == nil {
		return &one, nil
	}
	past, err := s.parts.Journal.Answers(ctx, record.Key)
	if err != nil {
		return nil, fmt.Errorf("reading answers: %w: %w", err, ErrState)
	}
	if record.Draft != nil && !holdsUnknown(past) {
		return &one, nil
	}
	// Also a revision that was drafted, and could not be signed before a send of
	// what it replaces was not answered: nothing may follow that.
	s.recoverResult(l, record, past)
	return nil, nil
}

// does tells whether runs of a kind are this host's role.
func (s *Supervisor) does(kind string) bool {
	return (kind == journal.KindVerification) == (s.config.Role == protocol.RoleVerifier)
}

// lapse ends a run whose lease ran out while no process lived.
func (s *Supervisor) lapse(ctx context.Context, record journal.Record) error {
	if record.Kind == journal.KindVerification && record.Seal != nil {
		past, err := s.parts.Journal.Answers(ctx, record.Key)
		if err != nil {
			return fmt.Errorf("reading answers: %w: %w", err, ErrState)
		}
		if holdsUnknown(past) {
			s.note(sentUnanswered)
			return s.parts.Journal.DeliverUnknown(ctx, record.Key)
		}
	}
	return s.parts.Journal.Abandon(ctx, record.Key, string(protocol.CodeLeaseLost))
}

// recoverResult goes on sending what was sealed.
func (s *Supervisor) recoverResult(l *lease, record journal.Record, past []journal.Answer) {
	s.outbox.add(l, sealed{
		revision: record.Seal.Revision, body: record.Seal.Body, hash: record.Seal.Hash,
		signature: record.Seal.Signature, at: record.Seal.Sealed,
	}, past)
}

// compareLogs refuses to start if the signer signed a result that the journal
// does not know, or the other way round: one of the two is not the one that was
// used (attack case J03).
func (s *Supervisor) compareLogs(ctx context.Context) error {
	if s.config.SigningLog == "" {
		return nil
	}
	records, err := signer.ReadLog(s.config.SigningLog)
	if err != nil {
		return fmt.Errorf("reading the signing log: %w: %w", err, ErrState)
	}
	logged := map[string]bool{}
	for _, record := range records {
		logged[string(record.Signature)] = true
		key, hash := resultOf(record.Statement)
		if hash == "" {
			continue
		}
		known, err := s.parts.Journal.KnowsEvidence(ctx, key, hash)
		if err != nil {
			return fmt.Errorf("comparing journal and signing log: %w: %w", err, ErrState)
		}
		if !known {
			return fmt.Errorf("signing log line %d: a result was signed that the journal does not know: %w", record.Seq, ErrState)
		}
	}
	return s.compareSealed(ctx, logged)
}

func (s *Supervisor) compareSealed(ctx context.Context, logged map[string]bool) error {
	all, err := s.parts.Journal.Signatures(ctx)
	if err != nil {
		return fmt.Errorf("comparing journal and signing log: %w: %w", err, ErrState)
	}
	for _, one := range all {
		if !logged[one.Signature] {
			return fmt.Errorf("the journal holds a signature of %v that is not in the signing log: %w", one.Key, ErrState)
		}
	}
	return nil
}

// resultOf is the run and hash that a statement vouches for, or "".
func resultOf(s signer.Statement) (runKey, string) {
	switch v := s.(type) {
	case signer.JobResult:
		return runKey{Kind: journal.KindJob, ID: string(v.Assignment), Lease: string(v.Lease)}, v.EvidenceHash
	case signer.Verifier:
		return runKey{Kind: journal.KindVerification, ID: string(v.ID), Lease: string(v.Lease)}, v.ReportHash
	case signer.Qualification:
		// Its statement doesn't name the attempt.
		return runKey{Kind: journal.KindQualification, ID: string(v.ID)}, v.FilesHash
	}
	return runKey{}, ""
}

// resumeNext goes on with the oldest run that recovery left, as soon as this host
// is ready for it. While draining it waits for the next start, too.
func (d *dispatcher) resumeNext(ctx context.Context) {
	b := d.s.parts.Pairing.current.Load()
	if d.current != nil || len(d.resume) == 0 || b == nil || d.s.cancelling.Load() {
		return
	}
	next := d.resume[0]
	code, why := d.s.unready()
	if code != "" && d.publishes(ctx, next) {
		code = ""
	}
	moves := next.record.Kind == journal.KindQualification // its lease does, with beats
	switch draft := next.record.Draft; {
	case draft != nil:
		// Needs no readiness: the same bytes are signed again, with the same
		// signature as before the crash if there was one.
		d.resume = d.resume[1:]
		d.start(d.s.newRun(next.lease, 0), func(r *run) {
			d.s.draftAndSign(next.lease.ctx, r, draft.Body, draft.Hash)
		})
	case next.lease.ctx.Err() != nil || !moves && next.lease.left() <= 0:
		d.resume = d.resume[1:]
		r := d.s.newRun(next.lease, 0)
		d.s.abandon(r, reasonOf(next.lease.ctx, string(protocol.CodeLeaseLost)), nil)
	case code != "" && (moves || next.lease.left() > leastLease):
		d.s.note("An unfinished " + next.record.Kind + " waits: " + why)
	default:
		d.resume = d.resume[1:]
		d.again(next, b, code, why)
	}
}

// publishes tells whether all that is left of a run is to publish it: that needs
// neither sandbox nor model, so only the pairing counts.
func (d *dispatcher) publishes(ctx context.Context, next resumable) bool {
	if d.s.parts.Pairing.State() != Paired || next.record.Kind != journal.KindJob {
		return false
	}
	saved, err := d.s.parts.Journal.Checkpoints(ctx, next.record.Key)
	return err == nil && jobs.Intended(saved)
}

// again starts a recovered run, or refuses it when this host did not become
// ready in time.
func (d *dispatcher) again(next resumable, b *binding, code protocol.Code, why string) {
	if next.record.Kind == journal.KindQualification {
		d.qualifyAgain(next, b)
		return
	}
	task, err := d.s.readAssigned(next.record.Kind, next.record.Task)
	work, invalid := task.prepare(b.Origin)
	if err == nil {
		err = invalid
	}
	r := d.s.newRun(next.lease, task.lease.JobID)
	switch {
	case err != nil:
		d.start(r, func(r *run) { task.refuse(r, protocol.CodeTaskInvalid, err.Error()) })
	case code != "":
		d.start(r, func(r *run) { task.refuse(r, code, why) })
	default:
		d.start(r, func(r *run) { work(next.lease.ctx, r, next.record.Accepted) })
	}
}

// qualifyAgain starts a recovered qualification. One that is not valid for the
// origin of today's binding belongs to another agent: it is over.
func (d *dispatcher) qualifyAgain(next resumable, b *binding) {
	task, err := protocol.DecodeQualificationTask(next.record.Task)
	q, invalid := task.Validate(b.Origin)
	if err == nil {
		err = invalid
	}
	r := d.s.newRun(next.lease, 0)
	if err != nil {
		r.log.Error("a recovered qualification can't be run", "error", err)
		d.s.abandon(r, string(protocol.CodeTaskInvalid), nil)
		return
	}
	d.start(r, func(r *run) { d.s.executeQualification(next.lease.ctx, r, q) })
}
