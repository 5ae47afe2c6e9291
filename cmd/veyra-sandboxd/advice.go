package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostpkg"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// errAdvised is wrapped when the policy refuses a runtime for an advisory.
var errAdvised = errors.New("the policy refuses it for an advisory")

// advise judges what a probe has named by the table of advisories and by what
// the owner has accepted. The findings are told also where one refuses.
func advise(ctx context.Context, s *Settings, report sandbox.Report) ([]policies.Finding, error) {
	policy, err := s.readPolicy()
	if err != nil {
		return nil, err
	}
	accepted, err := acceptedIDs(s.StateDir)
	if err != nil {
		return nil, err
	}
	found, err := policies.Advise(softwareOf(ctx, report), accepted)
	if err != nil {
		return nil, err
	}
	return found, refusal(policy, found)
}

// refusal names every finding that the policy refuses for.
func refusal(policy policies.Policy, found []policies.Finding) error {
	var why []string
	for _, f := range found {
		if f.Refuses(policy) {
			why = append(why, f.Sentence())
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s Update it, or accept each with `veyra-sandboxd doctor --accept-runtime ID`", errAdvised, strings.Join(why, " "))
}

// softwareOf asks for packages only where a version is affected: a fixed one
// needs no excuse.
func softwareOf(ctx context.Context, report sandbox.Report) []policies.Software {
	all := append([]sandbox.Software{{Name: report.Runtime, Version: report.Version, Path: report.Path}}, report.Software...)
	var out []policies.Software
	for _, s := range all {
		if s.Name == "" {
			continue
		}
		judged := policies.Software{Name: s.Name, Version: s.Version}
		if policies.Affects(s.Name, s.Version) {
			judged.Package = packageFor(ctx, s)
		}
		out = append(out, judged)
	}
	return out
}

// packageFor looks for the package of a program. Of an engine and of what it
// starts only the names are known: the file of that name on this host tells the
// package only if that is of the version which the engine says.
func packageFor(ctx context.Context, s sandbox.Software) *policies.Package {
	name := s.Name
	if name == "docker" {
		name = "dockerd"
	}
	if filepath.Base(s.Path) == name {
		return packageOf(ctx, s.Path)
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return nil
	}
	if p := packageOf(ctx, found); p != nil && p.Upstream() == s.Version {
		return p
	}
	return nil
}

// packageOf is nil where none is known: then the upstream version counts.
func packageOf(ctx context.Context, path string) *policies.Package {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	owner, err := hostpkg.Of(ctx, "/", resolved)
	if err != nil {
		return nil
	}
	return &policies.Package{System: owner.System, Name: owner.Name, Version: owner.Version}
}

// adviceWeakenings are the findings that policy_weakenings counts.
func adviceWeakenings(found []policies.Finding) []string {
	var out []string
	for _, f := range found {
		if f.Strict != policies.VerdictNote {
			out = append(out, f.Sentence())
		}
	}
	return out
}

// acceptedSentences are what status shows.
func acceptedSentences(found []policies.Finding) []string {
	out := []string{}
	for _, f := range found {
		if f.Accepted {
			out = append(out, f.Sentence())
		}
	}
	return out
}
