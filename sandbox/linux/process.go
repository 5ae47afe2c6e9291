package linux

import (
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

// ReadProcess reads PID 1 from outside: what it says about itself is compared
// by the supervisor.
func ReadProcess(pid int, a *sandbox.Applied) error {
	proc := "/proc/" + strconv.Itoa(pid)
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
	a.Own, a.Shared = ownNamespaces(proc)
	if err := readRlimits(pid, a); err != nil {
		return err
	}
	if a.Net, err = interfaces(proc + "/net/dev"); err != nil {
		return err
	}
	return readMap(proc+"/uid_map", a)
}

// FirstOfOurs returns the pid if it is a child of ours and the first process of a
// pid namespace, so that all others of the sandbox end with it; else none.
func FirstOfOurs(pid int) ([]int, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil, fmt.Errorf("reading status of PID 1: %w", err)
	}
	fields := statusFields(string(status))
	numbers := strings.Fields(fields["NSpid"])
	if fields["PPid"] != strconv.Itoa(os.Getpid()) || len(numbers) < 2 || numbers[len(numbers)-1] != "1" {
		return nil, nil
	}
	return []int{pid}, nil
}

// ReadTasks reads PID 1's hard limit of tasks for each user id.
func ReadTasks(pid int) (int64, error) {
	var tasks unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &tasks); err != nil {
		return 0, fmt.Errorf("reading limits of PID 1: %w", err)
	}
	return clamp(tasks.Max), nil
}

// IsolationOf looks at the program that the host runs as PID 1: a guest's kernel
// is the runtime itself, whatever else is a process of the host's kernel behind
// its seccomp filter.
func IsolationOf(pid int, runtime string) (sandbox.Isolation, error) {
	program, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return "", fmt.Errorf("looking at the program of PID 1: %w", err)
	}
	file, err := os.Stat(runtime)
	if err != nil {
		return "", fmt.Errorf("looking at the runtime: %w", err)
	}
	if os.SameFile(program, file) {
		return sandbox.IsolationGVisor, nil
	}
	return sandbox.IsolationUserns, nil
}

// What counts in a sandbox's user namespace counts for its owner as well, the
// host's root (user_namespaces(7)): so each gets a part of the limit of whoever
// starts it, or one could use up the host's own.

// QueueShare is a sandbox's part of RLIMIT_MSGQUEUE, in bytes.
func QueueShare(limit uint64) uint64 { return limit / 4 }

// SignalShare is a sandbox's part of RLIMIT_SIGPENDING, in signals.
func SignalShare(limit uint64) uint64 { return limit / 8 }

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

// ownNamespaces counts the namespaces that a process does not share with us, and
// names the others. One that can't be compared counts as shared.
func ownNamespaces(proc string) (own int, shared string) {
	var names []string
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		theirs, err := os.Readlink(proc + "/ns/" + name)
		ours, err2 := os.Readlink("/proc/self/ns/" + name)
		if err == nil && err2 == nil && theirs != ours {
			own++
			continue
		}
		names = append(names, name)
	}
	return own, strings.Join(names, " ")
}

func readMap(path string, a *sandbox.Applied) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading id map: %w", err)
	}
	var inside, first, count uint32
	if n, err := fmt.Sscan(string(raw), &inside, &first, &count); n != 3 || err != nil || inside != 0 {
		return fmt.Errorf("id map %.80q: %w", raw, ErrMissing)
	}
	a.FirstID, a.IDs = first, count
	return nil
}
