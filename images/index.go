package images

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// indexFile is index.json. Version 1 is the only one so far; a higher number is
// a newer program's and isn't touched.
type indexFile struct {
	Version int     `json:"version"`
	Images  []Image `json:"images"`
}

const (
	indexVersion = 1
	maxIndex     = 4 << 20 // bytes; thousands of images
)

// newestFirst orders by name and then by age; the digest decides between
// builds of one moment, so that the order never wavers.
func newestFirst(a, b Image) int {
	return cmp.Or(
		cmp.Compare(a.Name, b.Name),
		b.Created.Compare(a.Created),
		cmp.Compare(a.Digest, b.Digest),
	)
}

// readIndex returns the images in no particular order; a store without an
// index is empty.
func (s *Store) readIndex() ([]Image, error) {
	path := filepath.Join(s.dir, "index.json")
	text, err := durable.ReadFile(path, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading image index: %w", err)
	}
	list, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("reading image index %s: %w", path, err)
	}
	return list, nil
}

// parseIndex takes nothing on trust: digests become paths.
func parseIndex(text []byte) ([]Image, error) {
	var index indexFile
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, err
	}
	if index.Version != indexVersion {
		return nil, fmt.Errorf("version %d is not known to this program", index.Version)
	}
	for _, image := range index.Images {
		if _, err := ParseDigest(string(image.Digest)); err != nil {
			return nil, err
		}
	}
	return index.Images, nil
}

// writeIndex replaces the index. The caller holds the store's lock. A crash
// leaves the old index or the new one.
func (s *Store) writeIndex(list []Image) error {
	slices.SortFunc(list, newestFirst)
	text, err := json.MarshalIndent(indexFile{Version: indexVersion, Images: list}, "", "  ")
	if err != nil {
		return fmt.Errorf("writing image index: %w", err)
	}
	if err := durable.WriteFile(filepath.Join(s.dir, "index.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing image index: %w", err)
	}
	return nil
}

// record puts an image into the index, in the place of an older entry of the
// same name and digest.
func (s *Store) record(image Image) error {
	list, err := s.readIndex()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(old Image) bool {
		return old.Name == image.Name && old.Digest == image.Digest
	})
	return s.writeIndex(append(list, image))
}
