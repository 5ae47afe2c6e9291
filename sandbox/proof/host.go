package proof

import (
	"os"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// hostFiles are settings of the host that the attacks try to change, and that
// nobody else changes by the way, as engines do with forwarding.
var hostFiles = []string{
	"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
	"/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/user/max_user_namespaces",
	"/proc/swaps", "/sys/kernel/uevent_helper",
}

// hostSettings reads them; what can't be read is left out.
func hostSettings() map[string]string {
	all := map[string]string{}
	for _, path := range hostFiles {
		if text, err := os.ReadFile(path); err == nil {
			all[path] = settled(path, string(text))
		}
	}
	return all
}

// settled is what of a file changes by somebody's hand: how much of a swap area is
// used, its fourth column, changes all the time.
func settled(path, text string) string {
	if path != "/proc/swaps" {
		return text
	}
	var lines []string
	for line := range strings.Lines(text) {
		columns := strings.Fields(line)
		if len(columns) > 3 {
			columns = slices.Delete(columns, 3, 4)
		}
		lines = append(lines, strings.Join(columns, " "))
	}
	return strings.Join(lines, "\n")
}

// HostUnchanged reads settings of the host now and returns what compares them
// with those of a later time.
func HostUnchanged() func() sandbox.Control {
	before := hostSettings()
	return func() sandbox.Control { return settingsControl(before, hostSettings()) }
}

// settingsControl compares them: whatever the attacks were told, the host tells
// what they did.
func settingsControl(before, after map[string]string) sandbox.Control {
	changed := []string{}
	for _, path := range hostFiles {
		if before[path] != after[path] {
			changed = append(changed, path)
		}
	}
	c := sandbox.Control{Name: "host_unchanged", Enforced: len(changed) == 0 && len(before) > 0, Seen: "settings of the host as before"}
	if !c.Enforced {
		c.Seen = "changed meanwhile: " + strings.Join(changed, ", ")
		c.Fix = "find out who changed them; run this again while nobody administers the host"
	}
	return c
}
