package policies

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The profiles are derived from the maintained Moby profile by seccomp_test.go,
// which also fails when the two drift apart. They are committed as data, so that
// a change of either shows up as a diff that can be read.
//
//go:generate go test -run TestSeccompProfilesMatchTheirDerivation -update .
//go:embed seccomp/*.json
var seccompFiles embed.FS

// SeccompKind names a seccomp profile.
type SeccompKind string

// The profiles: for what runs strangers' commands, and for the git worker,
// which in addition can make no device node or pipe, since a character device
// 0/0 in an overlay's upper layer is a deletion.
const (
	SeccompJob SeccompKind = "job"
	SeccompGit SeccompKind = "git"
)

// ErrNoSeccomp says that there is no profile of that kind, or for this CPU.
var ErrNoSeccomp = errors.New("no seccomp profile")

// seccompArch maps Go's name of the CPU to the one architecture that a profile
// lets in. Others, above all the 32-bit ones of the same CPU, number and pass
// arguments differently, so that filters of arguments would miss them.
var seccompArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

// seccompFile is a profile as data. Names of system calls that a CPU doesn't
// have are ignored by OCI runtimes, so that one file serves all.
type seccompFile struct {
	Comment         string        `json:"comment"`
	DefaultAction   string        `json:"defaultAction"`
	DefaultErrnoRet uint          `json:"defaultErrnoRet"`
	Syscalls        []seccompRule `json:"syscalls"`
}

// seccompRule is one rule with its reason. Rules for the same call are
// alternatives; the arguments within a rule must all match.
type seccompRule struct {
	Comment string `json:"comment,omitempty"`
	specs.LinuxSyscall
}

// Seccomp returns the profile for an OCI bundle on this CPU. The result is the
// caller's own.
func Seccomp(kind SeccompKind) (*specs.LinuxSeccomp, error) {
	return seccompFor(kind, runtime.GOARCH)
}

func seccompFor(kind SeccompKind, cpu string) (*specs.LinuxSeccomp, error) {
	arch, known := seccompArch[cpu]
	if !known || kind != SeccompJob && kind != SeccompGit {
		return nil, fmt.Errorf("seccomp profile %q for %s: %w", kind, cpu, ErrNoSeccomp)
	}
	text, err := seccompFiles.ReadFile("seccomp/" + string(kind) + ".json")
	if err != nil {
		return nil, fmt.Errorf("reading seccomp profile %q: %w", kind, err)
	}
	var file seccompFile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("reading seccomp profile %q: %w", kind, err)
	}
	profile := &specs.LinuxSeccomp{
		DefaultAction:   specs.LinuxSeccompAction(file.DefaultAction),
		DefaultErrnoRet: &file.DefaultErrnoRet,
		Architectures:   []specs.Arch{arch},
	}
	for _, rule := range file.Syscalls {
		profile.Syscalls = append(profile.Syscalls, rule.LinuxSyscall)
	}
	return profile, nil
}

// SeccompDigest returns the SHA-256 of the profile as it stands in a bundle on
// this CPU, as 64 lower-case hex digits.
func SeccompDigest(kind SeccompKind) (string, error) {
	profile, err := Seccomp(kind)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(profile)
	if err != nil {
		return "", fmt.Errorf("encoding seccomp profile %q: %w", kind, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
