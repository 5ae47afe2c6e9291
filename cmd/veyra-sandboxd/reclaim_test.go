package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// TestNoRoomRemovesUnusedImages: a daemon whose disk has no room for work gives
// up the images of the host that nobody uses: not the newest of a name, nor one
// that another process holds.
func TestNoRoomRemovesUnusedImages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	base := filepath.Dir(p.state)
	cache := filepath.Join(base, "cache")
	old, held, newest, other := fakeImage("x", 1), fakeImage("x", 2), fakeImage("x", 3), fakeImage("y", 4)
	store := fakeStore(t, cache, old, held, newest, other)
	hold, err := store.Hold(held.Digest) // as another instance does
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	p.config = filepath.Join(base, "floor.yaml")
	writeFile(t, p.config, fmt.Sprintf("keep: {disk_floor: %d}\n", int64(1)<<60), 0o600)
	d := w.start(p, "VEYRA_CACHE_DIR="+cache)
	d.line("removed unused images")
	d.stop()
	if got, want := digests(t, store), []images.Digest{held.Digest, newest.Digest, other.Digest}; !slices.Equal(got, want) {
		t.Errorf("the store holds %q, want %q", got, want)
	}
	if _, err := os.Stat(filepath.Join(cache, "images", "sha256", strings.TrimPrefix(string(old.Digest), "sha256:"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the removed image is still there: %v", err)
	}
}

func fakeImage(name string, n int) images.Image {
	return images.Image{
		Name: name, Toolchain: name, Digest: images.Digest("sha256:" + strings.Repeat(fmt.Sprint(n), 64)),
		Created: time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC),
	}
}

// fakeStore holds images with one file each.
func fakeStore(t *testing.T, cache string, all ...images.Image) *images.Store {
	t.Helper()
	dir := filepath.Join(cache, "images")
	index, err := json.Marshal(map[string]any{"version": 1, "images": all})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "index.json"), string(index), 0o644)
	for _, image := range all {
		writeFile(t, filepath.Join(dir, "sha256", strings.TrimPrefix(string(image.Digest), "sha256:"), "root", "file"), "x", 0o644)
	}
	store, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// digests are sorted.
func digests(t *testing.T, store *images.Store) []images.Digest {
	t.Helper()
	list, err := store.List()
	if err != nil {
		t.Fatal(err)
	}
	var all []images.Digest
	for _, image := range list {
		all = append(all, image.Digest)
	}
	slices.Sort(all)
	return all
}
