package proof

import (
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

var refusals = map[string]refusal{
	"namespaces": namespaces, "mounts": mounts, "calls": calls, "families": families, "doors": doors, "init": initReach,
	"devices": devices, "set-id": setID, "settings": settings, "masked": masked, "root": root, "network": network,
	"sockets": sockets, "terminal": terminal, "priority": priority,
}

// refused is a report of an attack that got nowhere.
func refused(r refusal, gvisor bool) []attack.Try {
	var all []attack.Try
	for _, name := range r.must {
		result := r.kernel[0]
		if gvisor && len(r.gvisor) > 0 {
			result = r.gvisor[0]
		}
		if other, found := r.but[name]; found {
			result = other[0]
		}
		all = append(all, attack.Try{Name: name, Result: result})
	}
	return all
}

// TestEveryAttemptCounts: one attempt that worked, one that is missing and one
// that nobody knows each take the control away.
func TestEveryAttemptCounts(t *testing.T) {
	for name, r := range refusals {
		for _, gvisor := range []bool{false, true} {
			report := refused(r, gvisor)
			if ok, seen := r.judge(view{gvisor: gvisor, tries: report}); !ok {
				t.Errorf("%s, gvisor %t: refused throughout, but: %s", name, gvisor, seen)
			}
			for i := range report {
				spoilt := slices.Clone(report)
				spoilt[i].Result = attack.Done
				if ok, _ := r.judge(view{gvisor: gvisor, tries: spoilt}); ok != r.allows(gvisor, spoilt[i]) {
					t.Errorf("%s, gvisor %t: %s worked, judged %t", name, gvisor, spoilt[i].Name, ok)
				}
				if ok, _ := r.judge(view{gvisor: gvisor, tries: slices.Delete(slices.Clone(report), i, i+1)}); ok {
					t.Errorf("%s, gvisor %t: %s is missing and nobody minds", name, gvisor, report[i].Name)
				}
			}
			more := append(slices.Clone(report), attack.Try{Name: "write@/new", Result: attack.Done})
			if ok, seen := r.judge(view{gvisor: gvisor, tries: more}); ok || !strings.Contains(seen, "write@/new") {
				t.Errorf("%s, gvisor %t: an attempt of no list worked: %s", name, gvisor, seen)
			}
		}
	}
}

// TestWhatAFilterMustRefuse: on the host's kernel an answer other than the
// filter's shows that a call got through to it.
func TestWhatAFilterMustRefuse(t *testing.T) {
	for name, r := range map[string]refusal{"calls": calls, "mounts": mounts, "families": families, "namespaces": namespaces} {
		report := refused(r, false)
		report[len(report)-1].Result = "EINVAL"
		if ok, seen := r.judge(view{tries: report}); ok || !strings.Contains(seen, "EINVAL") {
			t.Errorf("%s: a call that the kernel answered counts as refused: %s", name, seen)
		}
	}
}

func seen(pairs ...string) []attack.Try {
	var all []attack.Try
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, attack.Try{Name: pairs[i], Result: attack.Seen, Detail: pairs[i+1]})
	}
	return all
}

func far(pairs ...string) []attack.Try {
	var all []attack.Try
	for i := 0; i < len(pairs); i += 3 {
		all = append(all, attack.Try{Name: pairs[i], Result: pairs[i+1], Detail: pairs[i+2]})
	}
	return all
}

// TestOutcomes has for each judge of an outcome what it takes and what it must
// not take.
func TestOutcomes(t *testing.T) {
	limits := policies.Limits{MemoryBytes: 512 << 20, PIDs: 64, DiskBytes: 64 << 20, Inodes: 4096, ShmBytes: 4 << 20, OpenFiles: 4096}
	full := far("bytes", "ENOSPC", "1000", "more@/home/veyra", "ENOSPC", "0", "more@/tmp", "ENOSPC", "0", "more@/var/tmp", "ENOSPC", "0")
	named := func(l sandbox.Limit) sandbox.Exit { return sandbox.Exit{Limits: []sandbox.Limit{l}} }
	oom := sandbox.Exit{Code: 137, Limits: []sandbox.Limit{sandbox.LimitOOM}, MemoryPeak: 512 << 20}
	late := sandbox.Exit{Code: 137, Ended: sandbox.LimitTimeout, Limits: []sandbox.Limit{sandbox.LimitTimeout}}
	none := seen("others", "0")
	for _, c := range []struct {
		name  string
		judge judge
		view  view
		want  bool
	}{
		{"open files", openFiles, view{tries: far("open", "EMFILE", "4093")}, true},
		{"open files without end", openFiles, view{tries: far("open", "done", "9000")}, false},
		{"more open files than allowed", openFiles, view{tries: far("open", "EMFILE", "5000")}, false},
		{"open files twice", openFiles, view{tries: far("open", "EMFILE", "1", "open", "EMFILE", "1")}, false},
		{"disk", diskBytes, view{tries: full, exit: named(sandbox.LimitDisk)}, true},
		{"disk not named", diskBytes, view{tries: full}, false},
		{"disk beyond the quota", diskBytes, view{tries: append(far("bytes", "ENOSPC", "70000000"), full[1:]...), exit: named(sandbox.LimitDisk)}, false},
		{"memory for the disk", diskBytes, view{tries: append(far("bytes", "ENOMEM", "1000"), full[1:]...), exit: named(sandbox.LimitDisk)}, false},
		{"home elsewhere", diskBytes, view{tries: append(far("more@/home/veyra", "ENOSPC", "9000000"), full[0], full[2], full[3]), exit: named(sandbox.LimitDisk)}, false},
		{"inodes", diskInodes, view{tries: far("files", "ENOSPC", "4000"), exit: named(sandbox.LimitInodes)}, true},
		{"inodes without end", diskInodes, view{tries: far("files", "done", "24576"), exit: named(sandbox.LimitInodes)}, false},
		{"tmpfs", memoryFiles, view{tries: far("bytes@/dev/shm", "ENOSPC", "4194304")}, true},
		{"tmpfs too large", memoryFiles, view{tries: far("bytes@/dev/shm", "ENOSPC", "9000000")}, false},
		{"another tmpfs without end", memoryFiles, view{tries: far("bytes@/dev/shm", "ENOSPC", "1", "bytes@/run", "done", "9")}, false},
		{"left over", leftOver, view{after: none}, true},
		{"left over seen", leftOver, view{after: seen("others", "1")}, false},
		{"left over writes", leftOver, view{after: append(far("forged", "done", ""), none...)}, false},
		{"left over ended by a limit", leftOver, view{after: none, exit: late}, false},
		{"deadline", deadline, view{exit: late, after: none}, true},
		{"deadline passed", deadline, view{after: none}, false},
		{"deadline outlived", deadline, view{exit: late, after: seen("others", "3")}, false},
		{"output", output, view{exit: sandbox.Exit{Ended: sandbox.LimitOutput}, after: none}, true},
		{"output without end", output, view{after: none}, false},
		{"pids", processes, view{tries: far("fork", "EAGAIN", "50"), exit: named(sandbox.LimitPIDs)}, true},
		{"pids not named", processes, view{tries: far("fork", "EAGAIN", "50")}, false},
		{"pids on gVisor", processes, view{gvisor: true, tries: far("fork", "EAGAIN", "50")}, true},
		{"gVisor ended", processes, view{gvisor: true, crashed: true}, true},
		{"forks without end", processes, view{tries: far("fork", "done", "384"), exit: named(sandbox.LimitPIDs)}, false},
		{"sandbox ended", processes, view{crashed: true}, false},
		{"memory", memory, view{exit: oom}, true},
		{"memory not named", memory, view{exit: sandbox.Exit{Code: 137}}, false},
		{"memory beyond the limit", memory, view{exit: sandbox.Exit{Code: 137, Limits: oom.Limits, MemoryPeak: 600 << 20}}, false},
		{"core", limitsRaised, view{tries: append(seen("hard_core", "0"), far("raise_core", "EPERM", "", "raise_open_files", "EPERM", "")...)}, true},
		{"core allowed", limitsRaised, view{tries: append(seen("hard_core", "1"), far("raise_core", "EPERM", "", "raise_open_files", "EPERM", "")...)}, false},
		{"core raised", limitsRaised, view{tries: append(seen("hard_core", "0"), far("raise_core", "done", "", "raise_open_files", "EPERM", "")...)}, false},
		{"a host's path", hostPaths, view{words: []string{"/srv/state"}, tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "e", "x /srv/state/disks")}, false},
		{"no host's path", hostPaths, view{words: []string{"/srv/state"}, tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "e", "5")}, true},
		{"a bind of the host", hostPaths, view{tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "/proc/self/mountinfo:1", "1 2 0:3 /var/lib/x /in rw - ext4 none rw")}, false},
		{"a source on the host", hostPaths, view{tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "/proc/self/mounts:1", "/var/lib/x /in ext4 rw 0 0")}, false},
		{"an engine's options", hostPaths, view{tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "/proc/self/mountinfo:1", "1 2 0:3 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l")}, true},
		{"our own in options", hostPaths, view{words: []string{"/srv/state"}, tries: seen("a", "1", "b", "2", "c", "3", "d", "4", "/proc/self/mountinfo:1", "1 2 0:3 / / rw - overlay overlay rw,lowerdir=/srv/state/l")}, false},
		{"no path at all", hostPaths, view{}, false},
		{"nothing told", identity, view{}, false},
		{"another variable", environment, view{tries: seen("variable_0", "TOKEN=x")}, false},
	} {
		c.view.limits = limits
		if ok, why := c.judge(c.view); ok != c.want {
			t.Errorf("%s: judged %t: %s", c.name, ok, why)
		}
	}
}

// TestHostSettingsAreCompared: what changed is named.
func TestHostSettingsAreCompared(t *testing.T) {
	before := map[string]string{"/proc/sys/kernel/core_pattern": "core\n"}
	after := map[string]string{"/proc/sys/kernel/core_pattern": "|/evil\n"}
	if c := settingsControl(before, before); !c.Enforced {
		t.Errorf("unchanged settings: %+v", c)
	}
	if c := settingsControl(before, after); c.Enforced || !strings.Contains(c.Seen, "core_pattern") || c.Fix == "" {
		t.Errorf("a changed core_pattern: %+v", c)
	}
	if c := settingsControl(nil, nil); c.Enforced {
		t.Errorf("nothing could be read: %+v", c)
	}
}
