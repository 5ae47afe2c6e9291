// Package docker runs sandboxes with a Docker Engine of this host. It is a
// sandbox.Driver and lives in the runner, which reaches nothing but the engine's
// socket. The engine gets no say: everything that it would choose is asked for,
// and everything that was asked for is read back from the kernel, since what an
// engine says about a container repeats the request (ADR 28).
//
// Disks, layers and overlays are those of every backend (package linux); they are
// mounted in the runner's own namespace and lent to the engine for the moment of
// a start (graft.go). Commands never go through the engine: PID 1 is veyra-init,
// its streams come by attach (stream.go). There is no call of the engine's
// archive, copy, commit or exec interfaces here, and a test looks for them on the
// wire. Start reading at Driver and at create in job.go; engine.go is all that
// knows the client's module.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Config is what a Driver depends on. All paths are absolute.
type Config struct {
	Instance string          // label of everything that the engine holds
	Socket   string          // the engine's unix socket
	Runtime  string          // a name that the engine lists; empty: the strongest known
	Stage    string          // the runner's own tmpfs, mode 0755, empty
	Disks    string          // directory of disk images
	Run      *os.Root        // the run directory that all instances share
	RunDir   string          // its path on the host, for the engine
	Images   *images.Store   // nil: only sandboxes without an image
	Binaries linux.Binaries  // programs of ours
	Pool     int             // mounted disks held ready; 0: none
	Log      *slog.Logger    // never nil
	Policy   policies.Policy // what no job may go without

	// Seccomp returns the filter of a profile as OCI JSON.
	Seccomp func(profile sandbox.Profile) ([]byte, error)
}

// Driver is the privileged half. All methods may run at once.
type Driver struct {
	config Config
	engine *engine
	pool   *linux.Pool
	traces linux.Traces
	origin origin

	rateless sync.Once // that disks have no limit of their rate is told once

	importing chan struct{} // holds one value while an image is looked up or imported

	jobs linux.Members[sandbox.JobID, *job] // those that are not closed to the end

	mu    sync.Mutex // guards what follows
	next  int        // number of the last name
	debts bool       // the engine may hold containers that it could not remove
}

var _ sandbox.Driver = (*Driver)(nil)

// New prepares the stage and asks the engine what it can do. It starts nothing.
func New(ctx context.Context, config Config) (*Driver, error) {
	d := &Driver{config: config, importing: make(chan struct{}, 1)}
	var err error
	if d.engine, err = newEngine(config.Socket); err != nil {
		return nil, err
	}
	if d.origin, err = originOf(config.RunDir); err != nil {
		return nil, err
	}
	for _, name := range []string{"b", "d", "o"} {
		if err := os.Mkdir(filepath.Join(config.Stage, name), 0o755); err != nil {
			return nil, fmt.Errorf("preparing the stage: %w", err)
		}
	}
	d.pool = linux.NewPool(config.Disks, filepath.Join(config.Stage, "d"), config.Pool, config.Log)
	groups, err := linux.FindCgroups()
	if err != nil {
		return nil, err
	}
	d.traces = linux.Traces{Instance: config.Instance, Run: config.Run, Disks: config.Disks, Cgroups: groups, Log: config.Log, Engine: config.Socket, Lent: d.sweepLent}
	if _, err := d.ask(ctx); err != nil {
		return nil, err
	}
	return d, d.traces.Leave()
}

// ask learns again what the engine is: it may have been replaced.
func (d *Driver) ask(ctx context.Context) (facts, error) {
	f, err := d.engine.facts(ctx, d.config.Runtime)
	if err != nil {
		return facts{}, startError("asking the Docker Engine", err)
	}
	return f, nil
}

// label is the name that everything of an instance in the engine begins with.
func (d *Driver) label() string { return "veyra-" + d.config.Instance }

// name returns a short name that is used once in the life of this runner.
func (d *Driver) name(kind string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	return fmt.Sprintf("%s%d", kind, d.next)
}

// OpenJob books memory and disk. The engine is asked first: one that is gone, or
// was replaced by a weaker one, ends the job before anything is made for it.
func (d *Driver) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.DriverJob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	about, err := d.ask(ctx)
	if err != nil {
		return nil, err
	}
	if err := linux.Insist(d.config.Policy, about.unable()); err != nil {
		return nil, err
	}
	d.settleDebts(ctx)
	j := newJob(d, spec, about)
	if !d.jobs.Add(spec.ID, j) {
		return nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "opening job: it is open already"}
	}
	ledger := linux.Ledger{Run: d.config.Run, Instance: d.config.Instance, Disks: d.config.Disks}
	if j.booked, err = ledger.Book(ctx, spec); err != nil {
		d.jobs.Remove(spec.ID)
		return nil, startError("booking memory and disk", err)
	}
	d.pool.Warm(linux.Size{Bytes: spec.Limits.DiskBytes, Inodes: spec.Limits.Inodes})
	return j, nil
}

// Close gives up the pool and what the engine still holds of this instance.
func (d *Driver) Close() error {
	var failed error
	for _, j := range d.jobs.All() {
		failed = errors.Join(failed, j.Close(context.Background()))
	}
	d.settleDebts(context.Background())
	failed = errors.Join(failed, d.pool.Close())
	d.engine.close()
	_ = d.config.Run.Remove(d.config.Instance + "/" + graftDir) // not empty: the next sweep's
	if failed != nil {
		return failed // the traces stay
	}
	return d.traces.Drop()
}

// owe notes that the engine did not do what it was told in time.
func (d *Driver) owe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.debts = true
}

// settleDebts removes what an engine that hung or was gone has kept of us. What
// it can't do now is tried again with the next job and the next sweep.
func (d *Driver) settleDebts(ctx context.Context) {
	d.mu.Lock()
	owed := d.debts
	d.debts = false
	d.mu.Unlock()
	if !owed {
		return
	}
	if err := d.sweepContainers(ctx, sandbox.Swept{}); err != nil {
		d.config.Log.Warn("removing what the engine has kept", "err", err)
		d.owe()
	}
}

func startError(op string, err error) error {
	var typed *sandbox.Error
	if errors.As(err, &typed) || errors.Is(err, context.Canceled) {
		return err
	}
	return &sandbox.Error{Kind: sandbox.KindStart, Op: op, Err: err}
}
