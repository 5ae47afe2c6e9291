package docker

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// TestLentMountsOfLostInstances: what a runner lent that was killed in a start
// goes also when its instance is never started again, and only by a driver of the
// engine that has it.
func TestLentMountsOfLostInstances(t *testing.T) {
	run, dir := runDirectory(t)
	e := engineOf(t, http.NotFound) // this process is the engine's
	lost := linux.Traces{Instance: "lost", Run: run, Disks: t.TempDir(), Cgroups: &linux.Cgroups{}, Engine: e.socket}
	if err := errors.Join(run.Mkdir("lost", 0o755), lost.Leave()); err != nil {
		t.Fatal(err)
	}
	lent := lend(t, e, filepath.Join(dir, "lost", graftDir, "s1"))

	other := linux.Traces{Instance: "other", Run: run, Disks: t.TempDir(), Cgroups: &linux.Cgroups{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for range 2 {
		swept := sandbox.Swept{}
		if other.SweepOthers(t.Context(), swept); len(swept) != 0 || !mounted(t, lent) {
			t.Fatalf("without the engine: %v", swept)
		}
	}
	d := &Driver{engine: e, config: Config{Instance: "other", Run: run, RunDir: dir}}
	other.Engine, other.Lent = e.socket, d.sweepLent
	swept := sandbox.Swept{}
	other.SweepOthers(t.Context(), swept)
	if _, err := run.Stat("lost"); swept["mount"] != 1 || swept["lock"] != 1 || mounted(t, lent) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with the engine: %v, %v", swept, err)
	}
}

func runDirectory(t *testing.T) (*os.Root, string) {
	t.Helper()
	dir := t.TempDir()
	run, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.Close() })
	return run, dir
}

// lend plants a directory and returns where.
func lend(t *testing.T, e *engine, path string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not applicable: only root may mount")
	}
	space, err := e.mountSpace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	tree, err := detached(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	planted := graft{space, path}
	t.Cleanup(func() { _ = planted.uproot() })
	if err := planted.plant(0, map[string]int{rootName: tree}); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(path, rootName)
}

func mounted(t *testing.T, path string) bool {
	t.Helper()
	yes, err := mountinfo.Mounted(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return yes
}
