package proof

import (
	"fmt"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// noCaps is an empty capability set in /proc/PID/status.
const noCaps = "0000000000000000"

// identity: the guest of gVisor says mode 0 of seccomp, since the filter is
// around its kernel; that one is read back on the host.
func identity(v view) (bool, string) {
	mode := "2"
	if v.gvisor {
		mode = "0"
	}
	ids := []string{"1000 1000 1000 1000"}
	ok, seen := facts(map[string][]string{
		"Uid": ids, "Gid": ids, "Groups": {""}, "getgroups": {"[] <nil>"}, "NoNewPrivs": {"1"}, "Seccomp": {mode},
		"CapInh": {noCaps}, "CapPrm": {noCaps}, "CapEff": {noCaps}, "CapBnd": {noCaps}, "CapAmb": {noCaps},
		"capget": {"000000000 000000000 000000000"},
	})(v)
	if ok {
		seen = "uid and gid 1000, no groups, five empty capability sets, no_new_privs, seccomp mode " + mode
	}
	return ok, seen
}

// descriptors: three, and none of them leads anywhere but to us.
var descriptors = facts(map[string][]string{
	"open": {"0"}, "standard_0": {"null", "pipe"}, "standard_1": {"pipe"}, "standard_2": {"pipe"},
})

// environment is exactly what a command is given.
func environment(v view) (bool, string) {
	var got []string
	for _, t := range v.tries {
		if strings.HasPrefix(t.Name, "variable_") {
			got = append(got, t.Detail)
		}
	}
	want := sandbox.DefaultEnv()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return false, fmt.Sprintf("%d variables, %d expected: %.300q", len(got), len(want), got)
	}
	return true, fmt.Sprintf("%d variables, all of them ours", len(got))
}

// hostWords are parts of usual paths of daemons and engines.
var hostWords = []string{"/run/veyra", "veyra-sandboxd", "/var/lib/", "/var/cache/", "/docker/", "/containers/", "/overlay2/"}

// hostPaths wants no path of the host in what a sandbox is told of its mounts
// and cgroups. The options of a mount may name directories of an engine, which
// are no secret of ours; our own must not stand there either.
func hostPaths(v view) (bool, string) {
	lines, options := 0, 0
	for _, t := range v.tries {
		if t.Result != attack.Seen {
			continue
		}
		lines++
		if word := firstOf(t.Detail, v.words); word != "" {
			return false, fmt.Sprintf("%s shows %q: %s", t.Name, word, quoted(t.Detail))
		}
		if word := firstOf(withoutOptions(t), hostWords); word != "" {
			return false, fmt.Sprintf("%s shows %q: %s", t.Name, word, quoted(t.Detail))
		}
		if firstOf(t.Detail, hostWords) != "" {
			options++
		}
	}
	if lines < 5 {
		return false, fmt.Sprintf("%d lines were told", lines)
	}
	text := fmt.Sprintf("%d lines of mounts, cgroups and names, none of the host", lines)
	if options > 0 {
		text += fmt.Sprintf("; %d times options name the engine's directories", options)
	}
	return true, text
}

// firstOf is the first word that a text holds.
func firstOf(text string, words []string) string {
	for _, word := range words {
		if word != "" && strings.Contains(text, word) {
			return word
		}
	}
	return ""
}

// withoutOptions is a line of mounts or mountinfo up to its source.
func withoutOptions(t attack.Try) string {
	f := strings.Fields(t.Detail)
	if strings.HasPrefix(t.Name, "/proc/self/mounts") && len(f) > 3 {
		return strings.Join(f[:3], " ")
	}
	if dash := slices.Index(f, "-"); strings.HasPrefix(t.Name, "/proc/self/mountinfo") && dash > 0 && len(f) > dash+2 {
		return strings.Join(f[:dash+3], " ")
	}
	return t.Detail
}

// stopped reads an attack that goes on until an errno stops it.
func stopped(v view, name string, at ...string) (int64, string, bool) {
	t, found := v.detail(name)
	if !found {
		return 0, name + " was not told", false
	}
	return number(t), fmt.Sprintf("%s after %s", t.Result, quoted(t.Detail)), slices.Contains(at, t.Result)
}

func openFiles(v view) (bool, string) {
	n, seen, ok := stopped(v, "open", "EMFILE")
	return ok && n >= 0 && n <= v.limits.OpenFiles, seen
}

// limitsRaised: the core limit is what the policy says, and none can be raised.
func limitsRaised(v view) (bool, string) {
	ok, seen := refusal{must: []string{"raise_core", "raise_open_files"}, kernel: results{"EPERM"}}.judge(v)
	if t, found := v.detail("hard_core"); !found || number(t) < 0 || number(t) > v.limits.CoreBytes {
		return false, "core files of " + quoted(t.Detail) + " bytes"
	}
	return ok, seen
}

// diskBytes: the quota holds for all places together, and the limit is named.
func diskBytes(v view) (bool, string) {
	n, seen, ok := stopped(v, "bytes", "ENOSPC", "EDQUOT")
	ok = ok && n > 0 && n <= v.limits.DiskBytes
	for _, place := range []string{"/home/veyra", "/tmp", "/var/tmp"} {
		more, text, full := stopped(v, "more@"+place, "ENOSPC", "EDQUOT")
		if !full || more > 1<<20 {
			return false, fmt.Sprintf("%s, then %s in %s", seen, text, place)
		}
	}
	return ok && v.named(sandbox.LimitDisk), seen + " bytes, " + v.outcome()
}

// diskInodes: mkfs rounds the number up to whole groups.
func diskInodes(v view) (bool, string) {
	n, seen, ok := stopped(v, "files", "ENOSPC", "EDQUOT")
	return ok && n > 0 && n <= v.limits.Inodes+v.limits.Inodes/4+8192 && v.named(sandbox.LimitInodes), seen + " files, " + v.outcome()
}

// memoryFiles: every file system of memory ends at its size.
func memoryFiles(v view) (bool, string) {
	n, seen, ok := stopped(v, "bytes@/dev/shm", "ENOSPC")
	if !ok || n <= 0 || n > v.limits.ShmBytes+4095 {
		return false, "/dev/shm: " + seen
	}
	for _, t := range v.tries {
		if strings.HasPrefix(t.Name, "bytes@") && t.Result != "ENOSPC" {
			return false, t.Name + " gave " + t.Result + " after " + quoted(t.Detail)
		}
	}
	return true, "/dev/shm: " + seen + " bytes"
}

func (v view) named(limit sandbox.Limit) bool { return slices.Contains(v.exit.Limits, limit) }

// outcome is what the daemon would say of the command.
func (v view) outcome() string {
	switch {
	case v.crashed:
		return "the sandbox ended by itself"
	case len(v.exit.Limits) == 0:
		return "no limit named"
	}
	names := make([]string, len(v.exit.Limits))
	for i, limit := range v.exit.Limits {
		names[i] = string(limit)
	}
	return "named " + strings.Join(names, ", ")
}

// nobodyElse: the next command is alone with PID 1, and its output is its own.
func (v view) nobodyElse() (bool, string) {
	ok, seen := facts(map[string][]string{"others": {"0"}})(view{tries: v.after})
	if len(v.after) != 1 {
		return false, fmt.Sprintf("%d lines, where the next command says one: %s", len(v.after), seen)
	}
	return ok, "the next command: " + seen
}

func leftOver(v view) (bool, string) {
	if v.exit.Code != 0 || v.exit.Ended != "" {
		return false, fmt.Sprintf("the command ended with %d %s", v.exit.Code, v.exit.Ended)
	}
	return v.nobodyElse()
}

func deadline(v view) (bool, string) { return v.ended(sandbox.LimitTimeout) }

func output(v view) (bool, string) { return v.ended(sandbox.LimitOutput) }

// ended wants a limit to have ended the command and nobody to be left.
func (v view) ended(limit sandbox.Limit) (bool, string) {
	if v.exit.Ended != limit {
		return false, fmt.Sprintf("ended with %d, %s", v.exit.Code, v.outcome())
	}
	ok, seen := v.nobodyElse()
	return ok, v.outcome() + "; " + seen
}

// processes: a fork fails and the limit is named. On gVisor it is the limit of
// the user that a fork meets, which nobody counts; or its kernel ends with all
// that is in it (case B01).
func processes(v view) (bool, string) {
	if v.gvisor && (v.crashed || v.exit.Gone && v.named(sandbox.LimitPIDs)) {
		return true, v.outcome()
	}
	n, seen, ok := stopped(v, "fork", "EAGAIN")
	ok = ok && n > 0 && n < v.limits.PIDs && !v.exit.Gone && (v.gvisor || v.named(sandbox.LimitPIDs))
	return ok, seen + " forks, " + v.outcome()
}

// memory: the command is killed and the limit named, on gVisor with the sandbox.
func memory(v view) (bool, string) {
	ok := v.named(sandbox.LimitOOM) && v.exit.Code != 0 && v.exit.MemoryPeak <= v.limits.MemoryBytes+4<<20
	return ok, fmt.Sprintf("%s, peak %d bytes", v.outcome(), v.exit.MemoryPeak)
}
