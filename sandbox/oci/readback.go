package oci

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Applied reads every control back from the host's side.
func (b *box) Applied(ctx context.Context) (sandbox.Applied, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Applied{}, err
	}
	if b.done || b.closed || b.process == nil {
		return sandbox.Applied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading a sandbox back: it has ended"}
	}
	a := sandbox.Applied{Isolation: sandbox.IsolationUserns}
	err := errors.Join(b.applyCgroup(&a), b.applyDisk(&a), b.applyProcess(&a))
	if err != nil {
		return sandbox.Applied{}, startError("reading a sandbox back", err)
	}
	return a, nil
}

func (b *box) applyCgroup(a *sandbox.Applied) error {
	var errs [3]error
	a.Memory, errs[0] = b.group.read("memory", "memory.limit_in_bytes", "memory.max")
	a.PIDs, errs[1] = b.group.read("pids", "pids.max", "pids.max")
	a.CPUMilli, errs[2] = b.group.cpuMilli()
	a.NoSwap = b.group.noSwap(a.Memory)
	return errors.Join(errs[:]...)
}

func (b *box) applyDisk(a *sandbox.Applied) error {
	quota, err := b.disk.quota()
	if err != nil {
		return err
	}
	a.Disk, a.Inodes = quota.bytes, quota.inodes
	a.Overlay, err = overlayIsPlain(b.rootfs())
	return err
}

// applyProcess reads PID 1 from outside: what it says about itself is compared
// by the supervisor.
func (b *box) applyProcess(a *sandbox.Applied) error {
	proc := "/proc/" + strconv.Itoa(b.process.Pid)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return fmt.Errorf("reading status of PID 1: %w", err)
	}
	fields := statusFields(string(status))
	a.Seccomp, _ = strconv.Atoi(fields["Seccomp"])
	a.NoNew = fields["NoNewPrivs"] == "1"
	if a.Caps, err = strconv.ParseUint(fields["CapBnd"], 16, 64); err != nil {
		return fmt.Errorf("reading capabilities of PID 1: %w", err)
	}
	a.Own = ownNamespaces(proc)
	if err := readRlimits(b.process.Pid, a); err != nil {
		return err
	}
	if a.Net, err = interfaces(proc + "/net/dev"); err != nil {
		return err
	}
	return readMap(proc+"/uid_map", a)
}

func readRlimits(pid int, a *sandbox.Applied) error {
	var files, core unix.Rlimit
	err := errors.Join(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &files), unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &core))
	if err != nil {
		return fmt.Errorf("reading limits of PID 1: %w", err)
	}
	a.Files, a.Core = clamp(files.Max), clamp(core.Max)
	return nil
}

// clamp keeps "unlimited" from becoming a negative number.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// interfaces lists the devices of a process's network namespace: two lines of
// head, then one device a line.
func interfaces(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading network devices: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(raw)) {
		if name, _, found := strings.Cut(line, ":"); found {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " "), nil
}

func statusFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(line, ":"); found {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// ownNamespaces counts the namespaces that a process does not share with us.
func ownNamespaces(proc string) int {
	n := 0
	for _, name := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		theirs, err := os.Readlink(proc + "/ns/" + name)
		ours, err2 := os.Readlink("/proc/self/ns/" + name)
		if err == nil && err2 == nil && theirs != ours {
			n++
		}
	}
	return n
}

func readMap(path string, a *sandbox.Applied) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading id map: %w", err)
	}
	var inside, first, count uint32
	if n, err := fmt.Sscan(string(raw), &inside, &first, &count); n != 3 || err != nil || inside != 0 {
		return fmt.Errorf("id map %.80q: %w", raw, errMissing)
	}
	a.FirstID, a.IDs = first, count
	return nil
}

// Counters reads what the kernel counted against the limits.
func (b *box) Counters(ctx context.Context) (sandbox.Counters, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Counters{}, err
	}
	if b.closed || b.process == nil {
		return sandbox.Counters{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "reading counters: the sandbox is closed"}
	}
	var c sandbox.Counters
	var errs [4]error
	c.OOMKills, errs[0] = b.group.keyed("memory", "memory.oom_control", "memory.events", "oom_kill")
	c.MemoryPeak, errs[1] = b.group.peak()
	c.PIDsHits, errs[2] = b.group.keyed("pids", "pids.events", "pids.events", "max")
	if b.disk != nil {
		c.DiskErrors, errs[3] = b.disk.failures()
	}
	select {
	case <-b.ended:
		c.Ended = true
	default:
	}
	if err := errors.Join(errs[:]...); err != nil {
		return sandbox.Counters{}, fmt.Errorf("reading counters: %w", err)
	}
	return c, nil
}
