package images

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
)

const idName = "id"

var idText = regexp.MustCompile(`^[A-Z2-7]{26}\n$`)

// ID names this store to whoever keeps copies of its images: 16 hexadecimal digits,
// for example "0f3c9a1d2b4e5f60". It is made once. A store that was copied gets a
// name of its own, since it is made of the file's inode as well.
func (s *Store) ID() (string, error) {
	for range 2 {
		id, err := s.readID()
		if !errors.Is(err, os.ErrNotExist) {
			return id, err
		}
		if err := s.makeID(); err != nil {
			return "", fmt.Errorf("giving the image store an id: %w", err)
		}
	}
	return "", fmt.Errorf("giving the image store an id: it goes again: %w", os.ErrNotExist)
}

func (s *Store) readID() (string, error) {
	f, err := os.Open(filepath.Join(s.dir, idName))
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return "", fmt.Errorf("reading the image store's id: %w", err)
	}
	found, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("reading the image store's id: %w", err)
	}
	inode, ok := found.Sys().(*syscall.Stat_t)
	if !ok || !idText.Match(text) {
		return "", fmt.Errorf("the image store's id is not one; remove %s", f.Name())
	}
	sum := sha256.Sum256(fmt.Appendf(text, "%d", inode.Ino))
	return fmt.Sprintf("%x", sum[:8]), nil
}

// makeID writes the file and gives it its name last: readers see a whole one, and
// of two that are made at once the first counts.
func (s *Store) makeID() error {
	f, err := os.CreateTemp(s.dir, ".id-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), filepath.Join(s.dir, idName)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
