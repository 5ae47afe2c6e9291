package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Store is a directory of images. Its methods may be called from any
// goroutine and any process at once: readers see whole images only, writers
// wait for each other.
type Store struct {
	dir    string
	limits Limits
}

// Open opens the store in dir and makes an empty directory (0755) where none
// is. A reader that may not write dir gets along as long as it exists.
func Open(dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("opening image store: %w", err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, fmt.Errorf("opening image store: %w", err)
	}
	return &Store{dir: abs, limits: DefaultLimits()}, nil
}

// List returns all images, by name, the newest of a name first.
func (s *Store) List() ([]Image, error) {
	list, err := s.readIndex()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, newestFirst)
	return list, nil
}

// Lookup returns the image with that digest, or the newest with that name;
// ErrMissing when there is none.
func (s *Store) Lookup(name string) (Image, error) {
	list, err := s.List()
	if err != nil {
		return Image{}, err
	}
	for _, image := range list {
		if image.Name == name || string(image.Digest) == name {
			return image, nil
		}
	}
	return Image{}, fmt.Errorf("looking up image %.80q: %w", name, ErrMissing)
}

// Root returns the path of the image's unpacked root file system. Files belong
// to the ids that the image gives them, and nobody may write there: mount it
// read-only. Each call looks again at what a bundle relies on (attack case
// A06). Only root can enter the directory: it holds files that a local user of
// the host has no business with. ErrMissing when the store hasn't got it.
func (s *Store) Root(d Digest) (string, error) {
	d, err := ParseDigest(string(d))
	if err != nil {
		return "", err
	}
	root := filepath.Join(s.imageDir(d), rootName)
	if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("finding image %s: %w", d, ErrMissing)
	}
	for _, dir := range []string{s.dir, filepath.Dir(s.imageDir(d)), s.imageDir(d)} {
		if err := checkOwner(dir); err != nil {
			return "", fmt.Errorf("checking image %s: %w", d, err)
		}
	}
	if err := checkRoot(root); err != nil {
		return "", fmt.Errorf("checking image %s: %w", d, err)
	}
	return root, nil
}

// checkOwner refuses a directory in which another user of the host could put a
// root of their own in the place of ours.
func checkOwner(dir string) error {
	found, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := found.Sys().(*syscall.Stat_t)
	mine := ok && (owner.Uid == 0 || int(owner.Uid) == os.Geteuid())
	if !found.IsDir() || !mine || found.Mode().Perm()&0o022 != 0 {
		return refuse("", "the store's directory %s can be changed by others", dir)
	}
	return nil
}

// Hold keeps an image from being collected until the returned closer is closed
// or the process ends. Any number may hold one image. ErrMissing when it is
// gone already.
func (s *Store) Hold(d Digest) (io.Closer, error) {
	d, err := ParseDigest(string(d))
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(s.imageDir(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("holding image %s: %w", d, ErrMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("holding image %s: %w", d, err)
	}
	// GC takes this lock alone before it moves the directory away, so a lock
	// that is refused means an image on its way out.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, fmt.Errorf("holding image %s: %w", d, ErrMissing)
	}
	return s.stillThere(dir, d)
}

// stillThere closes the gap between opening and locking: a directory that was
// moved away in between is no longer found under its name.
func (s *Store) stillThere(dir *os.File, d Digest) (io.Closer, error) {
	held, err := dir.Stat()
	if err == nil {
		var named os.FileInfo
		named, err = os.Lstat(s.imageDir(d))
		if err == nil && os.SameFile(held, named) {
			return dir, nil
		}
	}
	dir.Close()
	return nil, fmt.Errorf("holding image %s: %w", d, ErrMissing)
}

const (
	rootName   = "root"
	layoutName = "layout"
)

func (s *Store) imageDir(d Digest) string {
	return filepath.Join(s.dir, "sha256", d.hex())
}

// checkRoot looks at what runtimes mount over. A link there would send a mount
// out of the root (CVE-2025-31133 and kin), a missing directory would have to be
// made on a read-only file system.
func checkRoot(root string) error {
	if err := checkDir(root, "/"); err != nil {
		return err
	}
	for _, name := range []string{"dev", "proc", "sys"} {
		if err := checkDir(filepath.Join(root, name), "/"+name); err != nil {
			return err
		}
	}
	for _, name := range []string{"dev/null", "dev/console", "dev/pts", "dev/shm", "dev/mqueue"} {
		found, err := os.Lstat(filepath.Join(root, name))
		if err == nil && !found.IsDir() && !found.Mode().IsRegular() {
			return refuse("/"+name, "is neither a file nor a directory")
		}
	}
	return nil
}

// checkDir wants a real directory of the image's root user that every uid of
// the sandbox can pass and only its owner can change.
func checkDir(path, name string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return refuse(name, "is missing")
	}
	if err != nil {
		return err
	}
	if !found.IsDir() {
		return refuse(name, "is not a directory")
	}
	mode := found.Mode().Perm()
	// /proc and /sys are 0555 in some images; mounts cover them anyway.
	if mode&0o055 != 0o055 || mode&0o022 != 0 {
		return refuse(name, "has mode %04o; want it readable by all and writable by its owner", mode)
	}
	if owner, ok := found.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
		return refuse(name, "belongs to uid %d", owner.Uid)
	}
	return nil
}
