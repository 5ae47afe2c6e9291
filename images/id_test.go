package images_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

func idOf(t *testing.T, dir string) string {
	t.Helper()
	store, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := store.ID()
	if err != nil || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(id) {
		t.Errorf("the id %q: %v", id, err)
	}
	return id
}

// TestStoreKeepsItsID: also for those who ask at once, and not in a copy.
func TestStoreKeepsItsID(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() { ids[i] = idOf(t, dir) })
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || id != idOf(t, dir) {
			t.Errorf("one store has the ids %q", ids)
		}
	}
	if names, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(names) > 0 {
		t.Errorf("left beside the id: %v, %v", names, err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if idOf(t, copied) == ids[0] {
		t.Error("a copy of the store has its id")
	}
}

// TestStoreWithABrokenID is not given another one: what has the old one would be
// nobody's.
func TestStoreWithABrokenID(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "id"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := store.ID(); err == nil {
		t.Errorf("an empty file is the id %q", id)
	}
}
