package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// runKey names a run: (assignment, lease) of a job, (id, attempt) of a
// qualification.
type runKey = journal.Key

// Why a run's context ended. They become reasons of abandoned records.
var (
	errNewerLease = fmt.Errorf("a newer lease was seen: %w", jobs.ErrLeaseLost)
	errLeaseOver  = fmt.Errorf("its time is over: %w", jobs.ErrLeaseLost)
	errCancelled  = errors.New("cancelled")
	errEnded      = errors.New("the run has ended")
)

// lease is the exclusive right that a run holds. Its token and, for a
// qualification, its end move with beats; everybody else reads them. ctx ends
// when the lease is known to be lost, with the cause.
type lease struct {
	key    runKey
	ctx    context.Context
	lose   context.CancelCauseFunc
	token  atomic.Pointer[protocol.LeaseToken]
	end    atomic.Pointer[time.Time]
	theirs time.Time               // its end by the control plane's clock; zero: it moves with beats
	missed atomic.Pointer[absence] // nil: the last beat that was taken carried the task
	digest string                  // of the task's content at first sight
	// hide and show tell the redaction which token no text may show.
	hide, show func(string)
}

func (s *Supervisor) newLease(key runKey, token protocol.LeaseToken, end time.Time) *lease {
	l := &lease{key: key, hide: s.keepSecret, show: s.parts.Secrets.Remove}
	l.ctx, l.lose = context.WithCancelCause(s.hard)
	l.renew(token, end)
	l.afterEnd(func() { l.show(string(l.newest())) })
	return l
}

// hiddenAfter the end of a run its tokens are still taken out of texts. Then
// nobody has them any more: a host works for years, and each job brings some.
const hiddenAfter = 10 * time.Minute

func (l *lease) afterEnd(do func()) {
	context.AfterFunc(l.ctx, func() { time.AfterFunc(hiddenAfter, do) })
}

// hideToEnd takes a token that came for this run out of texts.
func (l *lease) hideToEnd(token string) {
	l.hide(token)
	l.afterEnd(func() { l.show(token) })
}

// renew takes what a beat brought.
func (l *lease) renew(token protocol.LeaseToken, end time.Time) {
	l.hide(string(token))
	if old := l.token.Swap(&token); old != nil {
		l.show(string(*old))
	}
	l.end.Store(&end)
	l.missed.Store(nil)
}

// absence is how long beats that were taken have not carried a task, without a
// break. One that is UNHEALTHY or gets lost says nothing: it could bring no task.
type absence struct{ first, last time.Time }

// absent notes that a beat was taken at a time; renew takes it back if that beat
// carried the task. Only the dispatcher calls either.
func (l *lease) absent(at time.Time) {
	next := absence{first: at, last: at}
	if old := l.missed.Load(); old != nil && at.Sub(old.last) <= protocol.OfflineAfter {
		next.first = old.first
	}
	l.missed.Store(&next)
}

// vanished is how long beats have shown that the task is no longer given out.
func (l *lease) vanished() time.Duration {
	if missed := l.missed.Load(); missed != nil {
		return missed.last.Sub(missed.first)
	}
	return 0
}

// follow puts the end where the control plane's clock has it, when that is far from
// where ours has it: ours was wrong while no process lived, or stood still while
// this machine was suspended.
func (l *lease) follow(c *clock) {
	if l.theirs.IsZero() || !c.knows() {
		return
	}
	if end := c.local(l.theirs); end.Sub(*l.end.Load()).Abs() > warnOffset {
		l.end.Store(&end)
	}
}

func (l *lease) newest() protocol.LeaseToken { return *l.token.Load() }

// left is the time until the lease's end by our monotonic clock.
func (l *lease) left() time.Duration { return time.Until(*l.end.Load()) }

// leases holds the lease of every run that is not ended: executing, or sealed
// and waiting for its answer.
type leases struct {
	mu    sync.Mutex
	table map[runKey]*lease
}

func newLeases() *leases { return &leases{table: map[runKey]*lease{}} }

func (t *leases) get(key runKey) *lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table[key]
}

func (t *leases) add(l *lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table[l.key] = l
}

// remove forgets a run that has ended; its context ends with it.
func (t *leases) remove(key runKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.table[key]; l != nil {
		l.lose(errEnded)
		delete(t.table, key)
	}
}

// follow corrects the ends of all.
func (t *leases) follow(c *clock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.table {
		l.follow(c)
	}
}

// fence makes every other lease of the same assignment lost. Of qualifications
// there is only one at a time: another id is a newer one, too.
func (t *leases) fence(key runKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other, l := range t.table {
		older := other.Kind == key.Kind && other != key &&
			(other.ID == key.ID || key.Kind == journal.KindQualification)
		if older {
			l.lose(errNewerLease)
		}
	}
}
