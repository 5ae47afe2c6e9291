// Package sandbox is the contract between the steps of a job and whatever runs
// strangers' code for them. A backend probes the host, opens a job, creates
// sandboxes in it, runs commands in them, freezes or collects what changed, and
// takes everything down again. The package holds types and their meaning only:
// it has no word for a token, a key or a model provider, so that no backend can
// be handed one. Start reading at Backend; sandboxtest is the suite that every
// backend passes.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// Places inside every sandbox. They are the same in all sandboxes of a job,
// since build tools remember absolute paths.
const (
	// Workspace is where the tree under work lies and where commands start.
	Workspace = "/workspace"
	// Home is the job's home directory.
	Home = "/home/veyra"
	// Objects is the git worker's object store, a layer of its own.
	Objects = "/home/veyra/objects"
	// InitPath is veyra-init; its helper modes (unpack, read, write) are
	// ordinary commands: [InitPath, "unpack", "/workspace"].
	InitPath = "/.veyra/init"
	// GitPath is the git worker, present in sandboxes without an image.
	GitPath = "/.veyra/git"
	// User and Group are what every command runs as, inside.
	User, Group = 1000, 1000
)

// JobID labels everything a job leaves on the host: 1 to 64 characters of
// [a-z0-9-], chosen by the caller, for example "1f0c2d3e-7".
type JobID string

// LayerID names a frozen layer of one job. It is made by the backend and means
// nothing outside that job.
type LayerID string

// Network is a network phase.
type Network string

// NetworkNone is a namespace that holds nothing but lo.
const NetworkNone Network = "none"

// Profile picks the seccomp profile (see policies.Seccomp).
type Profile string

// The two profiles: git work needs no device nodes, so it can't make any.
const (
	ProfileJob Profile = "job"
	ProfileGit Profile = "git"
)

// Backend makes sandboxes. All methods may run at once.
type Backend interface {
	// Probe starts a real sandbox and reports what was measured. Its error
	// says what is missing and how to get it.
	Probe(ctx context.Context) (Report, error)
	// OpenJob books memory and disk and holds the id range and the layers of
	// a job until its Close.
	OpenJob(ctx context.Context, spec JobSpec) (Job, error)
	// Sweep removes what crashes of this instance left behind, never a foreign
	// or a live object. A second call finds nothing.
	Sweep(ctx context.Context) (Swept, error)
}

// JobSpec is what a job needs for its whole life.
type JobSpec struct {
	ID     JobID
	Limits policies.Limits
}

// Job holds the id range and the layers that its sandboxes share. Its methods
// may run at once, since the next sandbox starts while the last one ends.
type Job interface {
	// Create starts a sandbox; when it returns, every control that the Spec
	// asks for was applied and read back.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Close ends every sandbox of the job and removes all layers. A second
	// call does nothing.
	Close(ctx context.Context) error
}

// Spec is what is asked of a backend for one sandbox. No field can name a host
// path: layers and images go by id.
type Spec struct {
	// Image is the root file system; empty: none, only our own binaries.
	Image images.Digest `json:"image"`
	// Layers lie above the image, topmost first.
	Layers []LayerID `json:"layers"`
	// Network phase of the whole life of the sandbox.
	Network Network `json:"network"`
	// Profile is the seccomp profile.
	Profile Profile `json:"profile"`
	// Limits bind the sandbox; none may exceed the job's.
	Limits policies.Limits `json:"limits"`
}

// Sandbox is a running sandbox. Run may not be called while another Run of it
// is going on (ErrBusy). It has four methods because what was written leaves by
// one of two doors, Freeze or Collect, and both belong to the same life.
type Sandbox interface {
	// Run runs one command as uid 1000 and returns when it and its output are
	// done. An error means that there is no exit status: the sandbox crashed,
	// could not be reached, or ctx was cancelled (which ends the sandbox).
	Run(ctx context.Context, cmd Command) (Exit, error)
	// Freeze ends every process, makes the disk read-only and returns one
	// layer for each part, in order. The sandbox can't be used afterwards.
	Freeze(ctx context.Context, parts []Part) ([]LayerID, error)
	// Collect ends every process and streams what differs in the workspace
	// from the layers below, as a treestream, to w. With it the sandbox can't
	// be used afterwards.
	Collect(ctx context.Context, w io.Writer) error
	// Close ends the sandbox and frees what is not frozen. A second call does
	// nothing.
	Close(ctx context.Context) error
}

// Part names directories of a sandbox, absolute and clean, below Workspace,
// Home or equal to them, that together become one layer.
type Part struct {
	Paths []string `json:"paths"`
}

// Command is one command in a live sandbox.
type Command struct {
	// Argv[0] is looked up in PATH of Env when it holds no slash.
	Argv []string
	// Dir is absolute, clean and inside the workspace or the home; empty: Workspace.
	Dir string
	// Env is the whole environment, NAME=value; nil: DefaultEnv.
	Env []string
	// Stdin may be nil: an empty input.
	Stdin io.Reader
	// Stdout receives both streams in their order when Stderr is nil.
	Stdout, Stderr io.Writer
	// Timeout ends the command with LimitTimeout; 0: none. Measured by the
	// caller's process with a monotonic clock.
	Timeout time.Duration
	// OutputBytes ends the command with LimitOutput once more was read; 0: the
	// sandbox's limit.
	OutputBytes int64
	// Alone kills every other process of the sandbox first, so that nothing an
	// earlier command left behind can write to this command's output.
	Alone bool
}

// Exit is what became of a command.
type Exit struct {
	// Code is the exit status, 128+n when signal n ended the command, 126 when
	// it could not be executed, 127 when it was not found, -1 when a limit
	// ended the whole sandbox and there is no status.
	Code int
	// Signal that ended the command, or 0.
	Signal int
	// Ended names the limit that ended the command, or "".
	Ended Limit
	// Limits lists each limit that was reached meanwhile, sorted, also when
	// the command itself ended 0.
	Limits []Limit
	// Gone says that the sandbox ended with the command (a limit of the whole
	// sandbox): no further Run is possible.
	Gone bool
	// Duration is wall time by the monotonic clock.
	Duration time.Duration
	// OutputBytes counts what was read of both streams.
	OutputBytes int64
	// MemoryPeak is the sandbox's so far, page cache included, in bytes.
	MemoryPeak int64
}

// Limit is the named outcome of a limit.
type Limit string

// The limits, by the names that evidence and metrics use.
const (
	LimitOOM     Limit = "oom"
	LimitPIDs    Limit = "pids"
	LimitDisk    Limit = "disk"
	LimitInodes  Limit = "inodes"
	LimitOutput  Limit = "output"
	LimitTimeout Limit = "timeout"
)

// Report is what a probe measured.
type Report struct {
	Backend   string    `json:"backend"` // "oci"
	Runtime   string    `json:"runtime"` // "runc"
	Version   string    `json:"version"` // of the runtime
	Path      string    `json:"path"`    // of the runtime's file
	Isolation Isolation `json:"isolation"`
	Controls  []Control `json:"controls"`
	// Software is what else sandboxes rest on: an engine, and the runtime that
	// it starts. Advisories are judged by it.
	Software []Software `json:"software,omitempty"`
}

// Software is a program by the name that advisories have for it ("docker",
// "runc").
type Software struct {
	Name    string `json:"name"`
	Version string `json:"version"`        // what it says of itself
	Path    string `json:"path,omitempty"` // of its file, where it is one of this host
}

// Isolation names what answers a sandbox's system calls and what keeps them
// from the host. Evidence carries it.
type Isolation string

// The isolations. Each has its own list of controls that are read back before
// the first command.
const (
	// IsolationUserns is the host's kernel behind a seccomp filter, with every
	// id of the sandbox mapped away by a user namespace.
	IsolationUserns Isolation = "userns+seccomp"
	// IsolationSeccomp is the host's kernel behind a seccomp filter alone: uid 0
	// inside is uid 0 of the host, with four capabilities. An engine without
	// remapped ids has no other; strict refuses it.
	IsolationSeccomp Isolation = "seccomp"
	// IsolationGVisor is gVisor's kernel, a process that the host's kernel
	// confines in turn.
	IsolationGVisor Isolation = "gvisor"
)

// Control is one measured control. Enforced is what was read back, never what
// was asked for.
type Control struct {
	Name     string `json:"name"`
	Enforced bool   `json:"enforced"`
	// Waived: not enforced, and the policy goes without it on this host. It
	// stands in the way of nothing, but is told.
	Waived bool `json:"waived,omitempty"`
	// For is the control of sandboxes that the host can't enforce without this.
	For  policies.Control `json:"for,omitempty"`
	Seen string           `json:"seen"`
	Fix  string           `json:"fix,omitempty"` // how to get it, when missing
}

// Swept counts what a sweep removed, by kind: container, cgroup, mount, loop,
// disk, lock.
type Swept map[string]int

// DefaultEnv is the environment of every command that asks for no other. It
// holds nothing of the host.
func DefaultEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + Home, "USER=veyra", "LOGNAME=veyra",
		"LANG=C.UTF-8", "CI=true", "TMPDIR=/tmp", "TERM=dumb",
	}
}
