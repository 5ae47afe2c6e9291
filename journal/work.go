package journal

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// Checkpoint stores the last value of a step, for example "commit". A step's
// name is 1 to 64 of a-z, 0-9, ".", "_", "-"; a value has at most 1 MiB. ErrOrder
// once the run has ended.
func (j *Journal) Checkpoint(ctx context.Context, key Key, step string, value []byte) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789._-"
	if step == "" || len(step) > maxStep || strings.Trim(step, letters) != "" || len(value) > maxValue {
		return fmt.Errorf("checkpoint of %v: step of %d bytes, value of %d: %w", key, len(step), len(value), ErrArgument)
	}
	if value == nil {
		value = []byte{} // NULL is no value
	}
	return j.update(ctx, "checkpoint of", key, j.write, func(tx *sql.Tx, r *run) error {
		if State(r.state).final() {
			return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
		}
		columns := []any{r.number, step, value, time.Now().UnixMilli()}
		_, err := tx.Exec("INSERT OR REPLACE INTO checkpoints (run, step, value, at, sum) VALUES (?, ?, ?, ?, ?)",
			append(columns, rowSum(columns...))...)
		return err
	})
}

// Checkpoints returns the last value of each step of a run.
func (j *Journal) Checkpoints(ctx context.Context, key Key) (map[string][]byte, error) {
	r, err := find(ctx, j.readers, key)
	if err != nil {
		return nil, err
	}
	rows, err := j.readers.QueryContext(ctx, "SELECT run, step, value, at, sum FROM checkpoints WHERE run = ?", r.number)
	if err != nil {
		return nil, fmt.Errorf("reading checkpoints of %v: %w", key, full(err))
	}
	steps := map[string][]byte{}
	err = eachRow(rows, func(values []any) error {
		sum, _ := values[4].([]byte)
		if err := checkSum("checkpoints", sum, values[:4]...); err != nil {
			return err
		}
		value, _ := values[2].([]byte)
		steps[values[1].(string)] = append([]byte{}, value...) // never nil
		return nil
	})
	return steps, err
}

// Spend adds model tokens to what a run has used, also one that has ended: they
// are paid for.
func (j *Journal) Spend(ctx context.Context, key Key, tokens int64) error {
	if tokens < 0 {
		return fmt.Errorf("spending of %v: %d tokens: %w", key, tokens, ErrArgument)
	}
	return j.update(ctx, "spending of", key, j.write, func(tx *sql.Tx, r *run) error {
		columns := []any{r.number, time.Now().UnixMilli(), tokens}
		_, err := tx.Exec("INSERT INTO spending (run, at, tokens, sum) VALUES (?, ?, ?, ?)",
			append(columns, rowSum(columns...))...)
		return err
	})
}

// Spent returns the model tokens that a run has used, over all restarts.
func (j *Journal) Spent(ctx context.Context, key Key) (tokens int64, err error) {
	r, err := find(ctx, j.readers, key)
	if err != nil {
		return 0, err
	}
	return j.sumTokens(ctx, "run = ?", r.number)
}

// SpentSince returns the model tokens that all runs have used from a time on.
func (j *Journal) SpentSince(ctx context.Context, from time.Time) (tokens int64, err error) {
	return j.sumTokens(ctx, "at >= ?", from.UnixMilli())
}

func (j *Journal) sumTokens(ctx context.Context, condition string, arg any) (tokens int64, err error) {
	err = j.readers.QueryRowContext(ctx, "SELECT coalesce(sum(tokens), 0) FROM spending WHERE "+condition, arg).Scan(&tokens)
	if err != nil {
		return 0, fmt.Errorf("adding up what was spent: %w", full(err))
	}
	return tokens, nil
}

// view reads at one point in time: no other call's change is seen in part.
func (j *Journal) view(ctx context.Context, read func(querier) error) error {
	tx, err := j.readers.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("reading the journal: %w", full(err))
	}
	defer tx.Rollback() // nothing was written
	return read(tx)
}

// Get returns one run with its evidence, or ErrUnknown.
func (j *Journal) Get(ctx context.Context, key Key) (rec Record, err error) {
	err = j.view(ctx, func(from querier) error {
		r, err := find(ctx, from, key)
		if err != nil {
			return err
		}
		rec, err = complete(ctx, from, r, true)
		return err
	})
	return rec, err
}

func complete(ctx context.Context, from querier, r *run, bodies bool) (Record, error) {
	rec := r.record()
	if rec.Deleted {
		rec.Task = nil
	}
	if err := evidence(ctx, from, r, &rec, bodies); err != nil {
		return Record{}, fmt.Errorf("reading %v: %w", rec.Key, err)
	}
	return rec, nil
}

// Unfinished returns the runs that are accepted or sealed, oldest first, with
// their evidence. After a restart they are gone on with in this order.
func (j *Journal) Unfinished(ctx context.Context) ([]Record, error) {
	return j.query(ctx, true, "state IN ('accepted', 'sealed') ORDER BY run")
}

// Outbox returns the runs that are sealed and not delivered, oldest first, with
// their evidence.
func (j *Journal) Outbox(ctx context.Context) ([]Record, error) {
	return j.query(ctx, true, "state = 'sealed' ORDER BY run")
}

// List returns the newest runs, newest first, at most limit, without the texts
// of their evidence.
func (j *Journal) List(ctx context.Context, limit int) ([]Record, error) {
	return j.query(ctx, false, "true ORDER BY run DESC LIMIT ?", max(limit, 0))
}

// OfID returns the runs of one assignment or qualification, newest first, without
// the texts of their evidence.
func (j *Journal) OfID(ctx context.Context, id string) ([]Record, error) {
	return j.query(ctx, false, "id = ? ORDER BY run DESC", id)
}

func (j *Journal) query(ctx context.Context, bodies bool, condition string, args ...any) (records []Record, err error) {
	err = j.view(ctx, func(from querier) error {
		found, err := selectRuns(ctx, from, condition, args...)
		if err != nil {
			return fmt.Errorf("listing runs: %w", err)
		}
		records = make([]Record, 0, len(found))
		for _, r := range found {
			rec, err := complete(ctx, from, r, bodies)
			if err != nil {
				return err
			}
			records = append(records, rec)
		}
		return nil
	})
	return records, err
}

// selectRuns reads all rows before anything else is asked on their connection.
func selectRuns(ctx context.Context, from querier, condition string, args ...any) ([]*run, error) {
	rows, err := from.QueryContext(ctx, "SELECT "+runColumns+" FROM runs WHERE "+condition, args...)
	if err != nil {
		return nil, full(err)
	}
	defer rows.Close()
	var found []*run
	for rows.Next() {
		r, err := scanRun(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, full(rows.Err())
}

// Kept returns the runs that have ended and were not deleted, in the order of
// their ends, at most limit, without the texts of their evidence.
func (j *Journal) Kept(ctx context.Context, limit int) ([]Record, error) {
	return j.query(ctx, false, "state IN ('delivered', 'abandoned') AND deleted = 0 ORDER BY ended, run LIMIT ?", max(limit, 0))
}

// Counts returns how many runs are in each state; all four states are there.
func (j *Journal) Counts(ctx context.Context) (map[State]int, error) {
	rows, err := j.readers.QueryContext(ctx, "SELECT state, count(*) FROM runs GROUP BY state")
	if err != nil {
		return nil, fmt.Errorf("counting runs: %w", full(err))
	}
	counts := map[State]int{Accepted: 0, Sealed: 0, Delivered: 0, Abandoned: 0}
	err = eachRow(rows, func(values []any) error {
		state, _ := values[0].(string)
		n, _ := values[1].(int64)
		counts[State(state)] = int(n)
		return nil
	})
	return counts, err
}
