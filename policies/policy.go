package policies

import (
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/internal/ownfile"
)

//go:embed data/*.yaml
var dataFiles embed.FS

// Scripts says where the lifecycle scripts of dependencies may run.
type Scripts string

// The places, from the narrowest to the widest.
const (
	ScriptsOff     Scripts = "off"
	ScriptsPrepare Scripts = "prepare" // without a network
	ScriptsFetch   Scripts = "fetch"   // while registries can be reached
)

// FetchTree says how much of the repository the fetch sandbox sees.
type FetchTree string

// The two amounts: nothing worth stealing, or the base tree.
const (
	FetchManifests FetchTree = "manifests"
	FetchBase      FetchTree = "base"
)

// Network is a network phase of a sandbox.
type Network string

// The two network phases: nothing but a loopback interface, or also the
// package registries through the egress proxy.
const (
	NetworkNone       Network = "none"
	NetworkRegistries Network = "registries"
)

// Require lists what a host must be able to enforce. A control that is required
// and can't be applied and read back is an error, never a silent fallback.
type Require struct {
	UserNamespace bool `json:"user_namespace" yaml:"user_namespace"`
	DiskQuota     bool `json:"disk_quota" yaml:"disk_quota"`
	ImageDigest   bool `json:"image_digest" yaml:"image_digest"`
	HTTPS         bool `json:"https" yaml:"https"`
}

// JobRules bound what a task may ask for.
type JobRules struct {
	Minutes            int  `json:"minutes" yaml:"minutes"`
	Repairs            int  `json:"repairs" yaml:"repairs"`
	NewDependencies    bool `json:"new_dependencies" yaml:"new_dependencies"`
	DatabaseMigrations bool `json:"database_migrations" yaml:"database_migrations"`
}

// PathRules are the owner's rules about changed paths. ProtectedNames are
// protected at any depth with everything below them; the others are rules as
// in a task (see Rule).
type PathRules struct {
	Allowed        []string `json:"allowed" yaml:"allowed"`
	Forbidden      []string `json:"forbidden" yaml:"forbidden"`
	Protected      []string `json:"protected" yaml:"protected"`
	ProtectedNames []string `json:"protected_names" yaml:"protected_names"`
}

// Policy is one owner's rules. It is a value: copy it to change it.
type Policy struct {
	Name string
	// Extends is the built-in policy that this one is based on; a built-in one
	// is based on itself. It decides how advisories are judged.
	Extends string
	// Without are the controls that sandboxes may run without where the host
	// can't enforce them (see Tolerates); sorted, empty for what extends strict.
	Without   []Control
	Require   Require
	Network   Network // the widest network phase that any sandbox may have
	Scripts   Scripts
	FetchTree FetchTree
	Limits    Limits
	Jobs      JobRules
	Paths     PathRules

	source string // the file's text, for people
}

// ErrUnknownPolicy says that no built-in policy has the name.
var ErrUnknownPolicy = errors.New("no such policy; the built-in ones are strict, standard and relaxed, and a file is named with its path, such as ./mine.yaml")

// Names returns the names of the built-in policies, the tightest first.
func Names() []string { return []string{"strict", "standard", "relaxed"} }

// Builtin returns the built-in policy of that name, or ErrUnknownPolicy.
func Builtin(name string) (Policy, error) {
	if !slices.Contains(Names(), name) {
		return Policy{}, fmt.Errorf("policy %q: %w", name, ErrUnknownPolicy)
	}
	text, err := dataFiles.ReadFile("data/" + name + ".yaml")
	if err != nil {
		return Policy{}, fmt.Errorf("reading policy %q: %w", name, err)
	}
	return decode(name, text)
}

// IsFile says whether what the owner chose by --policy is a file's path and not
// a name.
func IsFile(nameOrFile string) bool { return strings.ContainsAny(nameOrFile, "/.") }

// Load returns the policy that the owner chose by --policy: a built-in one or
// an owner's file, which only root and this process's user may be able to
// change. Errors wrap ErrUnknownPolicy, ErrPolicyInvalid (a *FileError, with
// every problem) or ownfile.ErrForeign, or are the file system's.
func Load(nameOrFile string) (Policy, error) {
	if !IsFile(nameOrFile) {
		return Builtin(nameOrFile)
	}
	text, err := ownfile.Read(nameOrFile, maxPolicyBytes)
	if err != nil {
		return Policy{}, fmt.Errorf("policy file: %w", err)
	}
	p, err := ParseOwner(text)
	if err != nil {
		return Policy{}, fmt.Errorf("policy file %s: %w", nameOrFile, err)
	}
	return p, nil
}

// CheckFile is Load for a file whose owner wants to know everything that is
// wrong with it: that others may change it stands among the problems of a
// *FileError. Other errors are the file system's.
func CheckFile(path string) (Policy, error) {
	resolved, foreign := ownfile.Check(path)
	if foreign != nil && !errors.Is(foreign, ownfile.ErrForeign) {
		return Policy{}, fmt.Errorf("policy file: %w", foreign)
	}
	text, err := durable.ReadFile(resolved, maxPolicyBytes)
	if err != nil {
		return Policy{}, fmt.Errorf("policy file: %w", err)
	}
	p, err := ParseOwner(text)
	if foreign == nil {
		return p, err
	}
	all := &FileError{Problems: []Problem{{Text: foreign.Error()}}}
	var more *FileError
	if errors.As(err, &more) {
		all.Problems = append(all.Problems, more.Problems...)
	}
	return Policy{}, all
}

// YAML returns the text of the policy's file, comments included.
func (p Policy) YAML() string { return p.source }

// Scaled returns p with its limits cut down to what the host has, or the
// *TooSmallError of Limits.Scale.
func (p Policy) Scaled(host Capacity) (Policy, error) {
	limits, err := p.Limits.Scale(host)
	if err != nil {
		return Policy{}, err
	}
	p.Limits = limits
	return p, nil
}
