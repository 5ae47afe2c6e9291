package jobs

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// job is one execution of a run. One goroutine owns it; facts gathers what
// evidence will state, as far as it is known.
type job struct {
	cfg   Config
	run   Run
	log   *slog.Logger
	files *files
	facts facts
	// draft is the evidence of a journaled intent; nil before it.
	draft protocol.Evidence
	// outlook is what lookOut sees; nil before the clean room. looking waits for
	// it.
	outlook *outlook
	looking sync.WaitGroup
	// room is the open job of the backend; nil until open.
	room sandbox.Job
	// background is what goes on in the room beside the steps, leaving its end.
	background, leaving sync.WaitGroup
	// noting is what still writes into the run's record beside the steps.
	noting sync.WaitGroup
	// web carries what goes to the repository host.
	web *http.Transport
	// phase and since measure the phases.
	phase protocol.Phase
	since time.Time
	steps
}

func newJob(cfg Config, run Run) *job {
	log := cfg.Log.With("assignment", run.Job.Assignment, "lease", run.Job.Lease.ID)
	dropSpools(run.Dir, log) // of an execution that was killed
	return &job{
		cfg: cfg, run: run, log: log, files: openFiles(cfg.Secrets, run.Dir, log), facts: facts{started: run.Started},
		web: wire.NewTransport(nil), steps: steps{origin: run.Started},
	}
}

// close ends what still runs. Its errors are logged: the outcome stands.
func (j *job) close() {
	j.noting.Wait()
	j.looking.Wait()
	j.leaveRoom()
	j.leaving.Wait()
	j.web.CloseIdleConnections()
	dropSpools(j.run.Dir, j.log)
	j.files.close()
}

// leaveRoom closes the job's sandboxes and layers while the job goes on:
// publishing needs none. No step may use the room afterwards.
func (j *job) leaveRoom() {
	room := j.room
	j.room = nil
	if room == nil {
		return
	}
	j.leaving.Go(func() {
		j.background.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := room.Close(ctx); err != nil {
			j.log.Warn("closing the job's sandboxes", "error", err)
		}
	})
}

// enter starts a phase, for the client, the log and the metrics.
func (j *job) enter(phase protocol.Phase, message string) {
	j.leave()
	j.phase, j.since = phase, time.Now()
	j.run.Progress.Phase(phase, message)
	j.files.say("phase %s: %s", phase, message)
	j.log.Info("phase", "phase", phase)
}

func (j *job) leave() {
	if j.phase != "" && j.cfg.Observe != nil {
		j.cfg.Observe(j.phase, time.Since(j.since))
	}
}

// room is an open job of the backend with the rules that hold in it.
type room struct {
	rules   *policies.Effective
	funded  policies.Plan // no commands: to be detected
	budgets policies.Budgets
	ends    time.Time // of the work: publish and deliver come after it
}

// left is the time for the work, never none: a limit of 0 would be no limit.
func (r room) left() time.Duration { return max(time.Until(r.ends), time.Second) }

// engineEnds keeps the time of the tests that judge the change: a change made
// in the last moment could not be tested any more.
func (r room) engineEnds() time.Time {
	return r.ends.Add(-min(r.budgets.Test, r.left()/2))
}

// repository is the base tree: two frozen layers and what stands in them.
type repository struct {
	room
	remote   *wire.Remote
	base     sandbox.LayerID
	objects  sandbox.LayerID
	manifest gitops.Manifest
	plan     policies.Plan
	setUp    policies.SetUp
}

// ready is a repository whose tests can run.
type ready struct {
	repository
	image images.Digest
	deps  []sandbox.LayerID // topmost first; none when nothing was to be fetched
	// commands are the parsed validation commands, one for each of the plan's.
	commands [][]string
}

// based is a ready repository whose tests have run once before any change.
type based struct {
	ready
	first       *started // the sandbox of the first change
	firstCommit *started // the one that makes its commit
}

// collected is a change set on disk, judged by nobody yet.
type collected struct {
	based
	spool   string // file with the treestream
	changes gitops.ChangeSet
	uppers  map[string]gitops.Upper
	ended   coding.Budget // that ended the engine's round, or ""
	next    *started      // the sandbox that makes the commit
}

// committed is a commit of exactly that change set and its layer.
type committed struct {
	collected
	layer   sandbox.LayerID
	request gitops.CommitRequest
	reply   gitops.CommitReply
	pack    string // file with the pack of new objects
}

// tested is a commit whose tree passed in the clean room.
type tested struct {
	committed
	after testRun
}
