package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

const (
	// keepEvery is how often a host is tidied between jobs.
	keepEvery = 2 * time.Minute
	// trimEvery is how often all records are gone through; a disk without room
	// does not wait for it.
	trimEvery = 10 * time.Minute
)

// sweeping is what a keeper asks of the runner.
type sweeping interface {
	Sweep(ctx context.Context) (sandbox.Swept, error)
	// Reclaim removes unused images and returns the bytes that it freed.
	Reclaim(ctx context.Context) (int64, error)
}

// keeper removes what crashes left, what ended runs left for long enough, and,
// when the disk has no room for work, images that nobody uses.
type keeper struct {
	runner  sweeping
	archive supervisor.Archive
	keep    supervisor.Keep // Short is measured anew
	short   func() int64    // bytes that are missing for work to be taken
	images  bool            // unused images take that disk's room
	metrics *telemetry.Metrics
	log     *slog.Logger
	due     chan struct{} // has room for one
	trimmed time.Time     // when records were gone through; watch owns it
}

func newKeeper(s *Settings, h *host, archive supervisor.Archive, metrics *telemetry.Metrics, log *slog.Logger) *keeper {
	return &keeper{
		runner: h.runner, archive: archive, metrics: metrics, log: log, due: make(chan struct{}, 1),
		keep:   supervisor.Keep{Age: time.Duration(s.Keep.Days) * 24 * time.Hour, Bytes: int64(s.Keep.Bytes)},
		images: h.imagesHere,
		short:  func() int64 { return missing(".", int64(s.Keep.DiskFloor)) },
	}
}

// jobClosed asks for a look soon. It may be called from anywhere.
func (k *keeper) jobClosed() {
	select {
	case k.due <- struct{}{}:
	default: // it is asked for already
	}
}

// watch looks at once, after each job, and every few minutes with jitter, since
// all instances of a host do, until ctx ends.
func (k *keeper) watch(ctx context.Context) {
	for ctx.Err() == nil {
		k.step(ctx, time.Now())
		select {
		case <-ctx.Done():
		case <-k.due:
		case <-time.After(keepEvery*4/5 + rand.N(keepEvery*2/5)):
		}
	}
}

// step looks once. Images go before records: they can be built again.
func (k *keeper) step(ctx context.Context, now time.Time) {
	k.sweep(ctx)
	if k.images && k.short() > 0 {
		k.reclaim(ctx)
	}
	if short := k.short(); short > 0 || now.Sub(k.trimmed) >= trimEvery {
		k.trim(ctx, short, now)
	}
}

func (k *keeper) trim(ctx context.Context, short int64, now time.Time) {
	k.trimmed = now
	keep := k.keep
	keep.Short = short
	done, err := k.archive.Trim(ctx, keep, now)
	k.tell(ctx, err, "removing records of jobs")
	if done.Runs > 0 {
		k.log.Info("removed what ended runs left", "runs", done.Runs, "bytes", done.Bytes)
	}
}

// sweep does nothing once the runner is gone: the next start sweeps, or another
// instance of the host.
func (k *keeper) sweep(ctx context.Context) {
	swept, err := k.runner.Sweep(ctx)
	k.tell(ctx, err, "sweeping")
	for kind, n := range swept {
		k.metrics.Swept(kind, n)
	}
	if len(swept) > 0 {
		k.log.Warn("swept what was left on the host", "swept", swept)
	}
}

func (k *keeper) reclaim(ctx context.Context) {
	freed, err := k.runner.Reclaim(ctx)
	k.tell(ctx, err, "removing unused images")
	if freed > 0 {
		k.metrics.ImagesBytes.Sub(float64(freed))
		k.log.Info("removed unused images", "bytes", freed)
	}
}

// tell leaves out what others say better: the end, and a runner that is gone.
func (k *keeper) tell(ctx context.Context, err error, what string) {
	if err != nil && ctx.Err() == nil && sandbox.KindOf(err) != sandbox.KindGone {
		k.log.Warn(what, "error", err)
	}
}
