package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// fitnessEvery is how often the OCI runtime's file is looked at.
const fitnessEvery = 5 * time.Second

// fitness tells whether the policy can still be enforced: the start proved it
// with one runtime, and whoever updates the host may replace that under a
// running daemon.
type fitness struct {
	policy, version string
	what            string // "OCI runtime" or "Docker Engine"
	// dir was opened with power; the supervisor may not be able to reach it by
	// name. -1: nothing to look at.
	dir  int
	name string
	seen runtimeFile
	said atomic.Pointer[string]
	// replaced: the file is another one than at the start, whatever its probe said.
	replaced atomic.Bool
}

// runtimeFile is what changes when a file is replaced or written to.
type runtimeFile struct {
	dev, ino    uint64
	size, mtime int64
}

// newFitness begins with what a probe has just proved.
func newFitness(policy string, report sandbox.Report) (*fitness, error) {
	f := &fitness{policy: policy, version: report.Version, what: "OCI runtime", dir: -1}
	if report.Backend == dockerBackend {
		f.what = "Docker Engine" // its path is the socket, which each start of it makes anew
	}
	path, err := filepath.EvalSymlinks(report.Path)
	if err != nil {
		return nil, fmt.Errorf("resolving the OCI runtime: %w", err)
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the OCI runtime's directory: %w", err)
	}
	f.dir, f.name = dir, filepath.Base(path)
	f.seen, err = f.look()
	return f, err
}

func (f *fitness) look() (runtimeFile, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(f.dir, f.name, &st, 0); err != nil {
		return runtimeFile{}, fmt.Errorf("looking at the OCI runtime: %w", err)
	}
	return runtimeFile{st.Dev, st.Ino, st.Size, st.Mtim.Nano()}, nil
}

// say is the sentence for the readiness check.
func (f *fitness) say() string {
	if said := f.said.Load(); said != nil {
		return *said
	}
	return ""
}

// watch looks until ctx ends.
func (f *fitness) watch(ctx context.Context, backend sandbox.Backend, log *slog.Logger) {
	tick := time.NewTicker(fitnessEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.step(ctx, backend, log)
		}
	}
}

// step probes anew if the file is another one than the last that passed. A host
// that has no room, or no runner, proves nothing about the policy.
func (f *fitness) step(ctx context.Context, backend sandbox.Backend, log *slog.Logger) {
	now, err := f.look()
	if err == nil && now == f.seen {
		return
	}
	f.replaced.Store(true)
	var report sandbox.Report
	if err == nil {
		report, err = backend.Probe(ctx)
	}
	switch kind := sandbox.KindOf(err); {
	case ctx.Err() != nil, kind == sandbox.KindNoRoom, kind == sandbox.KindGone, kind == sandbox.KindBusy:
		return
	case err == nil:
		err = unenforced(report)
	}
	sentence := ""
	switch {
	case err != nil: // tried again with the next step
		sentence = fmt.Sprintf("The policy %s can't be enforced any more: the %s was changed and its probe failed (see `veyra-sandboxd doctor`).", f.policy, f.what)
	case report.Version != f.version: // evidence would name the old one
		f.seen = now
		sentence = fmt.Sprintf("The %s was changed from version %s to %s: restart the daemon.", f.what, f.version, report.Version)
	default:
		f.seen = now
	}
	if old := f.said.Swap(&sentence); old == nil || *old != sentence {
		log.Warn("the "+f.what+" was changed and probed", "version", report.Version, "error", err, "sentence", sentence)
	}
}
