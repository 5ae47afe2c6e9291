package linux

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestLoopsBelowALinkAreSwept: the kernel names a loop device's file without links.
func TestLoopsBelowALinkAreSwept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: loop devices are root's")
	}
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	image, err := freshFile(link)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	device, err := attach(image)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	swept := sandbox.Swept{}
	if err := SweepDisks(link, swept); err != nil || swept["loop"] != 1 {
		t.Errorf("%v, %v", swept, err)
	}
}
