package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// Journal is an open journal. All methods may run at once; writes take turns.
type Journal struct {
	dir     string
	lock    *durable.Flock // nil if the caller holds it
	writer  *sql.DB        // one connection
	readers *sql.DB        // read-only connections
	// mark is touched inside a write only, while its connection is held.
	mark *mark
	// timed gets what each commit took; nil: nobody asked.
	timed func(time.Duration)

	closing sync.Once
	closed  error // of the first Close

	mu sync.Mutex
	// reserved says that the reserve file is there. Guarded by mu.
	reserved bool
}

// Timed has observe called with the time that each commit takes, its sync
// included. It is to be called once, before the first write; observe may not
// call the journal.
func (j *Journal) Timed(observe func(time.Duration)) { j.timed = observe }

// Close ends the journal and lets go of a lock that Open took. Calls that run
// are waited for. A second call does nothing.
func (j *Journal) Close() error {
	j.closing.Do(func() { j.closed = j.close() })
	return j.closed
}

func (j *Journal) close() error {
	var errs []error
	for _, db := range []*sql.DB{j.readers, j.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if j.mark != nil {
		errs = append(errs, j.mark.close())
	}
	if j.lock != nil {
		errs = append(errs, j.lock.Unlock())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the journal: %w", err)
	}
	return nil
}

// write runs one transaction. ctx bounds the wait for the turn only: a commit
// that was begun is finished, or its outcome would be unknown.
func (j *Journal) write(ctx context.Context, change func(*sql.Tx) error) error {
	conn, err := j.writer.Conn(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the journal: %w", err)
	}
	defer conn.Close() // returns it to the pool
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", full(err))
	}
	if err := change(tx); err != nil {
		return errors.Join(full(err), rollback(tx))
	}
	var writes int64
	err = tx.QueryRow("UPDATE tally SET writes = writes + 1 WHERE id = 1 RETURNING writes").Scan(&writes)
	if err != nil {
		return errors.Join(full(err), rollback(tx))
	}
	begun := time.Now()
	if err := tx.Commit(); err != nil {
		return errors.Join(fmt.Errorf("committing: %w", full(err)), rollback(tx))
	}
	if j.timed != nil {
		j.timed(time.Since(begun))
	}
	// A crash here leaves the mark one too low, which is allowed.
	j.mark.set(writes)
	return nil
}

// rollback ignores a transaction that SQLite has ended by itself, as it does
// when the disk is full.
func rollback(tx *sql.Tx) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) && code(err) != lib.SQLITE_ERROR {
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

// finish is write for what must work on a full disk: it gives up the reserve
// and tries once more.
func (j *Journal) finish(ctx context.Context, change func(*sql.Tx) error) error {
	err := j.write(ctx, change)
	if !errors.Is(err, ErrFull) {
		return err
	}
	if err := j.ReleaseReserve(); err != nil {
		return err
	}
	return j.write(ctx, change)
}

// ReleaseReserve frees the reserved 16 MiB of disk for finishing what runs. No
// run is accepted until there is room for a new reserve.
func (j *Journal) ReleaseReserve() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := durable.Remove(filepath.Join(j.dir, reserveName)); err != nil {
		return fmt.Errorf("releasing the journal's reserve: %w", err)
	}
	j.reserved = false
	return nil
}

// reserve makes the reserve unless it is there, and reports whether it is.
func (j *Journal) reserve() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.reserved {
		path := filepath.Join(j.dir, reserveName)
		err := durable.ReserveFile(path, reserveBytes)
		if err == nil {
			err = give(path)
		}
		j.reserved = err == nil
	}
	return j.reserved
}

// code returns SQLite's extended result code, 0 for other errors.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// full adds ErrFull or ErrState to an error that means it, and nothing to others.
func full(err error) error {
	switch c := code(err); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), c&0xff == lib.SQLITE_FULL,
		c == lib.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case c&0xff == lib.SQLITE_CORRUPT, c&0xff == lib.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return err
}

// state is for what is read at the start: there every error but a full disk
// means that the journal is not usable.
func state(err error) error {
	if err = full(err); err == nil || errors.Is(err, ErrFull) || errors.Is(err, ErrState) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrState, err)
}

// milliseconds and fromMilliseconds map the zero time to 0 and back.
func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMilliseconds(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
