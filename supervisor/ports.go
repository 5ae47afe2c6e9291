package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
)

// The names of our own checkpoints; a run's are the worker's.
const (
	stepUsage      = "supervisor.usage"
	stepSubmission = "supervisor.submission"
)

// checkpoints is jobs.Checkpoints for one run, kept in the journal.
type checkpoints struct {
	journal *journal.Journal
	key     runKey
	log     *slog.Logger
}

var _ jobs.Checkpoints = checkpoints{}

// Save keeps a value; when it returns nil it is on the disk.
func (c checkpoints) Save(ctx context.Context, name string, value []byte) error {
	return c.journal.Checkpoint(ctx, c.key, name, value)
}

// Load returns the last saved value of a name.
func (c checkpoints) Load(name string) ([]byte, bool) {
	all, err := c.journal.Checkpoints(context.Background(), c.key)
	if err != nil {
		c.log.Error("checkpoints can't be read", "error", err)
	}
	value, found := all[name]
	return value, found
}

// usage is what a run has spent, by kind: the journal itself adds up totals for
// the owner's budget.
type usage struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
}

// spending is jobs.Ledger for one run, kept in the journal.
type spending struct {
	points checkpoints

	mu  sync.Mutex
	sum usage
}

var _ jobs.Ledger = (*spending)(nil)

// openSpending goes on with what was spent before a restart.
func openSpending(points checkpoints) *spending {
	s := &spending{points: points}
	if text, found := points.Load(stepUsage); found {
		if err := json.Unmarshal(text, &s.sum); err != nil {
			points.log.Error("what was spent can't be read", "error", err)
		}
	}
	return s
}

// Spend adds to what the run has used, on disk.
func (s *spending) Spend(ctx context.Context, input, output int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	input, output = max(input, 0), max(output, 0)
	if err := s.points.journal.Spend(ctx, s.points.key, input+output); err != nil {
		return fmt.Errorf("counting tokens: %w", err)
	}
	s.sum.Input += input
	s.sum.Output += output
	text, err := json.Marshal(s.sum)
	if err != nil {
		return fmt.Errorf("counting tokens: %w", err)
	}
	return s.points.Save(ctx, stepUsage, text)
}

// Spent is what the run has used so far, before a restart too.
func (s *spending) Spent() (input, output int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum.Input, s.sum.Output
}
