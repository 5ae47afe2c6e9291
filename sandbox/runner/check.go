package runner

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// The least that a sandbox can be made with.
const (
	minMemory = 32 << 20
	minDisk   = 16 << 20
	minPIDs   = 16
	minInodes = 128
	minFiles  = 64
	// inodeBytes is the least disk per inode: the table must not be the disk.
	inodeBytes = 4096
	// maxLayers keeps the overlay's options within one page.
	maxLayers = 16
	// maxPaths bounds the paths of a freeze.
	maxPaths = 256
)

var jobID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// refuse makes the error of everything that breaks a rule: nothing was started.
func refuse(format string, args ...any) error {
	return &sandbox.Error{Kind: sandbox.KindRefused, Op: "checking request", Err: fmt.Errorf(format, args...)}
}

// checkJob is what the runner checks by itself before it opens a job: a
// supervisor that was taken over gets no more than the policy has (attack case
// A19).
func checkJob(id sandbox.JobID, limits *policies.Limits, policy policies.Policy) error {
	if !jobID.MatchString(string(id)) {
		return refuse("job id %.80q: want 1 to 64 of a-z, 0-9 and -", id)
	}
	if limits == nil {
		return refuse("job without limits")
	}
	return checkLimits(*limits, policy.Limits)
}

// checkSpec checks a Spec against the limits of its job, which are within the
// policy's.
func checkSpec(spec *sandbox.Spec, job policies.Limits) error {
	if spec == nil {
		return refuse("create without a spec")
	}
	if spec.Image != "" {
		if _, err := images.ParseDigest(string(spec.Image)); err != nil {
			return refuse("image: %w", err)
		}
	}
	if spec.Network != sandbox.NetworkNone {
		return refuse("network phase %.40q is not known here", spec.Network)
	}
	if spec.Profile != sandbox.ProfileJob && spec.Profile != sandbox.ProfileGit {
		return refuse("seccomp profile %.40q is not known", spec.Profile)
	}
	if len(spec.Layers) > maxLayers {
		return refuse("%d layers, at most %d are possible", len(spec.Layers), maxLayers)
	}
	return checkLimits(spec.Limits, job)
}

// bound is one number and what it must lie between.
type bound struct {
	name           string
	have, low, top int64
}

// checkLimits wants every number within most, and large enough for a start.
func checkLimits(l, most policies.Limits) error {
	for _, b := range []bound{
		{"memory_bytes", l.MemoryBytes, minMemory, most.MemoryBytes},
		{"pids", l.PIDs, minPIDs, most.PIDs},
		{"disk_bytes", l.DiskBytes, minDisk, most.DiskBytes},
		{"inodes", l.Inodes, minInodes, min(most.Inodes, l.DiskBytes/inodeBytes)},
		{"shm_bytes", l.ShmBytes, 4096, most.ShmBytes},
		{"open_files", l.OpenFiles, minFiles, most.OpenFiles},
		{"core_bytes", l.CoreBytes, 0, most.CoreBytes},
		{"output_keep_bytes", l.OutputKeepBytes, 0, most.OutputKeepBytes},
		{"output_read_bytes", l.OutputReadBytes, 0, most.OutputReadBytes},
		{"change_bytes", l.ChangeBytes, 0, most.ChangeBytes},
	} {
		if b.have < b.low || b.have > b.top {
			return refuse("limit %s is %d, want %d to %d", b.name, b.have, b.low, b.top)
		}
	}
	// 0 means all CPUs, so it exceeds any number.
	if l.CPUs < 0 || (most.CPUs > 0 && (l.CPUs == 0 || l.CPUs > most.CPUs)) {
		return refuse("limit cpus is %d, want 1 to %d", l.CPUs, most.CPUs)
	}
	return nil
}

// checkParts wants absolute, clean, different paths inside the workspace or the
// home, none below another of the same freeze.
func checkParts(parts []sandbox.Part) error {
	var all []string
	for _, part := range parts {
		for _, p := range part.Paths {
			if !insidePlaces(p) {
				return refuse("part %.200q is no clean path inside the workspace or the home", p)
			}
			for _, other := range all {
				if p == other || strings.HasPrefix(p, other+"/") || strings.HasPrefix(other, p+"/") {
					return refuse("parts %.200q and %.200q overlap", p, other)
				}
			}
			if all = append(all, p); len(all) > maxPaths {
				return refuse("more than %d paths", maxPaths)
			}
		}
	}
	if len(parts) == 0 {
		return refuse("freeze without parts")
	}
	return nil
}

func insidePlaces(p string) bool {
	if path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return false
	}
	for _, place := range []string{sandbox.Workspace, sandbox.Home} {
		if p == place || strings.HasPrefix(p, place+"/") {
			return true
		}
	}
	return false
}

// toFailure turns any error into what the wire carries. Errors without a kind
// are the host's: nothing started, or what had started can't be trusted.
func toFailure(what op, err error) *failure {
	var typed *sandbox.Error
	if !errors.As(err, &typed) {
		kind := sandbox.KindStart
		switch what {
		case opApplied, opCounters, opFreeze, opCollect, opCloseSandbox, opCloseJob:
			kind = sandbox.KindCrashed
		}
		return &failure{Kind: kind, Op: "runner's " + string(what), Text: cut(err.Error())}
	}
	text := ""
	if typed.Err != nil {
		text = cut(typed.Err.Error())
	}
	return &failure{Kind: typed.Kind, Op: cut(typed.Op), Text: text}
}

// cut keeps a reply within its packet, whatever a runtime's log says.
func cut(s string) string { return s[:min(len(s), 4096)] }

func (f *failure) error() error {
	e := &sandbox.Error{Kind: f.Kind, Op: f.Op}
	if f.Text != "" {
		e.Err = errors.New(f.Text)
	}
	return e
}
