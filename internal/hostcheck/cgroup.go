package hostcheck

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// needed are the controllers that limits of sandboxes are made with.
var needed = []string{"memory", "pids", "cpu"}

// hierarchies is how cgroups are mounted on a host.
type hierarchies struct {
	v1 map[string]string // controller to mount point, without the leading slash
	v2 string            // mount point; empty: none
	// unified are the controllers of v2.
	unified []string
}

// cgroups reads proc_pid_mountinfo(5): the mount point is the fifth field, type
// and options of the file system stand behind the dash.
func (h Host) cgroups() hierarchies {
	found := hierarchies{v1: map[string]string{}}
	text, _ := h.text("proc/self/mountinfo")
	for line := range strings.Lines(text) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		point := strings.TrimPrefix(l[4], "/")
		switch r[0] {
		case "cgroup":
			for _, option := range strings.Split(r[2], ",") {
				found.v1[option] = point
			}
		case "cgroup2":
			found.v2 = point
			controllers, _ := h.text(point + "/cgroup.controllers")
			found.unified = strings.Fields(controllers)
		}
	}
	return found
}

func (c hierarchies) has(controller string) bool {
	return c.v1[controller] != "" || slices.Contains(c.unified, controller)
}

// layout names what is mounted.
func (c hierarchies) layout() string {
	v1 := slices.ContainsFunc(needed, func(n string) bool { return c.v1[n] != "" })
	switch {
	case v1 && c.v2 != "":
		return "hybrid"
	case v1:
		return "version 1"
	case c.v2 != "":
		return "version 2"
	}
	return "none mounted"
}

func (h Host) controllers() Line {
	groups := h.cgroups()
	var missing []string
	for _, name := range needed {
		if !groups.has(name) {
			missing = append(missing, name)
		}
	}
	l := Line{Name: "cgroup controllers", Good: len(missing) == 0, Seen: groups.layout() + ", with " + strings.Join(needed, ", ")}
	if !l.Good {
		l.Seen = fmt.Sprintf("%s, without %s", groups.layout(), strings.Join(missing, ", "))
		l.Means = "these limits of a sandbox can't be set"
		l.Fix = "delegate them to the daemon (Delegate=yes in its unit); boot with cgroup_enable=memory where memory is switched off"
	}
	return l
}

// io is for throttling disk writes; nothing requires it.
func (h Host) io() Line {
	groups := h.cgroups()
	l := Line{Name: "cgroup io", Good: slices.Contains(groups.unified, "io"), Seen: "version 2 has io"}
	if !l.Good {
		l.Seen = "no io controller of version 2"
		l.Means = "a job that writes without end slows down other programs' disk access"
		l.Fix = "boot with systemd.unified_cgroup_hierarchy=1, and delegate io"
	}
	return l
}

// swap is harmless where a cgroup can forbid it.
func (h Host) swap() Line {
	text, err := h.text("proc/swaps")
	areas := max(0, len(strings.Split(text, "\n"))-1)
	if err != nil || areas == 0 {
		return Line{Name: "swap", Good: true, Seen: "none"}
	}
	if h.swapAccounted() {
		return Line{Name: "swap", Good: true, Seen: fmt.Sprintf("%d areas, and cgroups count it", areas)}
	}
	return Line{
		Name: "swap", Seen: fmt.Sprintf("%d areas, and cgroups don't count it", areas),
		Means: "a job's memory can be swapped out past its limit, and its content reaches the disk",
		Fix:   "boot with swapaccount=1, or swapoff -a",
	}
}

// swapAccounted looks for the file that forbids swap: in the root of version 1,
// in any group below the root of version 2.
func (h Host) swapAccounted() bool {
	groups := h.cgroups()
	if point := groups.v1["memory"]; point != "" {
		return h.exists(point + "/memory.memsw.limit_in_bytes")
	}
	if groups.v2 == "" {
		return false
	}
	found, _ := fs.Glob(h.Root, groups.v2+"/*/memory.swap.max")
	return len(found) > 0 || h.exists(groups.v2+"/memory.swap.max")
}
