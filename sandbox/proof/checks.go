package proof

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// check is one control: how it is attacked and what must come of it.
type check struct {
	attack  string
	order   int // of the report; equal: by name
	judge   judge
	fix     string                      // how to get it
	bound   func(policies.Limits) int64 // where the attack gives up by itself
	timeout time.Duration               // 0: none but the round's
	breaks  bool                        // the sandbox is not used again
	silent  bool                        // its output is no report
	follow  bool                        // the next command must be alone
}

// attackTime bounds attacks that are not about time.
const attackTime = 30 * time.Second

func (c check) command(l policies.Limits) sandbox.Command {
	cmd := sandbox.Command{Argv: argv(c.attack), Alone: true, Timeout: c.timeout}
	if c.timeout == 0 {
		cmd.Timeout = attackTime
	}
	if c.bound != nil {
		cmd.Argv = append(cmd.Argv, strconv.FormatInt(c.bound(l), 10))
	}
	return cmd
}

// Controls lists the names of all controls in the order of a report.
func Controls() []string {
	return slices.SortedFunc(maps.Keys(checks), func(a, b string) int {
		if x, y := checks[a].order, checks[b].order; x != y {
			return x - y
		}
		return compare(a, b)
	})
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// What to do about a control that is missing.
const (
	fixProfile = "let the OCI runtime apply the seccomp profile as it is given: no wrapper around it, no build without libseccomp"
	fixRuntime = "use an OCI runtime that applies what it is given, with nothing wrapped around it"
	fixQuota   = "let the disk quota hold: loop devices, mkfs.ext4, an OCI runtime that keeps the mounts it is given"
	fixGroups  = "mount or delegate the memory and pids controllers of the cgroups"
	fixReport  = "this is a defect of the daemon: report it with the output of doctor --prove --json"
)

// checks are all controls, by name.
var checks = map[string]check{
	"identity":          {order: 1, attack: attack.Identity, judge: identity, fix: fixRuntime},
	"descriptors":       {order: 2, attack: attack.Descriptors, judge: descriptors, fix: fixRuntime},
	"environment":       {order: 3, attack: attack.Environment, judge: environment, fix: fixRuntime},
	"namespaces":        {order: 4, attack: attack.Namespaces, judge: namespaces.judge, fix: fixProfile},
	"mount_calls":       {order: 5, attack: attack.Mounts, judge: mounts.judge, fix: fixProfile},
	"kernel_calls":      {order: 6, attack: attack.Calls, judge: calls.judge, fix: fixProfile},
	"socket_families":   {order: 7, attack: attack.Families, judge: families.judge, fix: fixProfile},
	"other_doors":       {order: 8, attack: attack.Doors, judge: doors.judge, fix: fixProfile},
	"init_out_of_reach": {order: 9, attack: attack.Init, judge: initReach.judge, fix: fixReport},
	"devices":           {order: 10, attack: attack.Devices, judge: devices.judge, fix: fixRuntime},
	"set_id":            {order: 11, attack: attack.SetID, judge: setID.judge, fix: fixRuntime},
	"settings":          {order: 12, attack: attack.Settings, judge: settings.judge, fix: fixRuntime},
	"masked":            {order: 13, attack: attack.Masked, judge: masked.judge, fix: fixRuntime},
	"root":              {order: 14, attack: attack.Root, judge: root.judge, fix: fixRuntime},
	"host_paths":        {order: 15, attack: attack.Paths, judge: hostPaths, fix: fixRuntime},
	"network":           {order: 16, attack: attack.Network, judge: both(network.judge, facts(map[string][]string{"interfaces": {"lo"}})), fix: fixRuntime},
	"host_sockets":      {order: 17, attack: attack.Sockets, judge: both(sockets.judge, facts(map[string][]string{"table": {"0"}})), fix: fixRuntime},
	"terminal":          {order: 18, attack: attack.Terminal, judge: terminal.judge, fix: fixProfile},
	"priority":          {order: 19, attack: attack.Schedule, judge: priority.judge, fix: fixRuntime},
	"limits_raised":     {order: 20, attack: attack.Core, judge: limitsRaised, fix: fixRuntime},
	"open_files":        {order: 21, attack: attack.OpenFiles, judge: openFiles, fix: fixRuntime, bound: func(l policies.Limits) int64 { return 2*l.OpenFiles + 64 }},
	"disk_bytes":        {order: 22, attack: attack.Disk, judge: diskBytes, fix: fixQuota, bound: func(l policies.Limits) int64 { return 2 * l.DiskBytes }},
	"disk_inodes":       {order: 23, attack: attack.Inodes, judge: diskInodes, fix: fixQuota, bound: func(l policies.Limits) int64 { return 2*l.Inodes + 16384 }},
	"memory_files":      {order: 24, attack: attack.Tmpfs, judge: memoryFiles, fix: fixRuntime, bound: func(l policies.Limits) int64 { return 2*l.ShmBytes + 64<<20 }},
	"left_over":         {order: 25, attack: attack.Linger, judge: leftOver, fix: fixReport, silent: true, follow: true},
	"deadline":          {order: 26, attack: attack.Stubborn, judge: deadline, fix: fixReport, timeout: time.Second, silent: true, follow: true},
	"output":            {order: 27, attack: attack.Flood, judge: output, fix: fixReport, silent: true, follow: true, bound: func(l policies.Limits) int64 { return 4*l.OutputReadBytes + 64<<20 }},
	"processes":         {order: 28, attack: attack.PIDs, judge: processes, fix: fixGroups, breaks: true, bound: func(l policies.Limits) int64 { return 2*l.PIDs + 256 }},
	"memory":            {order: 29, attack: attack.Memory, judge: memory, fix: fixGroups, silent: true, breaks: true, bound: func(l policies.Limits) int64 { return l.MemoryBytes + 512<<20 }},
}
