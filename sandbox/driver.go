package sandbox

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// Driver is the privileged half of a backend. It lives in the runner, takes
// Specs that the runner has checked against the policy, and never reads a byte
// that a sandbox wrote, names of directory entries and extended attributes
// aside. All methods may run at once. It has four methods because Sweep and
// Close are for what others and for what it left itself.
type Driver interface {
	// Facts names the runtime and the controls of the host that can be
	// measured without starting a sandbox.
	Facts(ctx context.Context) (Report, error)
	// OpenJob is Backend.OpenJob.
	OpenJob(ctx context.Context, spec JobSpec) (DriverJob, error)
	// Sweep is Backend.Sweep.
	Sweep(ctx context.Context) (Swept, error)
	// Close gives up what is held between jobs, when all jobs are closed. A
	// second call does nothing.
	Close() error
}

// DriverJob is the privileged half of a Job.
type DriverJob interface {
	// Create starts a sandbox; PID 1 has not yet spoken when it returns.
	Create(ctx context.Context, spec Spec) (DriverSandbox, error)
	// Close ends every sandbox of the job and removes all layers. A second
	// call does nothing.
	Close(ctx context.Context) error
}

// DriverSandbox is the privileged half of a Sandbox. It has six methods since
// what the supervisor does through pipes must be read back through the host.
type DriverSandbox interface {
	// Pipes returns the supervisor's ends of the pipes of PID 1, which the
	// caller closes. A second call returns none.
	Pipes() Pipes
	// Applied reads the controls back from the host. It is asked once PID 1
	// has spoken: earlier, the runtime is still setting them.
	Applied(ctx context.Context) (Applied, error)
	// Counters reads the kernel's counters of the sandbox's limits; also after
	// its end, until Close.
	Counters(ctx context.Context) (Counters, error)
	// Freeze is Sandbox.Freeze.
	Freeze(ctx context.Context, parts []Part) ([]LayerID, error)
	// Collect is Sandbox.Collect.
	Collect(ctx context.Context, w io.Writer) error
	// Close is Sandbox.Close.
	Close(ctx context.Context) error
}

// Pipes are the supervisor's ends of PID 1's standard input and output.
type Pipes struct {
	Stdin, Stdout *os.File
}

// Applied is what a driver read back from the host once a sandbox had started:
// never what was asked for.
type Applied struct {
	// Isolation is what the driver found around PID 1. It decides which list
	// of controls the rest is compared with.
	Isolation Isolation `json:"isolation"`
	// Unable are the controls that the driver found at its own start, before it
	// made any sandbox, that this host can't enforce. One that merely failed
	// for this sandbox is not among them.
	Unable []policies.Control `json:"unable,omitempty"`

	Memory   int64  `json:"memory"`    // bytes
	NoSwap   bool   `json:"no_swap"`   // no swap on top of Memory
	PIDs     int64  `json:"pids"`      // tasks
	CPUMilli int64  `json:"cpu_milli"` // thousandths of a core
	Disk     int64  `json:"disk"`      // bytes of the quota's file system
	Inodes   int64  `json:"inodes"`    // of the quota's file system
	Files    int64  `json:"files"`     // PID 1's hard limit of open files
	Core     int64  `json:"core"`      // PID 1's hard limit of core files, bytes
	Net      string `json:"net"`       // network interfaces, sorted, by spaces
	FirstID  uint32 `json:"first_id"`  // host id of uid 0 inside
	IDs      uint32 `json:"ids"`       // length of the range
	Seccomp  int    `json:"seccomp"`   // mode of PID 1 by the host's /proc
	NoNew    bool   `json:"no_new"`    // PID 1's NoNewPrivs
	Caps     uint64 `json:"caps"`      // PID 1's bounding set
	Own      int    `json:"own"`       // namespaces that differ from the runner's
	Shared   string `json:"shared"`    // those of 7 that don't, sorted, by spaces
	Overlay  bool   `json:"overlay"`   // metacopy, index, redirect_dir are off
	// NoDevices: by the host's mounts, nothing that the sandbox may write to
	// honours device nodes or set-id bits.
	NoDevices bool `json:"no_devices"`
}

// GuestTasks is how many tasks of the host a gVisor sandbox may have whose
// processes are limited to pids: two for each, and what the sentry and its file
// server need before the first. The guest's own limit is reached before that, so
// that a fork is refused; at the host's, gVisor ends with all that runs in it.
func GuestTasks(pids int64) int64 { return 2*pids + 64 }

// Counters are the kernel's numbers for the limits of one sandbox.
type Counters struct {
	OOMKills   int64 `json:"oom_kills"`
	MemoryPeak int64 `json:"memory_peak"` // bytes, page cache included
	PIDsHits   int64 `json:"pids_hits"`   // forks refused
	DiskErrors int64 `json:"disk_errors"` // the host's disk failed below the quota
	Ended      bool  `json:"ended"`       // PID 1 is dead
}

// Place is what the runner has prepared for a driver: a private mount namespace
// with a tmpfs of its own, and what may be read of the rest. Paths are absolute.
type Place struct {
	Instance string          // label of everything on the host
	Stage    string          // the tmpfs: mode 0755, empty
	Disks    string          // directory of disk images
	Images   string          // directory of the image store; may be missing
	Runtime  string          // the OCI runtime's file (oci.FindRuntime)
	Socket   string          // the Docker Engine's; empty: no engine is used
	Run      *os.Root        // the run directory that all instances share
	Init     *os.File        // veyra-init, static
	Git      *os.File        // veyra-git, static; nil: none
	Policy   policies.Policy // what no Spec may exceed
	Log      *slog.Logger
	// Rootless says that the runner is an ordinary user's: root of its own user
	// namespace, with that user's subordinate ids behind it, and of nothing else.
	Rootless bool
}
