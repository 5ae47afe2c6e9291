package policies

import (
	"fmt"
	"slices"
)

// Warnings returns one sentence for each setting of p that is weaker than
// strict's, in a fixed order; strict itself has none.
func (p Policy) Warnings() []string {
	return p.weakerThan("strict")
}

// WeakerThanBase returns one sentence for each setting of p that is weaker than
// in the built-in policy that it extends.
func (p Policy) WeakerThanBase() []string { return p.weakerThan(p.Extends) }

func (p Policy) weakerThan(name string) []string {
	base, err := Builtin(name)
	if err != nil {
		return []string{"The built-in policy cannot be read, so weaker settings are not known."}
	}
	return slices.Concat(p.requireWarnings(base), p.withoutWarnings(), p.networkWarnings(base), p.limitWarnings(base),
		p.jobWarnings(base), p.pathWarnings(base))
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

func (p Policy) requireWarnings(base Policy) []string {
	return said(map[string]bool{
		"Sandboxes may run without a user namespace: root inside one may then be root of the host.":     base.Require.UserNamespace && !p.Require.UserNamespace,
		"Sandboxes may run without hard quotas: a job may then fill the host's disk.":                   base.Require.DiskQuota && !p.Require.DiskQuota,
		"Images may be used without a recorded digest: what ran can then not be named with certainty.":  base.Require.ImageDigest && !p.Require.ImageDigest,
		"Connections may be made without TLS: what they carry can then be read and changed on the way.": base.Require.HTTPS && !p.Require.HTTPS,
	})
}

func (p Policy) networkWarnings(base Policy) []string {
	scripts := "Lifecycle scripts of dependencies run while dependencies are prepared, without a network."
	if p.Scripts == ScriptsFetch {
		scripts = "Lifecycle scripts of dependencies run while package registries can be reached."
	}
	return said(map[string]bool{
		"Sandboxes may reach package registries.":                                  base.Network == NetworkNone && p.Network != NetworkNone,
		"The whole repository is present while package registries can be reached.": base.FetchTree == FetchManifests && p.FetchTree != FetchManifests,
		scripts: scriptsRank(p.Scripts) > scriptsRank(base.Scripts),
	})
}

// limitWarnings compares each number; 0 CPUs are all of the host's, so that
// nothing is more.
func (p Policy) limitWarnings(base Policy) []string {
	var out []string
	add := func(what, unit string, have, tight int64) {
		if have > tight {
			out = append(out, fmt.Sprintf("A sandbox may use more %s than %s allows: %s, not %s.",
				what, base.Name, amount(have, unit), amount(tight, unit)))
		}
	}
	l, s := p.Limits, base.Limits
	if s.CPUs > 0 && l.CPUs == 0 {
		out = append(out, fmt.Sprintf("A sandbox may use all CPUs of the host, not %d.", s.CPUs))
	}
	if s.CPUs > 0 {
		add("CPUs", "", int64(l.CPUs), int64(s.CPUs))
	}
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

func (p Policy) jobWarnings(base Policy) []string {
	return said(map[string]bool{
		fmt.Sprintf("A job may take %d minutes, not %d.", p.Jobs.Minutes, base.Jobs.Minutes):                   p.Jobs.Minutes > base.Jobs.Minutes,
		fmt.Sprintf("A job may be repaired %d times, not %d.", p.Jobs.Repairs, base.Jobs.Repairs):              p.Jobs.Repairs > base.Jobs.Repairs,
		"A job may change dependencies when its task allows it, which " + base.Name + " never lets it.":        p.Jobs.NewDependencies && !base.Jobs.NewDependencies,
		"A job may change database migrations when its task allows it, which " + base.Name + " never lets it.": p.Jobs.DatabaseMigrations && !base.Jobs.DatabaseMigrations,
	})
}

func (p Policy) pathWarnings(base Policy) []string {
	var out []string
	for _, name := range base.Paths.ProtectedNames {
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
