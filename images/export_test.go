package images

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// What the tests in images_test reach of the inside.

// Import takes a layout into the store, as Build does with the one it made.
func (s *Store) Import(ctx context.Context, layout, name string, digest Digest) (Image, error) {
	return s.ImportReporting(ctx, layout, name, digest, func(string) {})
}

// ImportReporting is Import that names its steps.
func (s *Store) ImportReporting(ctx context.Context, layout, name string, digest Digest, report func(string)) (Image, error) {
	lock, err := s.lock(ctx, func() {})
	if err != nil {
		return Image{}, err
	}
	defer lock.Unlock()
	work, err := s.workDir(name)
	if err != nil {
		return Image{}, err
	}
	defer os.RemoveAll(work)
	made := filepath.Join(work, "image")
	if err := os.CopyFS(filepath.Join(made, layoutName), os.DirFS(layout)); err != nil {
		return Image{}, err
	}
	return s.add(ctx, made, Image{Name: name, Digest: digest}, report)
}

// Present tells whether Ensure would leave the store as it is.
func (s *Store) Present(name string) bool {
	recipe, err := findRecipe(name)
	if err != nil {
		return false
	}
	_, err = s.present(recipe)
	return err == nil
}

// Record puts an image into the index as it is.
func (s *Store) Record(image Image) error { return s.record(image) }

// RecordOfRecipe records that today's recipe of its name made the image.
func (s *Store) RecordOfRecipe(image Image) error {
	recipe, err := findRecipe(image.Name)
	if err != nil {
		return err
	}
	image.Recipe = recipe.digest()
	return s.record(image)
}

// SetLimits makes small images hit them.
func (s *Store) SetLimits(limits Limits) { s.limits = limits }

// Lock holds the store's lock as a build in another process would.
func (s *Store) Lock(ctx context.Context, waiting func()) (*durable.Flock, error) {
	return s.lock(ctx, waiting)
}

// Survey judges one tar stream.
func Survey(archive []byte, limits Limits) error {
	stream := &hashed{from: bytes.NewReader(archive), hash: discard{}, left: limits.streamBytes()}
	return newSurvey(limits).entriesOf(stream)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Sum(b []byte) []byte         { return b }
func (discard) Reset()                      {}
func (discard) Size() int                   { return 0 }
func (discard) BlockSize() int              { return 1 }

// Unexported names as they are.
var (
	ConfineTo      = confineTo
	CheckRoot      = checkRoot
	ParseIndex     = parseIndex
	CleanName      = cleanName
	Codename       = codename
	Versions       = versions
	FindProgram    = findProgram
	RunMmdebstrap  = runMmdebstrap
	HostMirrors    = hostMirrors
	WriteLayoutTar = func(path, tarball string) (Digest, error) {
		return writeLayout(path, facts{layer: tarball, codename: "trixie"})
	}
)

// MirrorLines parses one file of apt sources.
func MirrorLines(text string, deb822 bool) []string {
	return parseSources(text, deb822).complete().lines()
}

// AptOptions parses what apt-config prints.
func AptOptions(text string) ([]string, bool) {
	options := parseAptOptions(text)
	return options.lines, options.ageUnchecked
}

// ConfinedArg marks the second start of UnpackMain.
const ConfinedArg = confinedArg

// KeptCapabilities is the mask that the confined child should have.
func KeptCapabilities() (mask uint64) {
	for capability := range uintptr(64) {
		if keepsCapability(capability) {
			mask |= 1 << capability
		}
	}
	return mask
}

// CgoBuild says that nothing can be unpacked by this test binary.
const CgoBuild = cgoBuild
