package supervisor_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// cupboard is an archive with runs that have ended, each of 1 MiB.
type cupboard struct {
	t     *testing.T
	names map[string]string // by id
	supervisor.Archive
}

func newCupboard(t *testing.T) cupboard {
	t.Helper()
	state := t.TempDir()
	records, err := journal.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { records.Close() })
	return cupboard{t, map[string]string{}, supervisor.Archive{Journal: records, JobsDir: filepath.Join(state, "jobs")}}
}

const leftBytes = 1 << 20

// put accepts a run, with its files, and takes it to a state.
func (c cupboard) put(id, lease string, state journal.State) journal.Key {
	c.t.Helper()
	key, ctx := journal.Key{Kind: journal.KindJob, ID: c.uuid(id), Lease: c.uuid(lease)}, context.Background()
	text := []byte(`{"id":"` + id + lease + `"}`)
	sum := sha256.Sum256(text)
	hash := "0x" + hex.EncodeToString(sum[:])
	steps := []func() error{
		func() error {
			_, _, err := c.Journal.Accept(ctx, key, []byte(`{}`), "token", time.Now().Add(time.Hour), time.Now())
			return err
		},
		func() error { _, err := c.Journal.DraftEvidence(ctx, key, text, hash); return err },
		func() error { return c.Journal.Seal(ctx, key, hash, "signature-"+id+lease) },
		func() error { return c.Journal.Deliver(ctx, key, []byte(`{}`)) },
	}
	last := map[journal.State]int{journal.Accepted: 1, journal.Sealed: 3, journal.Delivered: 4, journal.Abandoned: 2}[state]
	if state == journal.Abandoned {
		steps[1] = func() error { return c.Journal.Abandon(ctx, key, "LEASE_LOST") }
	}
	dir := c.dir(key)
	steps = append(steps[:last:last], func() error { return os.MkdirAll(dir, 0o700) },
		func() error { return os.WriteFile(filepath.Join(dir, "log"), make([]byte, leftBytes), 0o600) })
	for _, step := range steps {
		if err := step(); err != nil {
			c.t.Fatal(err)
		}
	}
	return key
}

// uuid is always the same one for a name.
func (c cupboard) uuid(name string) string {
	sum := sha256.Sum256([]byte(name))
	h := hex.EncodeToString(sum[:])
	id := fmt.Sprintf("%s-%s-4%s-8%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:32])
	c.names[id] = name
	return id
}

func (c cupboard) dir(key journal.Key) string { return filepath.Join(c.JobsDir, key.ID, key.Lease) }

// left names the runs that still have files.
func (c cupboard) left() []string {
	c.t.Helper()
	found, err := filepath.Glob(filepath.Join(c.JobsDir, "*", "*", "log"))
	if err != nil {
		c.t.Fatal(err)
	}
	names := []string{}
	for _, path := range found {
		lease := filepath.Dir(path)
		names = append(names, c.names[filepath.Base(filepath.Dir(lease))]+"/"+c.names[filepath.Base(lease)])
	}
	slices.Sort(names)
	return names
}

func (c cupboard) trim(keep supervisor.Keep, now time.Time) supervisor.Trimmed {
	c.t.Helper()
	done, err := c.Trim(context.Background(), keep, now)
	if err != nil {
		c.t.Fatal(err)
	}
	return done
}

const day = 24 * time.Hour

// TestTrim: what lies beyond the bounds goes, the oldest first; what goes on, or
// isn't delivered, stays whatever the bounds are.
func TestTrim(t *testing.T) {
	for _, c := range []struct {
		name string
		keep supervisor.Keep
		now  time.Duration
		left []string
		runs int
	}{
		{"all within the bounds", supervisor.Keep{Age: day, Bytes: 1 << 40}, time.Hour, []string{"a/1", "a/2", "b/1", "going/1", "undelivered/1"}, 0},
		{"too old", supervisor.Keep{Age: day, Bytes: 1 << 40}, day + time.Hour, []string{"going/1", "undelivered/1"}, 3},
		{"room for one", supervisor.Keep{Age: day, Bytes: 3 * leftBytes / 2}, time.Hour, []string{"b/1", "going/1", "undelivered/1"}, 2},
		{"room for none", supervisor.Keep{Age: day}, time.Hour, []string{"going/1", "undelivered/1"}, 3},
		{"still written about", supervisor.Keep{}, 30 * time.Second, []string{"a/1", "a/2", "b/1", "going/1", "undelivered/1"}, 0},
		{"the disk is short of one", supervisor.Keep{Age: day, Bytes: 1 << 40, Short: leftBytes / 2}, time.Hour, []string{"a/2", "b/1", "going/1", "undelivered/1"}, 1},
		{"the disk is short of more than all", supervisor.Keep{Age: day, Bytes: 1 << 40, Short: 4 * leftBytes}, time.Hour, []string{"a/1", "a/2", "b/1", "going/1", "undelivered/1"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			shelf := newCupboard(t)
			shelf.put("going", "1", journal.Accepted)
			shelf.put("undelivered", "1", journal.Sealed)
			shelf.put("a", "1", journal.Delivered)
			shelf.put("a", "2", journal.Abandoned)
			shelf.put("b", "1", journal.Delivered)
			now := time.Now().Add(c.now)
			if done := shelf.trim(c.keep, now); done.Runs != c.runs || done.Bytes < int64(c.runs)*leftBytes {
				t.Errorf("it removed %+v", done)
			}
			if diff := cmp.Diff(c.left, shelf.left()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if done := shelf.trim(supervisor.Keep{Age: c.keep.Age, Bytes: c.keep.Bytes}, now); done.Runs != 0 {
				t.Errorf("a second call removed %+v", done)
			}
		})
	}
}

// A run is found, and can be deleted, however many came after it.
func TestOldRunsAreFound(t *testing.T) {
	shelf := newCupboard(t)
	first := shelf.put("first", "1", journal.Delivered)
	for i := range 501 {
		id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
		key := journal.Key{Kind: journal.KindJob, ID: id, Lease: id}
		if _, _, err := shelf.Journal.Accept(t.Context(), key, []byte(`{}`), "token", time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := shelf.Job(t.Context(), first.ID); err != nil || len(found) != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := shelf.DeleteJob(t.Context(), first.ID); err != nil {
		t.Error(err)
	}
	if left := shelf.left(); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// TestTrimKeepsSignatures: the signer's log must still fit, and a run that comes
// again must be known as over.
func TestTrimKeepsSignatures(t *testing.T) {
	shelf := newCupboard(t)
	key := shelf.put("a", "1", journal.Delivered)
	before, err := shelf.Journal.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	shelf.trim(supervisor.Keep{Age: day}, time.Now().Add(time.Hour))
	after, err := shelf.Journal.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !after.Deleted || after.Task != nil || len(after.Seal.Body) != 0 {
		t.Errorf("the client's part is still there: %+v", after)
	}
	if after.State != journal.Delivered || after.Seal.Hash != before.Seal.Hash || after.Seal.Signature != before.Seal.Signature {
		t.Errorf("hash or signature is gone: %+v", after)
	}
	known, err := shelf.Journal.KnowsEvidence(context.Background(), key, before.Seal.Hash)
	if err != nil || !known {
		t.Errorf("the signer's log would not fit: %v, %v", known, err)
	}
	if _, err := os.Stat(filepath.Dir(shelf.dir(key))); !os.IsNotExist(err) {
		t.Errorf("an empty directory is left: %v", err)
	}
}

// TestTrimAfterACrash: files that went without their record are no obstacle.
func TestTrimAfterACrash(t *testing.T) {
	shelf := newCupboard(t)
	first := shelf.put("a", "1", journal.Delivered)
	shelf.put("b", "1", journal.Delivered)
	shelf.put("c", "1", journal.Delivered)
	if err := os.RemoveAll(shelf.dir(first)); err != nil {
		t.Fatal(err)
	}
	if done := shelf.trim(supervisor.Keep{}, time.Now().Add(time.Hour)); done.Runs != 3 {
		t.Errorf("it removed %+v", done)
	}
	kept, err := shelf.Journal.Kept(context.Background(), 10)
	if err != nil || len(kept) != 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

// TestJ10JournalCompacts: what was trimmed leaves the journal's file, too.
func TestJ10JournalCompacts(t *testing.T) {
	shelf := newCupboard(t)
	file := filepath.Join(filepath.Dir(shelf.JobsDir), "journal", "journal.db")
	for i := range 40 {
		key := shelf.put(fmt.Sprint("run", i), "1", journal.Accepted)
		if err := shelf.Journal.Checkpoint(context.Background(), key, "large", make([]byte, 256<<10)); err != nil {
			t.Fatal(err)
		}
		if err := shelf.Journal.Abandon(context.Background(), key, "LEASE_LOST"); err != nil {
			t.Fatal(err)
		}
	}
	full := sizeOf(t, file) + sizeOf(t, file+"-wal")
	shelf.trim(supervisor.Keep{Age: day}, time.Now().Add(time.Hour))
	if is := sizeOf(t, file) + sizeOf(t, file+"-wal"); full < 10<<20 || is > full/10 {
		t.Errorf("the journal had %d bytes, and has %d", full, is)
	}
	counts, err := shelf.Journal.Counts(context.Background())
	if err != nil || counts[journal.Abandoned] != 40 {
		t.Errorf("the runs are forgotten: %v, %v", counts, err)
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
