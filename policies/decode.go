package policies

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// maxPolicyBytes bounds a policy's text before it is parsed.
const maxPolicyBytes = 64 << 10

// ErrPolicyInvalid is wrapped by every error about a policy's content.
var ErrPolicyInvalid = errors.New("policy is invalid")

// policyFile is the file as written by people. It differs from Policy where a
// readable file needs units or groups.
type policyFile struct {
	Name      string     `yaml:"name"`
	Require   Require    `yaml:"require"`
	Network   Network    `yaml:"network"`
	Scripts   Scripts    `yaml:"scripts"`
	FetchTree FetchTree  `yaml:"fetch_tree"`
	Limits    limitsFile `yaml:"limits"`
	Jobs      JobRules   `yaml:"jobs"`
	Paths     PathRules  `yaml:"paths"`
}

type limitsFile struct {
	CPUs       int   `yaml:"cpus"`
	Memory     size  `yaml:"memory"`
	PIDs       int64 `yaml:"pids"`
	Disk       size  `yaml:"disk"`
	Inodes     int64 `yaml:"inodes"`
	Shm        size  `yaml:"shm"`
	OpenFiles  int64 `yaml:"open_files"`
	Core       size  `yaml:"core"`
	OutputKeep size  `yaml:"output_keep"`
	OutputRead size  `yaml:"output_read"`
	Change     size  `yaml:"change"`
	Fetch      struct {
		Tunnels int  `yaml:"tunnels"`
		Down    size `yaml:"down"`
		Up      size `yaml:"up"`
	} `yaml:"fetch"`
	SetupPercent int `yaml:"setup_percent"`
	TestPercent  int `yaml:"test_percent"`
}

// decode reads one policy strictly: an unknown or repeated key, a wrong type or
// a number out of its range is an error.
func decode(name string, text []byte) (Policy, error) {
	if len(text) > maxPolicyBytes {
		return Policy{}, fmt.Errorf("policy %q of %d bytes: %w", name, len(text), ErrPolicyInvalid)
	}
	var f policyFile
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return Policy{}, fmt.Errorf("policy %q: %w: %w", name, ErrPolicyInvalid, err)
	}
	p := Policy{
		Name: f.Name, Extends: f.Name, Require: f.Require, Network: f.Network, Scripts: f.Scripts,
		FetchTree: f.FetchTree, Limits: f.Limits.limits(), Jobs: f.Jobs, Paths: f.Paths,
		source: string(text),
	}
	if err := p.check(name); err != nil {
		return Policy{}, fmt.Errorf("policy %q: %w: %w", name, ErrPolicyInvalid, err)
	}
	return p, nil
}

func (f limitsFile) limits() Limits {
	return Limits{
		CPUs: f.CPUs, MemoryBytes: int64(f.Memory), PIDs: f.PIDs,
		DiskBytes: int64(f.Disk), Inodes: f.Inodes, ShmBytes: int64(f.Shm),
		OpenFiles: f.OpenFiles, CoreBytes: int64(f.Core),
		OutputKeepBytes: int64(f.OutputKeep), OutputReadBytes: int64(f.OutputRead),
		ChangeBytes: int64(f.Change), FetchTunnels: f.Fetch.Tunnels,
		FetchDownBytes: int64(f.Fetch.Down), FetchUpBytes: int64(f.Fetch.Up),
		SetupPercent: f.SetupPercent, TestPercent: f.TestPercent,
	}
}

// check refuses what the types alone let through: unknown words, and numbers
// that would switch a limit off.
func (p Policy) check(name string) error {
	l := p.Limits
	switch {
	case p.Name != name:
		return fmt.Errorf("name is %q", p.Name)
	case p.Network != NetworkNone && p.Network != NetworkRegistries:
		return fmt.Errorf("network %q is not none or registries", p.Network)
	case scriptsRank(p.Scripts) < 0:
		return fmt.Errorf("scripts %q is not off, prepare or fetch", p.Scripts)
	case p.FetchTree != FetchManifests && p.FetchTree != FetchBase:
		return fmt.Errorf("fetch_tree %q is not manifests or base", p.FetchTree)
	case l.CPUs < 0 || l.CoreBytes < 0 || p.Jobs.Repairs < 0:
		return errors.New("a number is negative")
	case min(l.MemoryBytes, l.PIDs, l.DiskBytes, l.Inodes, l.ShmBytes, l.OpenFiles, l.OutputKeepBytes,
		l.OutputReadBytes, l.ChangeBytes, int64(l.FetchTunnels), l.FetchDownBytes, l.FetchUpBytes) < 1:
		return errors.New("a limit is missing or below 1")
	case l.MemoryBytes < MinMemoryBytes || l.DiskBytes < MinDiskBytes:
		return errors.New("memory is below 1 GiB or disk below 2 GiB")
	case l.SetupPercent < 1 || l.SetupPercent > 90 || l.TestPercent < 1 || l.TestPercent > 90:
		return errors.New("a share of the time is not within 1 to 90 percent")
	case p.Jobs.Minutes < 1 || p.Jobs.Minutes > protocol.MaxMinutes:
		return fmt.Errorf("minutes are not within 1 to %d", protocol.MaxMinutes)
	}
	return nil
}

// scriptsRank orders Scripts from narrow to wide; -1 is an unknown word.
func scriptsRank(s Scripts) int {
	switch s {
	case ScriptsOff:
		return 0
	case ScriptsPrepare:
		return 1
	case ScriptsFetch:
		return 2
	}
	return -1
}
