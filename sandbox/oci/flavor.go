package oci

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// flavor is what one OCI runtime does in its own way. The rest of the package
// asks it and knows no names.
type flavor struct {
	name      string
	isolation sandbox.Isolation
	flags     []string // before the command, besides --root and --log
	// guest says that the runtime brings its own kernel: sandboxes are
	// processes of that kernel, and the host sees only the kernel's.
	guest bool
}

// flavors are the runtimes that this package can drive, strongest first. crun
// comes last: it shares the kernel as runc does, and fewer have tried it here.
var flavors = []flavor{
	{name: "runsc", isolation: sandbox.IsolationGVisor, guest: true, flags: []string{
		"--platform=systrap",
		// No packet leaves a guest that has no network, and none is read by it.
		"--network=none",
		// The overlay and its quota are ours; another one in the guest's
		// memory would hide from us what was written.
		"--overlay2=none",
	}},
	{name: "runc", isolation: sandbox.IsolationUserns},
	{name: "crun", isolation: sandbox.IsolationUserns},
}

// Runtimes are the names that FindRuntime knows, strongest first.
func Runtimes() []string {
	names := make([]string, len(flavors))
	for i, f := range flavors {
		names[i] = f.name
	}
	return names
}

// flavorOf goes by the name of the file, as FindRuntime does; the probe compares
// it with what the program says of itself.
func flavorOf(path string) (flavor, error) {
	name := filepath.Base(path)
	for _, f := range flavors {
		if f.name == name {
			return f, nil
		}
	}
	return flavor{}, fmt.Errorf("%s is called none of %s: %w", path, strings.Join(Runtimes(), ", "), ErrRuntime)
}

// settle prepares this process for a runtime that has processes of its own in
// each sandbox: they inherit that none of them leaves a core file.
func (f flavor) settle() error {
	if !f.guest {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("giving up core files: %w", err)
	}
	return nil
}

// parseVersion reads the first line of --version, "NAME version VERSION".
func (f flavor) parseVersion(out string) (string, error) {
	line, _, _ := strings.Cut(out, "\n")
	words := strings.Fields(line)
	if len(words) < 3 || words[0] != f.name || words[1] != "version" {
		return "", fmt.Errorf("it says %.80q, not the version of %s: %w", line, f.name, ErrRuntime)
	}
	return words[2], nil
}
