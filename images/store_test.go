package images_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

func TestEmptyStoreHasNothing(t *testing.T) {
	store, dir := openStore(t)
	if list, err := store.List(); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := store.Lookup("python"); !errors.Is(err, images.ErrMissing) {
		t.Errorf("lookup: %v", err)
	}
	digest := images.Digest("sha256:" + sha(nil))
	if _, err := store.Root(digest); !errors.Is(err, images.ErrMissing) {
		t.Errorf("root: %v", err)
	}
	if _, err := store.Hold(digest); !errors.Is(err, images.ErrMissing) {
		t.Errorf("hold: %v", err)
	}
	if freed, err := store.GC(t.Context(), nil); err != nil || freed != 0 {
		t.Errorf("gc freed %d, %v", freed, err)
	}
	if found, err := os.Stat(dir); err != nil || found.Mode().Perm() != 0o755 {
		t.Errorf("store directory: %v, %v", found, err)
	}
}

func TestDigestsThatAreNoneAreRefused(t *testing.T) {
	good := "sha256:" + sha(nil)
	if _, err := images.ParseDigest(good); err != nil {
		t.Errorf("parsing %s: %v", good, err)
	}
	store := openOnly(t)
	for _, bad := range []string{
		"", "sha256:", good[:70], good + "0", "sha512:" + sha(nil), "SHA256:" + sha(nil),
		"sha256:" + "A" + sha(nil)[1:], "sha256:../../../../../../../../../../../../../../../../../../../../etc", sha(nil),
	} {
		if _, err := images.ParseDigest(bad); err == nil {
			t.Errorf("parsing %q: no error", bad)
		}
		if _, err := store.Root(images.Digest(bad)); err == nil {
			t.Errorf("root of %q: no error", bad)
		}
	}
}

func TestLookupFindsByNameAndDigest(t *testing.T) {
	needRoot(t)
	store := openOnly(t)
	image, _ := importInto(t, store, newLayout(t).layer(base()))
	for _, name := range []string{"test", string(image.Digest)} {
		found, err := store.Lookup(name)
		if err != nil {
			t.Fatalf("looking up %s: %v", name, err)
		}
		if diff := cmp.Diff(image, found); diff != "" {
			t.Errorf("looking up %s (-want +got):\n%s", name, diff)
		}
	}
	// Importing it again changes nothing but the entry.
	importInto(t, store, newLayout(t).layer(base()))
	if list, err := store.List(); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestImageOfAnOlderRecipeIsNotTheOneWanted(t *testing.T) {
	needRoot(t)
	store := openOnly(t)
	image, _ := importInto(t, store, newLayout(t).layer(base()))
	image.Name = "python"
	if err := store.Record(image); err != nil {
		t.Fatal(err)
	}
	if store.Present("python") {
		t.Error("an image without a recipe's hash passes for one of today's recipe")
	}
	if err := store.RecordOfRecipe(image); err != nil {
		t.Fatal(err)
	}
	if !store.Present("python") {
		t.Error("an image of today's recipe would be built again")
	}
}

func TestImageIsClosedToOtherUsersOfTheHost(t *testing.T) {
	needRoot(t)
	store := openOnly(t)
	_, root := importInto(t, store, newLayout(t).layer(base(file("./su", "").mode(0o4755))))
	found, err := os.Stat(filepath.Dir(root))
	if err != nil || found.Mode().Perm() != 0o700 {
		t.Errorf("directory above the root: %v, %v", found.Mode(), err)
	}
}

func TestLeftoversOfACrashAreSwept(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	half := filepath.Join(dir, "tmp", "python-123", "image", "root")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	importInto(t, store, newLayout(t).layer(base()))
	if entries, err := os.ReadDir(filepath.Join(dir, "tmp")); err == nil && len(entries) > 0 {
		t.Errorf("left in tmp: %v", entries)
	}
}

// A crash between the rename and the index leaves an image without an entry.
func TestImageWithoutAnEntryIsTakenOverOrCollected(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	image, root := importInto(t, store, newLayout(t).layer(base()))
	forget := func() {
		if err := os.Remove(filepath.Join(dir, "index.json")); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	before, _ := os.Stat(root)
	importInto(t, store, newLayout(t).layer(base()))
	if after, err := os.Stat(root); err != nil || !os.SameFile(before, after) {
		t.Errorf("the image was replaced: %v", err)
	}
	forget()
	freed, err := store.GC(t.Context(), func(images.Digest) bool { return true })
	if err != nil || freed <= 0 {
		t.Errorf("gc freed %d, %v", freed, err)
	}
	if _, err := store.Root(image.Digest); !errors.Is(err, images.ErrMissing) {
		t.Errorf("root after gc: %v", err)
	}
}

func TestA06RootThatWasTamperedWithIsRefusedAndRebuilt(t *testing.T) {
	needRoot(t)
	store := openOnly(t)
	image, root := importInto(t, store, newLayout(t).layer(base()))
	if err := os.Remove(filepath.Join(root, "proc")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(root, "proc")); err != nil {
		t.Fatal(err)
	}
	var refused *images.RefusedError
	if _, err := store.Root(image.Digest); !errors.As(err, &refused) {
		t.Errorf("root: %v", err)
	}
	importInto(t, store, newLayout(t).layer(base()))
}

func TestStoreThatOthersCanWriteIsRefused(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	image, root := importInto(t, store, newLayout(t).layer(base()))
	for _, path := range []string{dir, filepath.Join(dir, "sha256"), filepath.Dir(root)} {
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		var refused *images.RefusedError
		if _, err := store.Root(image.Digest); !errors.As(err, &refused) {
			t.Errorf("root with %s writable: %v", path, err)
		}
		if err := os.Chmod(path, before.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Root(image.Digest); err != nil {
		t.Errorf("root afterwards: %v", err)
	}
}

// A process killed at any step leaves a store that has the image whole or not
// at all, and the next one finishes the work.
func TestKilledImportLeavesNoHalfImage(t *testing.T) {
	needRoot(t)
	l := newLayout(t).layer(base())
	digest := l.seal()
	for step := range importSteps {
		store, dir := openStore(t)
		command := exec.Command("/proc/self/exe", importCommand, dir, l.dir, string(digest), strconv.Itoa(step))
		out, err := command.CombinedOutput()
		if command.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("step %d: %v\n%s", step, err, out)
		}
		if list, err := store.List(); err != nil || len(list) != 0 {
			t.Errorf("step %d: list %v, %v", step, list, err)
		}
		if _, err := store.Root(digest); !errors.Is(err, images.ErrMissing) {
			t.Errorf("step %d: root %v", step, err)
		}
		importInto(t, store, l)
		if left, err := filepath.Glob(filepath.Join(dir, "tmp", "*")); err != nil || len(left) > 0 {
			t.Errorf("step %d: left %v, %v", step, left, err)
		}
	}
}

func TestGCKeepsWhatItIsToldAndWhatIsHeld(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	var digests []images.Digest
	for _, content := range []string{"kept", "held", "removed"} {
		image, _ := importInto(t, store, newLayout(t).layer(base(file("./content", content))))
		digests = append(digests, image.Digest)
	}
	held, err := store.Hold(digests[1])
	if err != nil {
		t.Fatal(err)
	}
	freed, err := store.GC(t.Context(), func(digest images.Digest) bool { return digest == digests[0] })
	if err != nil || freed <= 0 {
		t.Errorf("gc freed %d, %v", freed, err)
	}
	expectPresent(t, store, digests, true, true, false)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.GC(t.Context(), func(digest images.Digest) bool { return digest == digests[0] }); err != nil {
		t.Fatal(err)
	}
	expectPresent(t, store, digests, true, false, false)
	if entries, err := os.ReadDir(filepath.Join(dir, "tmp")); err == nil && len(entries) > 0 {
		t.Errorf("left in tmp: %v", entries)
	}
}

func expectPresent(t *testing.T, store *images.Store, digests []images.Digest, want ...bool) {
	t.Helper()
	for i, digest := range digests {
		_, rooted := store.Root(digest)
		_, listed := store.Lookup(string(digest))
		if (rooted == nil) != want[i] || (listed == nil) != want[i] {
			t.Errorf("image %d: root %v, entry %v, want present %v", i, rooted, listed, want[i])
		}
	}
}

func TestGCKeepsTheNewestOfEachNameByItself(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	old, _ := importInto(t, store, newLayout(t).layer(base()))
	fresh, _ := importInto(t, store, newLayout(t).layer(base(file("./content", "new"))))
	index := `{"version":1,"images":[
	 {"name":"test","digest":"` + string(old.Digest) + `","created":"2026-01-01T00:00:00Z"},
	 {"name":"test","digest":"` + string(fresh.Digest) + `","created":"2026-02-01T00:00:00Z"}]}`
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	expectPresent(t, store, []images.Digest{old.Digest, fresh.Digest}, false, true)
}

func TestSecondWriterWaitsAndCanBeCalledOff(t *testing.T) {
	needRoot(t)
	store := openOnly(t)
	first, err := store.Lock(t.Context(), func() { t.Error("the first one waits") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := store.Lock(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("second lock: %v", err)
	}
	// Once the first is gone, the second goes on.
	second, err := store.Lock(t.Context(), func() { first.Unlock() })
	if err != nil {
		t.Fatalf("second lock: %v", err)
	}
	second.Unlock()
}

func TestUnreadableIndexIsAnErrorAndStays(t *testing.T) {
	needRoot(t)
	digest := `"digest":"sha256:` + sha(nil) + `"`
	for name, text := range map[string]string{
		"no JSON": "{", "newer": `{"version":2,"images":[]}`, "older": `{"images":[]}`,
		"path as digest": `{"version":1,"images":[{"name":"x","digest":"sha256:../../x"}]}`,
		"no digest":      `{"version":1,"images":[{"name":"x"}]}`,
		"time":           `{"version":1,"images":[{"name":"x",` + digest + `,"created":"yesterday"}]}`,
	} {
		store, dir := openStore(t)
		path := filepath.Join(dir, "index.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := store.List(); err == nil {
			t.Errorf("%s: list has no error", name)
		}
		if _, err := store.GC(t.Context(), nil); err == nil {
			t.Errorf("%s: gc has no error", name)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != text {
			t.Errorf("%s: index is now %q, %v", name, after, err)
		}
	}
}

func TestUnknownRecipeIsNamed(t *testing.T) {
	_, err := openOnly(t).Build(t.Context(), "cobol", func(string) {})
	if !errors.Is(err, images.ErrUnknownRecipe) {
		t.Errorf("build: %v", err)
	}
	if diff := cmp.Diff([]string{"python"}, images.Recipes()); diff != "" {
		t.Errorf("recipes (-want +got):\n%s", diff)
	}
}
