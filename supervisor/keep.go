package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/journal"
)

// Keep bounds what ended runs leave: their log, transcript, patch and evidence,
// and the client's part of the journal.
type Keep struct {
	// Age is how long a run is kept after its end.
	Age time.Duration
	// Bytes is what all of them may take of the disk in STATE/jobs.
	Bytes int64
	// Short is how much disk is missing for work to be taken, 0 for none. Runs are
	// removed for it only if that is enough: else nothing is gained.
	Short int64
}

const (
	// settling is how long the end of a run may still be written about.
	settling = time.Minute
	// maxTrimmed bounds what one Trim looks at; the next goes on.
	maxTrimmed = 10_000
)

// Trimmed is what a Trim removed.
type Trimmed struct {
	Runs  int
	Bytes int64
}

// remains are the files of a run that has ended.
type remains struct {
	key   journal.Key
	ended time.Time
	bytes int64
}

// Trim removes what lies beyond the bounds, the oldest first. A run that goes on,
// or whose result is not delivered, is never touched; of the others hashes and
// signatures stay for ever. After an error it has gone on with the rest.
func (a Archive) Trim(ctx context.Context, keep Keep, now time.Time) (Trimmed, error) {
	all, total, err := a.remains(ctx, now)
	if err != nil {
		return Trimmed{}, err
	}
	short := keep.Short
	if total < short {
		short = 0
	}
	var done Trimmed
	var failed error
	for _, r := range all {
		if now.Sub(r.ended) <= keep.Age && total <= keep.Bytes && done.Bytes >= short {
			break // all that follow are younger
		}
		if err := a.drop(ctx, r.key); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		total -= r.bytes
		done.Runs++
		done.Bytes += r.bytes
	}
	return done, failed
}

// remains lists the runs that may be removed, the oldest first.
func (a Archive) remains(ctx context.Context, now time.Time) ([]remains, int64, error) {
	records, err := a.Journal.Kept(ctx, maxTrimmed)
	if err != nil {
		return nil, 0, err
	}
	var all []remains
	var total int64
	for _, record := range records {
		if now.Sub(record.Ended) < settling {
			continue
		}
		r := remains{key: record.Key, ended: record.Ended, bytes: diskUsage(a.dirOf(record.Key))}
		all = append(all, r)
		total += r.bytes
	}
	return all, total, nil
}

func (a Archive) dirOf(key journal.Key) string { return filepath.Join(a.JobsDir, key.ID, key.Lease) }

// drop removes files first: a crash in between leaves a record that the next Trim
// takes up.
func (a Archive) drop(ctx context.Context, key journal.Key) error {
	root, err := os.OpenRoot(a.JobsDir)
	if err != nil {
		return fmt.Errorf("opening the jobs directory: %w", err)
	}
	defer root.Close()
	if err := root.RemoveAll(key.ID + "/" + key.Lease); err != nil {
		return fmt.Errorf("removing what %v left: %w", key, err)
	}
	_ = root.Remove(key.ID) // not empty: other runs of the assignment
	return a.Journal.Delete(ctx, key)
}

// diskUsage adds up the blocks below dir. What vanishes meanwhile counts nothing.
func diskUsage(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}
