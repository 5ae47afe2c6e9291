package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// broom is the runner of a host on which something is left.
type broom struct {
	left  sandbox.Swept
	err   error
	short int64 // of the disk; images make up for half of it
	calls []string
}

func (b *broom) Sweep(context.Context) (sandbox.Swept, error) {
	b.calls = append(b.calls, "sweep")
	return b.left, b.err
}

func (b *broom) Reclaim(context.Context) (int64, error) {
	b.calls = append(b.calls, "reclaim")
	b.short /= 2
	return b.short, b.err
}

func TestKeeperLooksOnce(t *testing.T) {
	for name, c := range map[string]struct {
		runner broom
		images bool
		calls  []string
		said   string
	}{
		"a tidy host":               {broom{}, true, []string{"sweep"}, ""},
		"left-overs":                {broom{left: sandbox.Swept{"cgroup": 3, "container": 1}}, true, []string{"sweep"}, "swept what was left on the host"},
		"a disk without room":       {broom{short: 1 << 30}, true, []string{"sweep", "reclaim"}, "removed unused images"},
		"images on another disk":    {broom{short: 1 << 30}, false, []string{"sweep"}, ""},
		"a sweep that failed":       {broom{err: errors.New("no")}, true, []string{"sweep"}, "sweeping"},
		"a runner that is gone":     {broom{err: &sandbox.Error{Kind: sandbox.KindGone}}, true, []string{"sweep"}, ""},
		"a gone runner, and a full": {broom{err: &sandbox.Error{Kind: sandbox.KindGone}, short: 1}, true, []string{"sweep", "reclaim"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			k := bareKeeper(t, &c.runner, &said)
			k.images = c.images
			k.step(t.Context(), time.Now())
			if !slices.Equal(c.runner.calls, c.calls) {
				t.Errorf("asked %q of the runner, want %q", c.runner.calls, c.calls)
			}
			if got := said.String(); c.said == "" && got != "" || !strings.Contains(got, c.said) {
				t.Errorf("said %q, want %q", got, c.said)
			}
			for kind, n := range c.runner.left {
				if got := value(t, k.metrics, "sandbox_swept_total", kind); got != float64(n) {
					t.Errorf("sandbox_swept_total{kind=%q} is %v, want %d", kind, got, n)
				}
			}
		})
	}
}

func bareKeeper(t *testing.T, runner *broom, said *strings.Builder) *keeper {
	t.Helper()
	state := t.TempDir()
	records, err := journal.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { records.Close() })
	return &keeper{
		runner: runner, archive: supervisor.Archive{Journal: records, JobsDir: filepath.Join(state, "jobs")},
		short: func() int64 { return runner.short }, metrics: telemetry.New("test"),
		log: slog.New(slog.NewTextHandler(said, nil)), due: make(chan struct{}, 1),
	}
}

// TestKeeperTrimsNowAndThen: records are many, so they are not gone through after
// each job, but at once when the disk has no room.
func TestKeeperTrimsNowAndThen(t *testing.T) {
	var said strings.Builder
	runner := &broom{}
	k := bareKeeper(t, runner, &said)
	start := time.Now()
	for _, c := range []struct {
		after, want time.Duration
		short       int64
	}{
		{0, 0, 0},
		{9 * time.Minute, 0, 0},
		{9*time.Minute + time.Second, 9*time.Minute + time.Second, 1 << 30},
		{10 * time.Minute, 9*time.Minute + time.Second, 0},
		{20 * time.Minute, 20 * time.Minute, 0},
	} {
		runner.short = c.short
		k.step(t.Context(), start.Add(c.after))
		if got := k.trimmed.Sub(start); got != c.want {
			t.Errorf("after %v records were last gone through at %v, want %v", c.after, got, c.want)
		}
	}
}

// TestKeeperIsAskedOnce: any number of jobs that end while it looks make it look
// once more.
func TestKeeperIsAskedOnce(t *testing.T) {
	k := &keeper{due: make(chan struct{}, 1)}
	for range 3 {
		k.jobClosed()
	}
	<-k.due
	select {
	case <-k.due:
		t.Error("it was asked twice")
	default:
	}
}

func TestKeepSettingsAreBounded(t *testing.T) {
	for _, c := range []struct {
		days  int
		bytes byteSize
		want  string
	}{
		{14, 5 << 30, ""},
		{1, 1 << 20, ""},
		{3650, 1 << 50, ""},
		{0, 5 << 30, "keep.days must be 1 to 3650"},
		{-1, 5 << 30, "keep.days must be 1 to 3650"},
		{3651, 5 << 30, "keep.days must be 1 to 3650"},
		{14, 0, "keep.bytes must be at least 1MiB"},
		{14, 1<<20 - 1, "keep.bytes must be at least 1MiB"},
	} {
		s := defaultSettings()
		s.Keep.Days, s.Keep.Bytes = c.days, c.bytes
		s.finish()
		err := s.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("keep.days %d, keep.bytes %d: %v, want %q", c.days, c.bytes, err, c.want)
		}
	}
}
