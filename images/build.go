package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Build makes the recipe's image and puts it into the store. It needs root,
// mmdebstrap and the distribution's mirror, takes about a minute, and calls
// report with one line a step. A second build of one store, in this process or
// another, waits for the first. Nothing of a failed build stays; a build that
// yields what the store already has changes only its date.
//
// The program must hand UnpackCommand's arguments to UnpackMain.
func (s *Store) Build(ctx context.Context, name string, report func(string)) (Image, error) {
	return s.build(ctx, name, report, false)
}

// Ensure is Build for those that only want the image to be there: when the
// newest was made by this program's recipe, or when another process has just
// built it, nothing is built.
func (s *Store) Ensure(ctx context.Context, name string, report func(string)) (Image, error) {
	recipe, err := findRecipe(name)
	if err != nil {
		return Image{}, err
	}
	if image, err := s.present(recipe); err == nil {
		return image, nil
	}
	return s.build(ctx, name, report, true)
}

// present is Lookup and a look at the files.
func (s *Store) present(recipe recipe) (Image, error) {
	image, err := s.Lookup(recipe.name)
	if err != nil {
		return Image{}, err
	}
	if image.Recipe != recipe.digest() {
		return Image{}, fmt.Errorf("looking up image %q of this recipe: %w", recipe.name, ErrMissing)
	}
	if _, err := s.Root(image.Digest); err != nil {
		return Image{}, err
	}
	return image, nil
}

func (s *Store) build(ctx context.Context, name string, report func(string), reuse bool) (Image, error) {
	recipe, err := findRecipe(name)
	if err != nil {
		return Image{}, err
	}
	if err := checkTools(); err != nil {
		return Image{}, fmt.Errorf("building image %q: %w", name, err)
	}
	lock, err := s.lock(ctx, func() { report("waiting for another build of this store") })
	if err != nil {
		return Image{}, err
	}
	defer lock.Unlock()
	if image, err := s.present(recipe); reuse && err == nil {
		return image, nil
	}
	work, err := s.workDir(name)
	if err != nil {
		return Image{}, err
	}
	// The next holder of the lock sweeps what can't be removed now.
	defer os.RemoveAll(work)
	image, err := s.buildIn(ctx, work, recipe, report)
	if err != nil {
		return Image{}, fmt.Errorf("building image %q: %w", name, err)
	}
	return image, nil
}

// buildIn is the build itself. Each step takes what the one before returns.
func (s *Store) buildIn(ctx context.Context, work string, recipe recipe, report func(string)) (Image, error) {
	start := time.Now()
	facts, err := debootstrap(ctx, work, recipe, report)
	if err != nil {
		return Image{}, err
	}
	report("packing the layer into an OCI layout")
	made := filepath.Join(work, "image")
	if err := os.Mkdir(made, 0o700); err != nil {
		return Image{}, err
	}
	digest, err := writeLayout(filepath.Join(made, layoutName), facts)
	if err != nil {
		return Image{}, err
	}
	image := Image{
		Name: recipe.name, Toolchain: recipe.toolchain, Digest: digest,
		Suite: facts.codename, Created: time.Now().UTC().Truncate(time.Second), Tools: facts.tools, Recipe: recipe.digest(),
	}
	image, err = s.add(ctx, made, image, report)
	if err != nil {
		return Image{}, err
	}
	report(fmt.Sprintf("done in %.0f s: %s, %d MB", time.Since(start).Seconds(), image.Digest, image.Bytes/1_000_000))
	return image, nil
}

// add takes a directory with an OCI layout in it into the store: unpack, check,
// place, record. The caller holds the lock, and made lies in the store's work
// directory, so that the rename stays on one file system.
func (s *Store) add(ctx context.Context, made string, image Image, report func(string)) (Image, error) {
	// Other users of this host have no business with another system's files,
	// least of all with those that change the user.
	if err := os.Chmod(made, 0o700); err != nil {
		return Image{}, err
	}
	report("unpacking " + string(image.Digest) + " in a confined process")
	root := filepath.Join(made, rootName)
	if err := os.Mkdir(root, 0o755); err != nil {
		return Image{}, err
	}
	asked := request{Layout: filepath.Join(made, layoutName), Target: root, Digest: image.Digest, Limits: s.limits}
	if err := unpack(ctx, asked); err != nil {
		return Image{}, err
	}
	if err := checkRoot(root); err != nil {
		return Image{}, err
	}
	size, err := diskUsage(made)
	if err != nil {
		return Image{}, err
	}
	image.Bytes = size
	report("placing the image")
	if err := s.place(made, image.Digest); err != nil {
		return Image{}, err
	}
	return image, s.record(image)
}

// checkTools says what is missing before anything is waited for.
func checkTools() error {
	if _, err := findProgram("mmdebstrap"); err != nil {
		return err
	}
	if _, err := os.Stat(keyring); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the keyring %s is not there: %w", keyring, ErrToolMissing)
	}
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	return nil
}
