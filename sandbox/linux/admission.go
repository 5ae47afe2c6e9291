package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// disksPerJob: frozen layers of a job live beside the sandbox that runs.
const disksPerJob = 2

// Memory returns how many bytes sandboxes of this host can share at most:
// the smaller of the machine's memory and the limit of our own cgroup.
func Memory() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("measuring memory: %w", err)
	}
	var kib int64
	for line := range strings.Lines(string(raw)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			break
		}
	}
	total := kib << 10
	groups, err := FindCgroups()
	if err != nil {
		return 0, err
	}
	// The group is our own: an empty path below it.
	limit, err := Group{groups, ""}.Read("memory", "memory.limit_in_bytes", "memory.max")
	if err == nil && limit > 0 {
		total = min(total, limit)
	}
	if total <= 0 {
		return 0, fmt.Errorf("measuring memory: %w", ErrMissing)
	}
	return total, nil
}

// freeDisk returns what is free, and the file system's device. There is no
// floor in it: the owner's, by which limits are scaled, is the slack that keeps
// a job bookable while the disk fills a little.
func freeDisk(dir string) (free int64, dev uint64, err error) {
	var st unix.Statfs_t
	var inode unix.Stat_t
	if err := errors.Join(unix.Statfs(dir, &st), unix.Stat(dir, &inode)); err != nil {
		return 0, 0, fmt.Errorf("measuring disk: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, inode.Dev, nil
}

// booking is what a job of any instance has reserved on this host.
type booking struct {
	Memory int64  `json:"memory"`
	Disk   int64  `json:"disk"`
	Dev    uint64 `json:"dev"` // file system of Disk
}

// Ledger is where the jobs of one instance are booked beside all others'.
type Ledger struct {
	Run      *os.Root // the run directory that all instances share
	Instance string
	Disks    string // directory of disk images
	InMemory bool   // disks take the host's memory
}

// Book reserves a job's memory and disk among all instances of the host. The
// reservation is a locked file and ends with the job or the runner.
func (l Ledger) Book(ctx context.Context, spec sandbox.JobSpec) (*hostlock.Lock, error) {
	gate, err := takeGate(ctx, l.Run)
	if err != nil {
		return nil, err
	}
	defer gate.Release()
	free, dev, err := freeDisk(l.Disks)
	if err != nil {
		return nil, err
	}
	memory, err := Memory()
	if err != nil {
		return nil, err
	}
	want := booking{Memory: spec.Limits.MemoryBytes, Disk: disksPerJob * spec.Limits.DiskBytes, Dev: dev}
	if l.InMemory {
		want.Memory, want.Disk = want.Memory+want.Disk, 0
	}
	taken, err := booked(l.Run, dev)
	if err != nil {
		return nil, err
	}
	if err := fits(want, taken, booking{Memory: memory, Disk: free}); err != nil {
		return nil, err
	}
	return writeBooking(l.Run, l.Instance+"."+string(spec.ID), want)
}

// fits compares; the sentence says what is missing.
func fits(want, taken, have booking) error {
	for _, r := range []struct {
		name              string
		want, taken, have int64
	}{{"memory", want.Memory, taken.Memory, have.Memory}, {"disk", want.Disk, taken.Disk, have.Disk}} {
		if r.want > r.have-r.taken {
			return &sandbox.Error{Kind: sandbox.KindNoRoom, Op: fmt.Sprintf("booking %d MiB of %s: %d MiB can be used, %d MiB of them are booked",
				r.want>>20, r.name, max(r.have, 0)>>20, r.taken>>20)}
		}
	}
	return nil
}

// takeGate waits for the lock under which bookings are added up.
func takeGate(ctx context.Context, run *os.Root) (*hostlock.Lock, error) {
	for {
		gate, err := hostlock.Take(run, "admission.lock")
		if !errors.Is(err, hostlock.ErrHeld) {
			return gate, err
		}
		if err := Pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// booked adds up what live jobs hold; what dead ones left is removed. Disk
// counts on the same file system only.
func booked(run *os.Root, dev uint64) (booking, error) {
	var sum booking
	names, err := bookings(run)
	if err != nil {
		return sum, fmt.Errorf("reading bookings: %w", err)
	}
	for _, name := range names {
		b, err := readBooking(run, bookingsDir+"/"+name)
		if err != nil {
			return sum, err
		}
		sum.Memory += b.Memory
		if b.Dev == dev {
			sum.Disk += b.Disk
		}
	}
	return sum, nil
}

// bookingsDir is removed by whoever ends and finds it empty, at any moment.
const bookingsDir = "booked"

// bookings lists the names there; none where the directory is gone.
func bookings(run *os.Root) ([]string, error) {
	dir, err := run.Open(bookingsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

func readBooking(run *os.Root, name string) (booking, error) {
	var b booking
	lock, err := hostlock.Take(run, name)
	if err == nil {
		lock.Release() // its job is over
		return b, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil // it was the last, and the directory went with it
	}
	if !errors.Is(err, hostlock.ErrHeld) {
		return b, err
	}
	raw, err := run.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil // it has just ended
	}
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return b, fmt.Errorf("reading booking %s: %w", name, err)
	}
	return b, nil
}

func writeBooking(run *os.Root, name string, b booking) (*hostlock.Lock, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encoding booking: %w", err)
	}
	lock, err := hostlock.TakeIn(run, bookingsDir, name)
	if err != nil {
		return nil, err
	}
	if err := lock.Note(raw); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}
