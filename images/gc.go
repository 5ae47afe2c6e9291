package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// GC removes every image that keep refuses, and what no index entry names, and
// returns how many bytes of disk that freed. Images that a Hold protects stay
// for the next time. A nil keep keeps the newest image of each name. It waits
// for a build of this store.
func (s *Store) GC(ctx context.Context, keep func(Digest) bool) (freed int64, err error) {
	lock, err := s.lock(ctx, func() {})
	if err != nil {
		return 0, err
	}
	defer lock.Unlock()
	list, err := s.List()
	if err != nil {
		return 0, err
	}
	if keep == nil {
		keep = newestOfEach(list)
	}
	present, err := s.digestsOnDisk()
	if err != nil {
		return 0, err
	}
	for _, digest := range present {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		indexed := slices.ContainsFunc(list, func(image Image) bool { return image.Digest == digest })
		if indexed && keep(digest) {
			continue
		}
		size, err := s.remove(digest)
		freed += size
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// newestOfEach relies on the order of List.
func newestOfEach(list []Image) func(Digest) bool {
	newest := map[string]Digest{}
	for _, image := range list {
		if _, found := newest[image.Name]; !found {
			newest[image.Name] = image.Digest
		}
	}
	return func(digest Digest) bool {
		for _, kept := range newest {
			if kept == digest {
				return true
			}
		}
		return false
	}
}

func (s *Store) digestsOnDisk() ([]Digest, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "sha256"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing image store: %w", err)
	}
	var digests []Digest
	for _, entry := range entries {
		// A name that isn't ours is left alone.
		if digest, err := ParseDigest(digestPrefix + entry.Name()); err == nil {
			digests = append(digests, digest)
		}
	}
	return digests, nil
}

// remove takes one image away: out of the index, out of sight, off the disk. A
// crash in between leaves a directory without an entry, or work for sweep, and
// never an entry without its directory.
func (s *Store) remove(digest Digest) (int64, error) {
	dir, err := os.Open(s.imageDir(digest))
	if err != nil {
		return 0, fmt.Errorf("removing image %s: %w", digest, err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return 0, nil // held
	}
	if err := s.forget(digest); err != nil {
		return 0, err
	}
	size, err := diskUsage(s.imageDir(digest))
	if err != nil {
		return 0, err
	}
	work, err := s.workDir("gone")
	if err != nil {
		return 0, err
	}
	if err := os.Rename(s.imageDir(digest), filepath.Join(work, "image")); err != nil {
		return 0, fmt.Errorf("removing image %s: %w", digest, err)
	}
	if err := os.RemoveAll(work); err != nil {
		return 0, fmt.Errorf("removing image %s: %w", digest, err)
	}
	return size, nil
}

// forget takes every entry of that digest out of the index.
func (s *Store) forget(digest Digest) error {
	list, err := s.readIndex()
	if err != nil {
		return err
	}
	return s.writeIndex(slices.DeleteFunc(list, func(image Image) bool { return image.Digest == digest }))
}
