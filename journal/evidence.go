package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

const evidenceColumns = "run, revision, hash, signature, drafted, sealed, sum"

// revision is a row of the table evidence.
type revision struct {
	run, revision   int64
	hash, signature string
	drafted, sealed int64
}

func (v *revision) columns() []any {
	return []any{v.run, v.revision, v.hash, v.signature, v.drafted, v.sealed}
}

func scanRevision(from scanner) (*revision, error) {
	var v revision
	var sum []byte
	if err := from.Scan(&v.run, &v.revision, &v.hash, &v.signature, &v.drafted, &v.sealed, &sum); err != nil {
		return nil, full(err)
	}
	return &v, checkSum("evidence", sum, v.columns()...)
}

// newest returns a run's last revision that meets the condition, nil for none.
func newest(ctx context.Context, from querier, number int64, condition string, args ...any) (*revision, error) {
	v, err := scanRevision(from.QueryRowContext(ctx, "SELECT "+evidenceColumns+
		" FROM evidence WHERE run = ? AND "+condition+" ORDER BY revision DESC LIMIT 1", append([]any{number}, args...)...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return v, err
}

// DraftEvidence stores the canonical text that is about to be signed, and its
// hash (lower-case hex, "0x" before it if the statement has it so). It must come
// before the signature: a signature in the signer's log whose hash the journal
// does not know stops the next start. The same text again changes nothing;
// another one becomes the next revision, also of a sealed run, and the earlier
// ones stay. ErrOrder once the run has ended.
func (j *Journal) DraftEvidence(ctx context.Context, key Key, canonical []byte, hash string) (revision int, err error) {
	if len(canonical) > maxEvidence || !hashFits(hash, canonical) {
		return 0, fmt.Errorf("drafting %v: %d bytes that must have their hash: %w", key, len(canonical), ErrArgument)
	}
	err = j.update(ctx, "drafting", key, j.finish, func(tx *sql.Tx, r *run) error {
		if State(r.state).final() {
			return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
		}
		revision, err = draft(ctx, tx, r.number, canonical, hash)
		return err
	})
	return revision, err
}

func draft(ctx context.Context, tx *sql.Tx, number int64, canonical []byte, hash string) (int, error) {
	ctx = context.WithoutCancel(ctx)
	last, err := newest(ctx, tx, number, "true")
	if err != nil {
		return 0, err
	}
	next := &revision{run: number, revision: 1, hash: hash, drafted: time.Now().UnixMilli()}
	if last != nil {
		if last.hash == hash {
			return int(last.revision), nil
		}
		next.revision = last.revision + 1
	}
	_, err = tx.Exec("INSERT INTO evidence ("+evidenceColumns+") VALUES (?, ?, ?, ?, ?, ?, ?)",
		append(next.columns(), rowSum(next.columns()...))...)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec("INSERT INTO bodies (run, revision, body) VALUES (?, ?, ?)", number, next.revision, canonical)
	return int(next.revision), err
}

// Seal adds the signature to the newest draft, which must have this hash. From
// then on that revision never changes. The same signature again changes nothing;
// another signature, hash or an ended run is ErrOrder.
func (j *Journal) Seal(ctx context.Context, key Key, hash, signature string) error {
	if signature == "" || len(signature) > 128 {
		return fmt.Errorf("sealing %v: signature of %d bytes: %w", key, len(signature), ErrArgument)
	}
	return j.update(ctx, "sealing", key, j.finish, func(tx *sql.Tx, r *run) error {
		last, err := newest(context.WithoutCancel(ctx), tx, r.number, "true")
		switch {
		case err != nil:
			return err
		case last == nil || last.hash != hash:
			return fmt.Errorf("its newest draft has another hash: %w", ErrOrder)
		case last.signature == signature:
			return nil
		case last.signature != "" || State(r.state).final():
			return fmt.Errorf("it is %s: %w", r.state, ErrOrder)
		}
		r.state = string(Sealed)
		last.signature, last.sealed = signature, time.Now().UnixMilli()
		_, err = tx.Exec("UPDATE evidence SET signature = ?, sealed = ?, sum = ? WHERE run = ? AND revision = ?",
			last.signature, last.sealed, rowSum(last.columns()...), last.run, last.revision)
		return err
	})
}

// Answer records what came of one attempt to deliver the newest sealed
// revision. Whoever must know that every answer so far was a definite refusal
// records an attempt before it is made, too, under a class of its own: a crash
// in between is an unknown answer.
func (j *Journal) Answer(ctx context.Context, key Key, class string, status int, at time.Time) error {
	if class == "" || len(class) > maxClass || status < 0 || status > 999 {
		return fmt.Errorf("recording an answer for %v: %w", key, ErrArgument)
	}
	return j.update(ctx, "recording an answer for", key, j.finish, func(tx *sql.Tx, r *run) error {
		last, err := newest(context.WithoutCancel(ctx), tx, r.number, "signature <> ''")
		if err != nil {
			return err
		}
		if last == nil {
			return fmt.Errorf("nothing was sealed: %w", ErrOrder)
		}
		columns := []any{r.number, last.revision, class, int64(status), milliseconds(at)}
		_, err = tx.Exec("INSERT INTO answers (run, revision, class, status, at, sum) VALUES (?, ?, ?, ?, ?, ?)",
			append(columns, rowSum(columns...))...)
		return err
	})
}

// Answers returns all answers of a run, oldest first.
func (j *Journal) Answers(ctx context.Context, key Key) ([]Answer, error) {
	r, err := find(ctx, j.readers, key)
	if err != nil {
		return nil, err
	}
	rows, err := j.readers.QueryContext(ctx,
		"SELECT run, revision, class, status, at, sum FROM answers WHERE run = ? ORDER BY answer", r.number)
	if err != nil {
		return nil, fmt.Errorf("reading answers of %v: %w", key, full(err))
	}
	var answers []Answer
	err = eachRow(rows, func(values []any) error {
		sum, _ := values[5].([]byte)
		if err := checkSum("answers", sum, values[:5]...); err != nil {
			return err
		}
		answers = append(answers, Answer{
			Revision: int(values[1].(int64)), Class: values[2].(string),
			Status: int(values[3].(int64)), At: fromMilliseconds(values[4].(int64)),
		})
		return nil
	})
	return answers, err
}

// KnowsEvidence reports whether any revision of the run, sealed or not, also of a
// deleted run, has this hash. An empty Lease means any: a qualification's
// statement does not name the attempt. It is for comparing the signer's log.
func (j *Journal) KnowsEvidence(ctx context.Context, key Key, hash string) (bool, error) {
	var found int
	err := j.readers.QueryRowContext(ctx, `
		SELECT count(*) FROM evidence JOIN runs USING (run)
		WHERE kind = ?1 AND id = ?2 AND (lease = ?3 OR ?3 = '') AND hash = ?4`,
		key.Kind, key.ID, key.Lease, hash).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("looking for evidence of %v: %w", key, full(err))
	}
	return found > 0, nil
}

// Signature is one sealed revision, for comparing the signer's log the other
// way: each of these must be in it.
type Signature struct {
	Key
	Hash, Signature string
}

// Signatures returns every sealed revision, also of deleted runs, oldest first.
func (j *Journal) Signatures(ctx context.Context) ([]Signature, error) {
	rows, err := j.readers.QueryContext(ctx, `
		SELECT kind, id, lease, hash, signature FROM evidence JOIN runs USING (run)
		WHERE signature <> '' ORDER BY sealed, run, revision`)
	if err != nil {
		return nil, fmt.Errorf("reading signatures: %w", full(err))
	}
	var all []Signature
	err = eachRow(rows, func(values []any) error {
		var text [5]string
		for i := range text {
			text[i], _ = values[i].(string)
		}
		all = append(all, Signature{Key: Key{Kind: text[0], ID: text[1], Lease: text[2]}, Hash: text[3], Signature: text[4]})
		return nil
	})
	return all, err
}

// evidence fills a record's Seal and Draft; bodies are read if asked for.
func evidence(ctx context.Context, from querier, r *run, rec *Record, bodies bool) error {
	sealed, err := newest(ctx, from, r.number, "signature <> ''")
	if err != nil {
		return err
	}
	last, err := newest(ctx, from, r.number, "signature = '' AND revision > ?", sealed.number())
	if err != nil {
		return err
	}
	if rec.Seal, err = readEvidence(ctx, from, sealed, bodies && !rec.Deleted); err != nil {
		return err
	}
	rec.Draft, err = readEvidence(ctx, from, last, bodies && !rec.Deleted)
	return err
}

// number is 0 for no revision.
func (v *revision) number() int64 {
	if v == nil {
		return 0
	}
	return v.revision
}

func readEvidence(ctx context.Context, from querier, v *revision, body bool) (*Evidence, error) {
	if v == nil {
		return nil, nil
	}
	evidence := &Evidence{
		Revision: int(v.revision), Hash: v.hash, Signature: v.signature,
		Drafted: fromMilliseconds(v.drafted), Sealed: fromMilliseconds(v.sealed),
	}
	if !body {
		return evidence, nil
	}
	err := from.QueryRowContext(ctx, "SELECT body FROM bodies WHERE run = ? AND revision = ?",
		v.run, v.revision).Scan(&evidence.Body)
	if err != nil {
		return nil, full(err)
	}
	if !hashFits(v.hash, evidence.Body) {
		return nil, fmt.Errorf("an evidence does not have its hash: %w", ErrState)
	}
	return evidence, nil
}
