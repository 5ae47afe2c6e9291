package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
)

// examine looks at all of a journal through a read-only connection, which also
// at its close changes neither the file nor its write-ahead log.
func examine(dir string, steps migrations) error {
	db, err := connect(filepath.Join(dir, fileName), "ro", "query_only(1)")
	if err != nil {
		return err
	}
	return errors.Join(examineOpen(db, dir, steps), db.Close())
}

func examineOpen(db *sql.DB, dir string, steps migrations) error {
	at, err := version(db)
	if err != nil {
		return err
	}
	if at > len(steps) {
		return fmt.Errorf("version %d, this build knows %d: a newer build wrote it: %w", at, len(steps), ErrState)
	}
	if at == 0 {
		return fmt.Errorf("no schema in it: %w", ErrState)
	}
	if err := checkStructure(db); err != nil {
		return err
	}
	if err := checkMark(db, dir); err != nil {
		return err
	}
	return checkRows(db)
}

// checkStructure runs the full check rather than quick_check, which skips the
// indexes: a run that is missing from one would be accepted a second time.
func checkStructure(db *sql.DB) error {
	var found string
	err := db.QueryRowContext(context.Background(), "PRAGMA integrity_check(1)").Scan(&found)
	if err != nil {
		return state(err)
	}
	if found != "ok" {
		return fmt.Errorf("damaged (%q): %w", found, ErrState)
	}
	return nil
}

func checkMark(db *sql.DB, dir string) error {
	writes, err := countWrites(db)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, markName)
	written, err := readMark(path)
	if err != nil {
		return err
	}
	if written > writes {
		return fmt.Errorf("%d of %d transactions are lost; if an older copy was put here on purpose, remove %q: %w",
			written-writes, written, path, ErrState)
	}
	return nil
}

// rowChecks name, for each table with a checksum, its columns in their order;
// the last is the checksum.
var rowChecks = map[string]string{
	"runs":        runColumns,
	"checkpoints": "run, step, value, at, sum",
	"evidence":    evidenceColumns,
	"answers":     "run, revision, class, status, at, sum",
	"spending":    "run, at, tokens, sum",
}

func checkRows(db *sql.DB) error {
	for table, columns := range rowChecks {
		rows, err := db.QueryContext(context.Background(), "SELECT "+columns+" FROM "+table)
		if err != nil {
			return state(err)
		}
		if err := eachRow(rows, func(values []any) error {
			sum, _ := values[len(values)-1].([]byte)
			return checkSum(table, sum, values[:len(values)-1]...)
		}); err != nil {
			return err
		}
	}
	return checkBodies(db)
}

// eachRow calls check with each row's values: int64, string or []byte.
func eachRow(rows *sql.Rows, check func(values []any) error) error {
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return state(err)
	}
	for rows.Next() {
		values := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return state(err)
		}
		if err := check(values); err != nil {
			return err
		}
	}
	return state(rows.Err())
}

// checkBodies compares each text with its hash, and wants one for each evidence
// whose run was not deleted.
func checkBodies(db *sql.DB) error {
	rows, err := db.QueryContext(context.Background(), `
		SELECT e.hash, b.body, r.deleted
		FROM evidence e JOIN runs r USING (run) LEFT JOIN bodies b USING (run, revision)`)
	if err != nil {
		return state(err)
	}
	return eachRow(rows, func(values []any) error {
		hash, _ := values[0].(string)
		body, there := values[1].([]byte)
		if deleted, _ := values[2].(int64); deleted == 1 && !there {
			return nil
		}
		if !there || !hashFits(hash, body) {
			return fmt.Errorf("an evidence does not have its hash: %w", ErrState)
		}
		return nil
	})
}
