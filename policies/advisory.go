package policies

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

// Systems of packages.
const (
	SystemDeb = "deb"
	SystemRPM = "rpm"
)

// Package is what a file of the host was installed by.
type Package struct {
	System  string `json:"system"` // SystemDeb or SystemRPM
	Name    string `json:"name"`
	Version string `json:"version"` // epoch:upstream-revision
}

// Software is one program that sandboxes rest on, as the host has it.
type Software struct {
	Name    string   // the component of an advisory: runc, crun, runsc, docker
	Version string   // what it says of itself
	Package *Package // what it was installed by; nil: no package is known
}

// Verdict is what strict does about an affected version.
type Verdict string

// The verdicts, from the hardest. A note is told and is no weakening.
const (
	VerdictRefuse Verdict = "refuse"
	VerdictWarn   Verdict = "warn"
	VerdictNote   Verdict = "note"
)

// Advisory is an entry of data/advisories.yaml.
type Advisory struct {
	Component string         `yaml:"component"`
	IDs       []string       `yaml:"ids"`
	Affected  []versionRange `yaml:"affected"`
	Fixed     string         `yaml:"fixed"`
	Packages  []fixedPackage `yaml:"packages"`
	What      string         `yaml:"what"`
	Reachable string         `yaml:"reachable"` // by our use: yes, partly, no
	Why       string         `yaml:"why"`
	Strict    Verdict        `yaml:"strict"`
}

// versionRange is from From up, its pre-releases included, below Below. An
// empty end is none.
type versionRange struct {
	From  string `yaml:"from"`
	Below string `yaml:"below"`
}

// fixedPackage is the first version of a package with an affected upstream part
// that has the fix nevertheless.
type fixedPackage struct {
	System  string `yaml:"system"`
	Version string `yaml:"version"`
}

// Advisories returns the table. An error is a fault of the build.
var Advisories = sync.OnceValues(func() ([]Advisory, error) {
	text, err := dataFiles.ReadFile("data/advisories.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading advisories: %w", err)
	}
	return parseAdvisories(text)
})

func parseAdvisories(text []byte) ([]Advisory, error) {
	var table []Advisory
	if err := yaml.UnmarshalWithOptions(text, &table, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("advisories: %w: %w", ErrPolicyInvalid, err)
	}
	for _, a := range table {
		if err := a.check(); err != nil {
			return nil, fmt.Errorf("advisory %v: %w: %w", a.IDs, ErrPolicyInvalid, err)
		}
	}
	return table, nil
}

func (a Advisory) check() error {
	for _, r := range a.Affected {
		for _, end := range []string{r.From, r.Below} {
			if _, err := parseRelease(end); err != nil && end != "" {
				return err
			}
		}
	}
	verdict := slices.Contains([]Verdict{VerdictRefuse, VerdictWarn, VerdictNote}, a.Strict)
	reach := slices.Contains([]string{"yes", "partly", "no"}, a.Reachable)
	if !verdict || !reach || a.Component == "" || len(a.IDs) == 0 || len(a.Affected) == 0 || a.What == "" || a.Why == "" {
		return fmt.Errorf("a part is missing or not known")
	}
	return nil
}

// AdvisoryIDs returns every id of the table that strict refuses for: those that
// an owner can accept.
func AdvisoryIDs() ([]string, error) {
	table, err := Advisories()
	var ids []string
	for _, a := range table {
		if a.Strict == VerdictRefuse {
			ids = append(ids, a.IDs...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// Finding is an advisory that a program of this host is affected by.
type Finding struct {
	ID        string  `json:"id"`
	Component string  `json:"component"`
	Version   string  `json:"version"`
	Package   string  `json:"package,omitempty"` // its name and version
	What      string  `json:"what"`
	Fixed     string  `json:"fixed,omitempty"`
	Reachable string  `json:"reachable"`
	Why       string  `json:"why"`
	Strict    Verdict `json:"strict"`
	// Accepted: the owner has accepted it by name.
	Accepted bool `json:"accepted"`
}

// Sentence tells a finding to people.
func (f Finding) Sentence() string {
	s := fmt.Sprintf("%s %s has %s: %s", f.Component, f.Version, f.ID, f.What)
	if f.Package != "" {
		s = fmt.Sprintf("%s %s (package %s) has %s: %s", f.Component, f.Version, f.Package, f.ID, f.What)
	}
	s += fmt.Sprintf("; reachable here: %s, %s", f.Reachable, f.Why)
	if f.Fixed != "" {
		s += "; fixed in " + f.Fixed
	}
	if f.Accepted {
		s += "; accepted by the owner"
	}
	return s + "."
}

// Refuses says whether the policy lets no job run on a host with the finding.
func (f Finding) Refuses(p Policy) bool {
	return p.Extends == "strict" && f.Strict == VerdictRefuse && !f.Accepted
}

// Advise returns what the software is affected by, one finding for each id, in
// the table's order. A version that can't be read counts as affected by
// everything: nobody could say that it is not.
func Advise(software []Software, accepted []string) ([]Finding, error) {
	table, err := Advisories()
	if err != nil {
		return nil, err
	}
	return advise(table, software, accepted), nil
}

func advise(table []Advisory, software []Software, accepted []string) []Finding {
	var found []Finding
	for _, s := range software {
		for _, a := range table {
			if a.Component != s.Name || !a.affects(s) {
				continue
			}
			for _, id := range a.IDs {
				found = append(found, a.finding(id, s, slices.Contains(accepted, id)))
			}
		}
	}
	return found
}

func (a Advisory) finding(id string, s Software, accepted bool) Finding {
	f := Finding{
		ID: id, Component: s.Name, Version: s.Version, What: a.What, Fixed: a.Fixed,
		Reachable: a.Reachable, Why: a.Why, Strict: a.Strict, Accepted: accepted,
	}
	if s.Package != nil {
		f.Package = s.Package.Name + " " + s.Package.Version
	}
	return f
}

// Affects says whether a version alone, without its package, is in a range of
// any advisory: only then is it worth asking for the package.
func Affects(name, version string) bool {
	table, err := Advisories()
	return err != nil || slices.ContainsFunc(table, func(a Advisory) bool {
		return a.Component == name && a.affects(Software{Name: name, Version: version})
	})
}

func (a Advisory) affects(s Software) bool {
	version, err := parseRelease(s.Version)
	if err != nil {
		return true
	}
	if !slices.ContainsFunc(a.Affected, func(r versionRange) bool { return r.holds(version) }) {
		return false
	}
	return s.Package == nil || !slices.ContainsFunc(a.Packages, s.Package.hasFix)
}

// holds says whether a version lies in the range. check has read its ends.
func (r versionRange) holds(v release) bool {
	if r.From != "" {
		from, _ := parseRelease(r.From)
		from.before = 0 // its first pre-release has the flaw as well
		if v.compare(from) < 0 {
			return false
		}
	}
	below, err := parseRelease(r.Below)
	return err != nil || v.compare(below) < 0
}

// hasFix says whether the package is the fixed one or a later build of the same
// upstream version for the same release of its distribution.
func (p Package) hasFix(fixed fixedPackage) bool {
	epoch, upstream, revision := splitPackage(p.Version)
	fixedEpoch, fixedUpstream, fixedRevision := splitPackage(fixed.Version)
	return p.System == fixed.System && epoch == fixedEpoch && upstream == fixedUpstream &&
		distribution(revision) == distribution(fixedRevision) &&
		comparePackages(p.System, p.Version, fixed.Version) >= 0
}

// distributionTag is the part of an RPM's release that tells whose it is.
var distributionTag = regexp.MustCompile(`\.(?:el|fc|amzn)[0-9]+`)

func distribution(revision string) string {
	return strings.TrimPrefix(distributionTag.FindString(revision), ".")
}
