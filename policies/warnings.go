package policies

import (
	"fmt"
	"slices"
)

// Warnings returns one sentence for each setting of p that is weaker than
// strict's, in a fixed order; strict itself has none.
func (p Policy) Warnings() []string {
	strict, err := Builtin("strict")
	if err != nil {
		return []string{"The strict policy cannot be read, so weaker settings are not known."}
	}
	return slices.Concat(p.requireWarnings(strict), p.withoutWarnings(), p.networkWarnings(strict), p.limitWarnings(strict),
		p.jobWarnings(strict), p.pathWarnings(strict))
}

// said keeps the sentences whose weakening holds.
func said(sentences map[string]bool) []string {
	var out []string
	for sentence, holds := range sentences {
		if holds {
			out = append(out, sentence)
		}
	}
	slices.Sort(out)
	return out
}

func (p Policy) requireWarnings(strict Policy) []string {
	return said(map[string]bool{
		"Sandboxes may run without a user namespace: root inside one may then be root of the host.":     strict.Require.UserNamespace && !p.Require.UserNamespace,
		"Sandboxes may run without hard quotas: a job may then fill the host's disk.":                   strict.Require.DiskQuota && !p.Require.DiskQuota,
		"Images may be used without a recorded digest: what ran can then not be named with certainty.":  strict.Require.ImageDigest && !p.Require.ImageDigest,
		"Connections may be made without TLS: what they carry can then be read and changed on the way.": strict.Require.HTTPS && !p.Require.HTTPS,
	})
}

func (p Policy) networkWarnings(strict Policy) []string {
	scripts := "Lifecycle scripts of dependencies run while dependencies are prepared, without a network."
	if p.Scripts == ScriptsFetch {
		scripts = "Lifecycle scripts of dependencies run while package registries can be reached."
	}
	return said(map[string]bool{
		"Sandboxes may reach package registries.":                                  strict.Network == NetworkNone && p.Network != NetworkNone,
		"The whole repository is present while package registries can be reached.": strict.FetchTree == FetchManifests && p.FetchTree != FetchManifests,
		scripts: scriptsRank(p.Scripts) > scriptsRank(strict.Scripts),
	})
}

// limitWarnings compares each number; 0 CPUs are all of the host's.
func (p Policy) limitWarnings(strict Policy) []string {
	var out []string
	add := func(what, unit string, have, tight int64) {
		if have > tight {
			out = append(out, fmt.Sprintf("A sandbox may use more %s than strict allows: %s, not %s.",
				what, amount(have, unit), amount(tight, unit)))
		}
	}
	l, s := p.Limits, strict.Limits
	if l.CPUs == 0 {
		out = append(out, fmt.Sprintf("A sandbox may use all CPUs of the host, not %d.", s.CPUs))
	}
	add("CPUs", "", int64(l.CPUs), int64(s.CPUs))
	add("memory", "B", l.MemoryBytes, s.MemoryBytes)
	add("processes", "", l.PIDs, s.PIDs)
	add("disk", "B", l.DiskBytes, s.DiskBytes)
	add("files on its disk", "", l.Inodes, s.Inodes)
	add("shared memory", "B", l.ShmBytes, s.ShmBytes)
	add("open files", "", l.OpenFiles, s.OpenFiles)
	add("core dump", "B", l.CoreBytes, s.CoreBytes)
	add("kept output", "B", l.OutputKeepBytes, s.OutputKeepBytes)
	add("output", "B", l.OutputReadBytes, s.OutputReadBytes)
	add("change set", "B", l.ChangeBytes, s.ChangeBytes)
	add("live tunnels in fetch", "", int64(l.FetchTunnels), int64(s.FetchTunnels))
	add("download in fetch", "B", l.FetchDownBytes, s.FetchDownBytes)
	add("upload in fetch", "B", l.FetchUpBytes, s.FetchUpBytes)
	add("of a job's time for set-up", "%", int64(l.SetupPercent), int64(s.SetupPercent))
	add("of a job's time for each test run", "%", int64(l.TestPercent), int64(s.TestPercent))
	return out
}

func (p Policy) jobWarnings(strict Policy) []string {
	return said(map[string]bool{
		fmt.Sprintf("A job may take %d minutes, not %d.", p.Jobs.Minutes, strict.Jobs.Minutes):      p.Jobs.Minutes > strict.Jobs.Minutes,
		fmt.Sprintf("A job may be repaired %d times, not %d.", p.Jobs.Repairs, strict.Jobs.Repairs): p.Jobs.Repairs > strict.Jobs.Repairs,
		"A job may change dependencies when its task allows it, which strict never lets it.":        p.Jobs.NewDependencies && !strict.Jobs.NewDependencies,
		"A job may change database migrations when its task allows it, which strict never lets it.": p.Jobs.DatabaseMigrations && !strict.Jobs.DatabaseMigrations,
	})
}

func (p Policy) pathWarnings(strict Policy) []string {
	var out []string
	for _, name := range strict.Paths.ProtectedNames {
		if !slices.Contains(p.Paths.ProtectedNames, name) {
			out = append(out, fmt.Sprintf("A job may change %s files, which steer tools and reviewers.", name))
		}
	}
	return out
}

// amount prints a number with its unit; bytes in the largest exact unit.
func amount(n int64, unit string) string {
	if unit != "B" {
		return fmt.Sprintf("%d%s", n, unit)
	}
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		u := sizeUnits[i]
		if n > 0 && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.suffix)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
