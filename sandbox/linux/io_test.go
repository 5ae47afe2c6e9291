package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestB14RateIsReadBack: only the words that the kernel shows again are a limit.
func TestB14RateIsReadBack(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "io.max")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if applied, err := limitIO(kept, "7:3"); err != nil || !applied {
		t.Errorf("a file that keeps what is written: %t, %v", applied, err)
	}
	if applied, err := limitIO("/dev/null", "7:3"); applied || !errors.Is(err, ErrMissing) {
		t.Errorf("a file that forgets: %t, %v", applied, err)
	}
	if applied, err := limitIO(filepath.Join(dir, "none", "io.max"), "7:3"); applied || err == nil {
		t.Errorf("no file: %t, %v", applied, err)
	}
}

// TestB14RateNeedsTheController: version 1, and a tree without io, have no limit,
// and that is no error.
func TestB14RateNeedsTheController(t *testing.T) {
	for _, g := range []Group{
		{All: &Cgroups{Trees: []Hierarchy{{controllers: map[string]bool{"blkio": true}, Own: t.TempDir()}}}},
		{All: &Cgroups{Trees: []Hierarchy{{Unified: true, Own: t.TempDir()}}, pure: true}},
	} {
		if applied, err := g.LimitIO(&Disk{device: "loop-none"}); applied || err != nil {
			t.Errorf("%t, %v", applied, err)
		}
	}
}
