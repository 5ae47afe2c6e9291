package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// What a sandbox may ask of its disk in a second, reading and writing each:
// enough for a build on a fast disk, too little to keep the journal's syncs of
// this host waiting (attack case B14).
const (
	diskBytes = 256 << 20
	diskOps   = 8192
)

// LimitIO bounds what the group may ask of a disk and reads that back. It says
// false where the host can't: version 1 does not count what is written back
// later, and a kernel or a unit may lack the controller.
func (g Group) LimitIO(d *Disk) (bool, error) {
	if !g.All.pure {
		return false, nil
	}
	path, err := g.file("io", "io.max")
	if err != nil {
		return false, nil // no controller
	}
	number, err := os.ReadFile(filepath.Join("/sys/block", d.device, "dev"))
	if err != nil {
		return false, fmt.Errorf("reading the disk's number: %w", err)
	}
	return limitIO(path, strings.TrimSpace(string(number)))
}

func limitIO(path, number string) (bool, error) {
	want := fmt.Sprintf("%s rbps=%d wbps=%d riops=%d wiops=%d", number, diskBytes, diskBytes, diskOps, diskOps)
	if err := os.WriteFile(path, []byte(want), 0); err != nil {
		return false, fmt.Errorf("limiting the disk's rate: %w", err)
	}
	seen, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("reading the disk's rate back: %w", err)
	}
	for line := range strings.Lines(string(seen)) {
		if strings.TrimSpace(line) == want {
			return true, nil
		}
	}
	return false, fmt.Errorf("the disk's rate was not taken, io.max is %.200q: %w", seen, ErrMissing)
}
