package supervisor

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
)

// countPatience bounds how long a scrape waits for the journal.
const countPatience = 2 * time.Second

// present is what metrics say, from the same places as status and the next beat.
func (s *Supervisor) present() telemetry.Present {
	now := telemetry.Present{
		Paired: s.parts.Pairing.State() == Paired, Ready: s.shown(time.Now()).Reason,
		Redacted: s.parts.Secrets.Redactions(), FreeBytes: freeBytes(s.config.JobsDir), Records: s.countRecords(),
	}
	now.Outbox, now.Oldest = s.outbox.size()
	if r := s.running.Load(); r != nil {
		left := r.lease.left()
		now.Running, now.Lease = 1, &left
	}
	return now
}

// freeBytes is nil when dir can't be asked.
func freeBytes(dir string) *uint64 {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return nil
	}
	free := fs.Bavail * uint64(fs.Bsize)
	return &free
}

// countRecords is nil when the journal does not answer.
func (s *Supervisor) countRecords() map[string]int {
	ctx, cancel := context.WithTimeout(context.Background(), countPatience)
	defer cancel()
	counts, err := s.parts.Journal.Counts(ctx)
	if err != nil {
		return nil
	}
	byState := map[string]int{}
	for state, n := range counts {
		byState[string(state)] = n
	}
	return byState
}
