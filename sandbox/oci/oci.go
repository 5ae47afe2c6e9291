// Package oci runs sandboxes with an OCI runtime and nothing else: no daemon,
// no network, no engine. It is a sandbox.Driver and lives in the runner, in a
// mount namespace of its own, with every file of a sandbox on the runner's
// tmpfs or on a disk image without a name. A Driver makes jobs, a job makes
// sandboxes from a bundle (bundle.go), a disk (disk.go) and an overlay
// (overlay.go). It reads no byte that a sandbox wrote but directory entries.
// Start reading at Driver and at create in job.go.
package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// Config is what a Driver depends on. All paths are absolute.
type Config struct {
	Instance string          // label of everything on the host
	Runtime  string          // the OCI runtime's file (FindRuntime)
	Stage    string          // the runner's own tmpfs, mode 0755, empty
	Disks    string          // directory of disk images
	Run      *os.Root        // the run directory that all instances share
	Images   *images.Store   // nil: only sandboxes without an image
	Binaries linux.Binaries  // programs of ours
	Pool     int             // mounted disks held ready; 0: none
	Log      *slog.Logger    // never nil
	Policy   policies.Policy // what no job may go without
	Rootless bool            // we are root of a user namespace only

	// Seccomp returns the filter of a profile.
	Seccomp func(profile sandbox.Profile) (*specs.LinuxSeccomp, error)
}

// Driver is the OCI backend's privileged half. All methods may run at once.
type Driver struct {
	config  Config
	runtime ociRuntime
	cgroups *linux.Cgroups
	quick   *linux.Quickener
	traces  linux.Traces
	unable  []policies.Control // of this host, as found at the start
	ids     idSpace
	pool    *linux.Pool
	// closing is closed with the driver; preparing waits for what makes a ground.
	closing   chan struct{}
	preparing sync.WaitGroup
	// rateless: that disks have no limit of their rate is told once.
	rateless sync.Once

	jobs linux.Members[sandbox.JobID, *job] // those that are not closed to the end

	mu   sync.Mutex // guards what follows
	next int        // number of the last name
	// ready is the ground of the next job, or nil.
	ready  *ground
	making bool // one is being made
	closed bool // closing was closed
}

var _ sandbox.Driver = (*Driver)(nil)

// New prepares the stage. It starts nothing.
func New(config Config) (*Driver, error) {
	d := &Driver{config: config, quick: linux.NewQuickener(), closing: make(chan struct{})}
	kind, err := flavorOf(config.Runtime)
	if err != nil {
		return nil, err
	}
	d.runtime = ociRuntime{flavor: kind, path: config.Runtime, state: filepath.Join(config.Stage, "r")}
	if err := kind.settle(); err != nil {
		return nil, err
	}
	for _, name := range []string{"b", "d", "i", "o", "r", "u"} {
		if err := os.Mkdir(filepath.Join(config.Stage, name), 0o755); err != nil {
			return nil, fmt.Errorf("preparing the stage: %w", err)
		}
	}
	if d.cgroups, err = findCgroups(config.Rootless); err != nil {
		return nil, err
	}
	d.unable = findUnable(config.Rootless, d.cgroups)
	if d.ids, err = findIDs(config.Rootless); err != nil {
		return nil, err
	}
	d.pool = newPool(config)
	d.traces = linux.Traces{Instance: config.Instance, Run: config.Run, Disks: config.Disks, Cgroups: d.cgroups, Log: config.Log}
	return d, d.traces.Leave()
}

// label is the name of the directory that all cgroups of an instance lie in.
func (d *Driver) label() string { return "veyra-" + d.config.Instance }

func (d *Driver) ledger() linux.Ledger {
	return linux.Ledger{Run: d.config.Run, Instance: d.config.Instance, Disks: d.config.Disks, InMemory: d.config.Rootless}
}

// name returns a short name that is used once in the life of this runner.
func (d *Driver) name(kind string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	return fmt.Sprintf("%s%d", kind, d.next)
}

// OpenJob books what the job may use and takes the ground that its sandboxes share.
func (d *Driver) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.DriverJob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := linux.Insist(d.config.Policy, d.unable); err != nil {
		return nil, err
	}
	j := &job{driver: d, spec: spec, images: map[images.Digest]*mappedImage{}}
	if !d.jobs.Add(spec.ID, j) {
		return nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "opening job: it is open already"}
	}
	var err error
	if j.booked, err = d.ledger().Book(ctx, spec); err != nil {
		d.jobs.Remove(spec.ID)
		return nil, startError("booking memory and disk", err)
	}
	if j.ground, err = d.takeGround(); err != nil {
		j.booked.Release()
		d.jobs.Remove(spec.ID)
		return nil, err
	}
	d.pool.Warm(linux.Size{Bytes: spec.Limits.DiskBytes, Inodes: spec.Limits.Inodes})
	return j, nil
}

// Close gives up the pool and the instance's cgroup.
func (d *Driver) Close() error {
	var failed error
	for _, j := range d.jobs.All() {
		failed = errors.Join(failed, j.Close(context.Background()))
	}
	d.dropGround()
	failed = errors.Join(failed, d.pool.Close(), linux.Group{All: d.cgroups, Path: d.label()}.Remove())
	if failed != nil {
		return failed // the traces stay
	}
	return d.traces.Drop()
}

func startError(op string, err error) error {
	var typed *sandbox.Error
	if errors.As(err, &typed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &sandbox.Error{Kind: sandbox.KindStart, Op: op, Err: err}
}
