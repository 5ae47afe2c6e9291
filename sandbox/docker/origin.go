package docker

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// origin says where the lock of a container's instance lies. An engine may serve
// daemons that don't share a run directory, such as those in containers of their
// own: there a free lock means nothing.
type origin struct {
	place string // names the run directory
	boot  string // id of the kernel's life
}

// originOf names a run directory by where it lies, since whoever ends as the last
// removes it, and the next one makes it again.
func originOf(runDir string) (origin, error) {
	var parent unix.Stat_t
	if err := unix.Stat(filepath.Dir(runDir), &parent); err != nil {
		return origin{}, fmt.Errorf("looking at where the run directory lies: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return origin{}, fmt.Errorf("reading the kernel's boot id: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", parent.Dev, parent.Ino, filepath.Base(runDir)))
	return origin{place: fmt.Sprintf("%x", sum[:8]), boot: string(bytes.TrimSpace(boot))}, nil
}

// held is a container of some instance of ours.
type held struct {
	id, instance string
	origin
}

func heldOf(id string, labels map[string]string) held {
	return held{id, labels[labelInstance], origin{place: labels[labelPlace], boot: labels[labelBoot]}}
}

// ours says whether a container was made by this instance, not by one of the same
// name elsewhere.
func (d *Driver) ours(c held) bool { return c.instance == d.config.Instance && c.origin == d.origin }

var bootID = regexp.MustCompile(`^[0-9a-f-]{36}$`)

// past says that whatever made a container has ended with the kernel's earlier
// life.
func (d *Driver) past(c held) bool {
	return c.boot != d.origin.boot && bootID.MatchString(c.boot) && instanceName.MatchString(c.instance)
}
