package enginetest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Client runs the engine's own client, which is Debian's for every engine.
func (e *Engine) Client(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(Programs(t, Debian), "docker"), args...)
	cmd.Env = []string{"DOCKER_HOST=unix://" + e.Socket, "HOME=/nonexistent", "DOCKER_API_VERSION=1.41"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker %v: %v %s", args, err, out)
	}
}

// Import gives the engine an image of that name with the files below root.
func (e *Engine) Import(t testing.TB, root, name string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "root.tar")
	if out, err := exec.Command("tar", "-C", root, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("archiving the image: %v %s", err, out)
	}
	e.Client(t, "import", archive, name)
}
