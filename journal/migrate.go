package journal

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// applicationID marks the file as ours ("Veyr").
const applicationID = 0x56657972

//go:embed migrations/*.sql
var embedded embed.FS

// builtin is this build's list.
var builtin = mustLoad()

// migrations are the steps from one version of the schema to the next: entry n
// leads from version n to n + 1. They go forward only.
type migrations []string

func mustLoad() migrations {
	names, err := fs.Glob(embedded, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	slices.Sort(names)
	var steps migrations
	for n, name := range names {
		text, err := embedded.ReadFile(name)
		if want := fmt.Sprintf("%04d_", n+1); err != nil || filepath.Base(name)[:len(want)] != want {
			panic("migration " + name + " is out of order") // a mistake of the build
		}
		steps = append(steps, string(text))
	}
	return steps
}

func version(db *sql.DB) (int, error) {
	var application, user int
	err := db.QueryRowContext(context.Background(), "PRAGMA application_id").Scan(&application)
	if err == nil {
		err = db.QueryRowContext(context.Background(), "PRAGMA user_version").Scan(&user)
	}
	if err != nil {
		return 0, state(err)
	}
	if application != applicationID && user != 0 {
		return 0, fmt.Errorf("the file belongs to another program: %w", ErrState)
	}
	return user, nil
}

// apply runs the missing steps, each in one transaction with its version, and
// copies the file to backups before each; "" makes none (a new file).
func (m migrations) apply(db *sql.DB, backups string) error {
	for {
		at, err := version(db)
		if err != nil || at == len(m) {
			return err
		}
		if at > len(m) {
			return fmt.Errorf("version %d, this build knows %d: a newer build wrote it: %w", at, len(m), ErrState)
		}
		if backups != "" {
			if err := backup(db, filepath.Join(backups, fmt.Sprintf("journal-v%d.bak", at))); err != nil {
				return err
			}
		}
		if err := m.step(db, at); err != nil {
			return fmt.Errorf("migrating from version %d: %w", at, err)
		}
	}
}

func (m migrations) step(db *sql.DB, at int) error {
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return full(err)
	}
	// Both pragmas live in the file's header and belong to the transaction.
	header := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, at+1)
	for _, text := range []string{m[at], header} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return errors.Join(full(err), tx.Rollback())
		}
	}
	return full(tx.Commit())
}

// backup writes a whole copy under another name, syncs and renames it: a copy
// that a crash cut short is never taken for one.
func backup(db *sql.DB, path string) error {
	fresh := path + ".new"
	if err := durable.Remove(fresh); err != nil {
		return fmt.Errorf("copying the journal: %w", err)
	}
	if _, err := db.ExecContext(context.Background(), "VACUUM INTO ?", fresh); err != nil {
		return fmt.Errorf("copying the journal: %w", full(err))
	}
	if err := errors.Join(os.Chmod(fresh, 0o600), give(fresh), syncFile(fresh), os.Rename(fresh, path)); err != nil {
		return fmt.Errorf("copying the journal: %w", full(err))
	}
	return durable.SyncDir(filepath.Dir(path))
}
