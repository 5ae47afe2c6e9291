package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// runColumns are a run's columns in the order of run.columns, then its checksum.
const runColumns = "run, kind, id, lease, state, task, lease_token, lease_end, accepted, ended, reason, receipt, deleted, sum"

// run is a row of the table.
type run struct {
	number          int64
	kind, id, lease string
	state           string
	task            []byte
	token           string
	leaseEnd        int64
	accepted        int64
	ended           int64
	reason          string
	receipt         []byte
	deleted         int64
}

func (r *run) columns() []any {
	return []any{
		r.number, r.kind, r.id, r.lease, r.state, r.task, r.token,
		r.leaseEnd, r.accepted, r.ended, r.reason, r.receipt, r.deleted,
	}
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(into ...any) error }

func scanRun(from scanner) (*run, error) {
	var r run
	var sum []byte
	err := from.Scan(&r.number, &r.kind, &r.id, &r.lease, &r.state, &r.task, &r.token,
		&r.leaseEnd, &r.accepted, &r.ended, &r.reason, &r.receipt, &r.deleted, &sum)
	if err != nil {
		return nil, full(err)
	}
	// The driver reads an empty blob as nil, and writes nil as NULL.
	r.task, r.receipt = append([]byte{}, r.task...), append([]byte{}, r.receipt...)
	return &r, checkSum("runs", sum, r.columns()...)
}

func (r *run) record() Record {
	return Record{
		Key:        Key{Kind: r.kind, ID: r.id, Lease: r.lease},
		State:      State(r.state),
		Task:       r.task,
		LeaseToken: protocol.LeaseToken(r.token),
		LeaseEnd:   fromMilliseconds(r.leaseEnd),
		Accepted:   time.Unix(r.accepted, 0).UTC(),
		Ended:      fromMilliseconds(r.ended),
		Reason:     r.reason,
		Receipt:    r.receipt,
		Deleted:    r.deleted == 1,
	}
}

// querier is a *sql.Tx or a *sql.DB.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// find returns the row of a key, or ErrUnknown.
func find(ctx context.Context, from querier, key Key) (*run, error) {
	if err := key.check(); err != nil {
		return nil, err
	}
	r, err := scanRun(from.QueryRowContext(ctx,
		"SELECT "+runColumns+" FROM runs WHERE kind = ? AND id = ? AND lease = ?", key.Kind, key.ID, key.Lease))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%v: %w", key, ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", key, err)
	}
	return r, nil
}

// store writes a changed row back, with its new checksum.
func (r *run) store(tx *sql.Tx) error {
	_, err := tx.Exec(`UPDATE runs SET state = ?, task = ?, lease_token = ?, lease_end = ?, ended = ?,
		reason = ?, receipt = ?, deleted = ?, sum = ? WHERE run = ?`,
		r.state, r.task, r.token, r.leaseEnd, r.ended, r.reason, r.receipt, r.deleted, rowSum(r.columns()...), r.number)
	return err
}

func (r *run) insert(tx *sql.Tx) error {
	err := tx.QueryRow("SELECT coalesce(max(run), 0) + 1 FROM runs").Scan(&r.number)
	if err != nil {
		return err
	}
	_, err = tx.Exec("INSERT INTO runs ("+runColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		append(r.columns(), rowSum(r.columns()...))...)
	return err
}

// Accept records a task before anything is done for it. The first sight of a key
// wins: fresh is true, and task and accepted (cut to whole seconds) stay for
// ever. Afterwards only a newer lease token and end are stored, and rec.Task is
// what counts; a run that has ended isn't changed at all. On a disk without room
// for the reserve nothing new is accepted: ErrFull.
func (j *Journal) Accept(
	ctx context.Context, key Key, task []byte, token protocol.LeaseToken, leaseEnd, accepted time.Time,
) (fresh bool, rec Record, err error) {
	if err := key.check(); err != nil {
		return false, Record{}, err
	}
	if len(task) == 0 || len(task) > maxTask || token == "" || len(token) > maxToken {
		return false, Record{}, fmt.Errorf("accepting %v: task of %d bytes, token of %d: %w", key, len(task), len(token), ErrArgument)
	}
	rec, err = j.Get(ctx, key)
	switch {
	case errors.Is(err, ErrUnknown):
		return j.acceptFirst(ctx, &run{
			kind: key.Kind, id: key.ID, lease: key.Lease, state: string(Accepted), task: task, token: string(token),
			leaseEnd: milliseconds(leaseEnd), accepted: accepted.Unix(), receipt: []byte{},
		})
	case err != nil:
		return false, Record{}, err
	case rec.State.final(), rec.LeaseToken == token && milliseconds(rec.LeaseEnd) == milliseconds(leaseEnd):
		return false, rec, nil
	}
	err = j.update(ctx, "renewing", key, j.write, func(_ *sql.Tx, r *run) error {
		if State(r.state).final() { // since it was looked at
			return nil
		}
		r.token, r.leaseEnd = string(token), milliseconds(leaseEnd)
		return nil
	})
	if err != nil {
		return false, Record{}, err
	}
	rec, err = j.Get(ctx, key)
	return false, rec, err
}

func (j *Journal) acceptFirst(ctx context.Context, r *run) (fresh bool, rec Record, err error) {
	key := Key{Kind: r.kind, ID: r.id, Lease: r.lease}
	if !j.reserve() {
		return false, Record{}, fmt.Errorf("accepting %v: no room for the reserve: %w", key, ErrFull)
	}
	err = j.write(ctx, func(tx *sql.Tx) error {
		if _, err := find(ctx, tx, key); !errors.Is(err, ErrUnknown) {
			return err // another caller was first
		}
		fresh = true
		return r.insert(tx)
	})
	if err != nil {
		return false, Record{}, fmt.Errorf("accepting %v: %w", key, err)
	}
	rec, err = j.Get(ctx, key)
	return fresh, rec, err
}

// transaction is j.write or j.finish.
type transaction func(context.Context, func(*sql.Tx) error) error

// update changes one run in one transaction.
func (j *Journal) update(ctx context.Context, what string, key Key, in transaction, change func(*sql.Tx, *run) error) error {
	err := in(ctx, func(tx *sql.Tx) error {
		r, err := find(context.WithoutCancel(ctx), tx, key)
		if err != nil {
			return err
		}
		if err := change(tx, r); err != nil {
			return err
		}
		return r.store(tx)
	})
	if err != nil {
		return fmt.Errorf("%s %v: %w", what, key, err)
	}
	return nil
}

// Deliver ends a sealed run with the control plane's receipt. A second call
// changes nothing.
func (j *Journal) Deliver(ctx context.Context, key Key, receipt []byte) error {
	if len(receipt) > maxReceipt {
		return fmt.Errorf("delivering %v: receipt of %d bytes: %w", key, len(receipt), ErrArgument)
	}
	return j.update(ctx, "delivering", key, j.finish, func(_ *sql.Tx, r *run) error {
		switch State(r.state) {
		case Delivered:
			return nil
		case Sealed:
			r.state, r.receipt, r.ended = string(Delivered), append([]byte{}, receipt...), time.Now().UnixMilli()
			return nil
		}
		return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
	})
}

// DeliverUnknown ends a sealed run that was sent and may have been taken, though
// nobody answered and nobody will (protocol section 7, step 4): delivered, for
// ReasonUnknown. A second call changes nothing.
func (j *Journal) DeliverUnknown(ctx context.Context, key Key) error {
	return j.update(ctx, "ending", key, j.finish, func(_ *sql.Tx, r *run) error {
		switch State(r.state) {
		case Delivered:
			return nil
		case Sealed:
			r.state, r.reason, r.ended = string(Delivered), ReasonUnknown, time.Now().UnixMilli()
			return nil
		}
		return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
	})
}

// Abandon ends a run that is not delivered, for a reason that people read (cut
// at 2,000 bytes). A second call keeps the first reason.
func (j *Journal) Abandon(ctx context.Context, key Key, reason string) error {
	return j.abandon(ctx, key, reason, func(*sql.Tx, *run) error { return nil })
}

// AbandonUnsent is Abandon, and keeps a text that came too late to be sent, as
// DraftEvidence would. It is one transaction: a crash between two would leave a
// draft of a run that goes on, and the next start would sign and send it.
func (j *Journal) AbandonUnsent(ctx context.Context, key Key, reason string, canonical []byte, hash string) error {
	if len(canonical) > maxEvidence || !hashFits(hash, canonical) {
		return fmt.Errorf("abandoning %v: %d bytes that must have their hash: %w", key, len(canonical), ErrArgument)
	}
	return j.abandon(ctx, key, reason, func(tx *sql.Tx, r *run) error {
		_, err := draft(ctx, tx, r.number, canonical, hash)
		return err
	})
}

func (j *Journal) abandon(ctx context.Context, key Key, reason string, keep func(*sql.Tx, *run) error) error {
	reason = cut(strings.ToValidUTF8(reason, "\uFFFD"), maxReason)
	if reason == "" {
		return fmt.Errorf("abandoning %v without a reason: %w", key, ErrArgument)
	}
	return j.update(ctx, "abandoning", key, j.finish, func(tx *sql.Tx, r *run) error {
		switch State(r.state) {
		case Abandoned:
			return nil
		case Accepted, Sealed:
			r.state, r.reason, r.ended = string(Abandoned), reason, time.Now().UnixMilli()
			return keep(tx, r)
		}
		return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
	})
}

// cut shortens a text to at most limit bytes without splitting a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// Delete removes what a run that has ended left of the client's: task,
// checkpoints and evidence. Its key, state, hashes, signatures and answers stay,
// so that the signer's log still fits and the run is not taken for a new one.
func (j *Journal) Delete(ctx context.Context, key Key) error {
	err := j.update(ctx, "deleting", key, j.finish, func(tx *sql.Tx, r *run) error {
		if !State(r.state).final() {
			return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
		}
		r.deleted, r.task, r.token = 1, []byte{}, ""
		if err := r.store(tx); err != nil { // first: a trigger wants it
			return err
		}
		for _, table := range []string{"checkpoints", "bodies"} {
			if _, err := tx.Exec("DELETE FROM "+table+" WHERE run = ?", r.number); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return j.compact(ctx)
}

// compact gives free pages back and empties the write-ahead log, which still
// holds what was deleted.
func (j *Journal) compact(ctx context.Context) error {
	for _, pragma := range []string{"PRAGMA incremental_vacuum", "PRAGMA wal_checkpoint(truncate)"} {
		rows, err := j.writer.QueryContext(ctx, pragma)
		if err != nil {
			return fmt.Errorf("compacting the journal: %w", full(err))
		}
		for rows.Next() { // the pragma works while it is stepped
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return fmt.Errorf("compacting the journal: %w", full(err))
		}
	}
	return nil
}
