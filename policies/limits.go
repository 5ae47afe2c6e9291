package policies

import (
	"fmt"
	"time"
)

// The least that a sandbox can do honest work with. A host that has less is
// not ready, rather than slowly failing people's jobs.
const (
	MinMemoryBytes int64 = 1 << 30
	MinDiskBytes   int64 = 2 << 30
)

// Limits bound one sandbox, and the commands in it. The zero value allows
// nothing but means "all of the host's" for CPUs. Every field is an integer, so
// that Limits survive canonical JSON and can be part of signed evidence.
type Limits struct {
	// CPUs is the number of whole CPUs; 0 means all of the host's.
	CPUs int `json:"cpus"`
	// MemoryBytes bounds memory and swap together: there is no swap.
	MemoryBytes int64 `json:"memory_bytes"`
	// PIDs bounds processes and threads, init's own included.
	PIDs int64 `json:"pids"`
	// DiskBytes and Inodes bound workspace, home and /tmp together.
	DiskBytes int64 `json:"disk_bytes"`
	Inodes    int64 `json:"inodes"`
	// ShmBytes bounds /dev/shm, which is charged to the memory as well.
	ShmBytes int64 `json:"shm_bytes"`
	// OpenFiles is RLIMIT_NOFILE of a command, CoreBytes its RLIMIT_CORE.
	OpenFiles int64 `json:"open_files"`
	CoreBytes int64 `json:"core_bytes"`
	// OutputKeepBytes is how much of a command's output is kept (head and
	// tail); after OutputReadBytes the command ends with the outcome "output".
	OutputKeepBytes int64 `json:"output_keep_bytes"`
	OutputReadBytes int64 `json:"output_read_bytes"`
	// ChangeBytes bounds a change set and its pack together.
	ChangeBytes int64 `json:"change_bytes"`

	// FetchTunnels bounds live tunnels, FetchDownBytes and FetchUpBytes what
	// flows through the proxy while dependencies are fetched.
	FetchTunnels   int   `json:"fetch_tunnels"`
	FetchDownBytes int64 `json:"fetch_down_bytes"`
	FetchUpBytes   int64 `json:"fetch_up_bytes"`
	// SetupPercent and TestPercent are shares of a job's minutes: what set-up
	// may take at most, and what each run of the tests may take.
	SetupPercent int `json:"setup_percent"`
	TestPercent  int `json:"test_percent"`
}

// Capacity is what a host can give to one sandbox now, as measured by the
// caller. Zero means unknown for CPUs, PIDs and OpenFiles, which then bound
// nothing; memory and disk must be known.
type Capacity struct {
	CPUs        int
	MemoryBytes int64
	DiskBytes   int64
	PIDs        int64
	OpenFiles   int64
}

// TooSmallError says that a host has less than the floor of one resource.
type TooSmallError struct {
	Resource   string // "memory" or "disk"
	Have, Need int64  // bytes
}

// Error names the resource, what there is and what is needed.
func (e *TooSmallError) Error() string {
	return fmt.Sprintf("host has %d MiB of %s for a sandbox, at least %d MiB are needed",
		max(e.Have, 0)>>20, e.Resource, e.Need>>20)
}

// bytesPerInode keeps the inode table of a scaled-down disk from eating it: no
// file system of ours gets more than one inode for each block of 4 KiB.
const bytesPerInode = 4096

// Scale returns l cut down to what the host has, never raised above l. A host
// under the floor of memory or disk gives a *TooSmallError.
func (l Limits) Scale(host Capacity) (Limits, error) {
	if host.MemoryBytes < MinMemoryBytes {
		return Limits{}, &TooSmallError{Resource: "memory", Have: host.MemoryBytes, Need: MinMemoryBytes}
	}
	if host.DiskBytes < MinDiskBytes {
		return Limits{}, &TooSmallError{Resource: "disk", Have: host.DiskBytes, Need: MinDiskBytes}
	}
	l.MemoryBytes = min(l.MemoryBytes, host.MemoryBytes)
	l.DiskBytes = min(l.DiskBytes, host.DiskBytes)
	l.Inodes = min(l.Inodes, l.DiskBytes/bytesPerInode)
	l.ShmBytes = min(l.ShmBytes, l.MemoryBytes/2)
	l.CPUs = capped(l.CPUs, host.CPUs)
	l.PIDs = capped(l.PIDs, host.PIDs)
	l.OpenFiles = capped(l.OpenFiles, host.OpenFiles)
	return l, nil
}

// capped is the smaller of two numbers of which 0 means "no bound".
func capped[N int | int64](limit, host N) N {
	switch {
	case host == 0:
		return limit
	case limit == 0:
		return host
	}
	return min(limit, host)
}

// Budgets are the shares of a job's time.
type Budgets struct {
	Total time.Duration // all of the job's minutes
	SetUp time.Duration // at most, for fetch and prepare together
	Test  time.Duration // at most, for each run of the tests
	Tail  time.Duration // kept back for publish and deliver
}

// minTail is the least time kept for publish and deliver, however short the job.
const minTail = 60 * time.Second

// Budgets divides a job's minutes into its shares.
func (l Limits) Budgets(minutes int) Budgets {
	total := time.Duration(minutes) * time.Minute
	return Budgets{
		Total: total,
		SetUp: percent(total, l.SetupPercent),
		Test:  percent(total, l.TestPercent),
		Tail:  min(total, max(minTail, percent(total, 5))),
	}
}

func percent(d time.Duration, share int) time.Duration {
	return d * time.Duration(share) / 100
}
