package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
)

// rootlessRuntime is the one that was tried as an ordinary user.
const rootlessRuntime = "runc"

// rootless says that whoever started us is an ordinary user: sandboxes are then
// held by what a user namespace can give.
func rootless() bool { return os.Geteuid() != 0 }

// measureRootless measures what an ordinary user's sandboxes are held by here, and
// refuses where the policy does not go without what is missing.
func measureRootless(ctx context.Context, policy policies.Policy) ([]sandbox.Control, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	controls := oci.MeasureRootless(ctx, own)
	var lacking []string
	for i, c := range controls {
		controls[i].Waived = !c.Enforced && c.For != "" && policy.Tolerates(c.For)
		if !c.Enforced && !controls[i].Waived {
			lacking = append(lacking, c.Name)
		}
	}
	if len(lacking) == 0 {
		return controls, nil
	}
	return controls, withCode(exitHost, "an ordinary user's sandboxes lack %s here: start it as root or with sudo, or see "+
		"`veyra-sandboxd doctor` for what can be had, and go without the rest in a policy of your own that extends standard",
		strings.Join(lacking, ", "))
}

// checkRootless wants, of an ordinary user, a backend and a runtime that were tried as an ordinary user.
func (s *Settings) checkRootless(name string) error {
	if !rootless() {
		return nil
	}
	if s.usesDocker() {
		return withCode(exitHost, "a Docker Engine is driven by root only: start it as root or with sudo, or use the oci backend")
	}
	if !slices.Contains([]string{autoRuntime, rootlessRuntime}, name) {
		return withCode(exitHost, "%s is driven by root only: start it as root or with sudo, or use %s", name, rootlessRuntime)
	}
	return nil
}

// checkCache wants an ordinary user's own store: root's can't be entered.
func (s *Settings) checkCache() error {
	info, err := os.Stat(s.CacheDir)
	if !rootless() || errors.Is(err, os.ErrNotExist) {
		return nil // one that can't be made is told when it is made
	}
	if err != nil {
		return fmt.Errorf("looking at cache_dir: %w", err)
	}
	if st, known := info.Sys().(*syscall.Stat_t); !known || int(st.Uid) != os.Geteuid() {
		return withCode(exitHost, "cache_dir %s is another user's: name a directory of yours by cache_dir or VEYRA_CACHE_DIR, "+
			"with a copy of root's images that was given to you", s.CacheDir)
	}
	return nil
}

var errNotOurs = errors.New("it must be a directory of this user's that nobody else can enter (mode 0700)")

// rootlessRun is where all instances of this user find each other.
func (s *Settings) rootlessRun() (string, error) {
	above, name := os.Getenv("XDG_RUNTIME_DIR"), "veyra-sandboxd"
	if above == "" {
		return ownDirectory(filepath.Join(s.CacheDir, "run"))
	}
	if err := checkOwnDirectory(above); err != nil {
		return "", fmt.Errorf("XDG_RUNTIME_DIR: %w", err)
	}
	return ownDirectory(filepath.Join(above, name))
}

func ownDirectory(path string) (string, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("making the run directory: %w (cache_dir must be a directory of yours)", err)
	}
	return path, checkOwnDirectory(path)
}

func checkOwnDirectory(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, known := info.Sys().(*syscall.Stat_t)
	if !filepath.IsAbs(path) || !info.IsDir() || !known || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: %w", path, errNotOurs)
	}
	return nil
}

// memoryCapacity is what one sandbox of an ordinary user may have: its disk is
// memory too, and a job books two of them, so that all of it is three quarters of
// what there is.
func memoryCapacity(cpus int) (policies.Capacity, error) {
	memory, err := linux.Memory()
	if err != nil {
		return policies.Capacity{}, err
	}
	return policies.Capacity{CPUs: cpus, MemoryBytes: memory / 2, DiskBytes: memory / 8}, nil
}
