package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// place is a directory of a sandbox and which of the range's ids owns it.
type place struct {
	path  string
	mode  uint32
	owner int
}

// places are the directories that a sandbox may write to. The upper directory has
// them as well: it is what their binds show.
var places = []place{
	{"workspace", 0o755, sandbox.User},
	{"home/veyra", 0o755, sandbox.User},
	{"tmp", 0o1777, 0},
	{"var/tmp", 0o1777, 0},
}

// MakePlaces makes the directories that a sandbox may write to.
func MakePlaces(tree *Tree) {
	for _, p := range places {
		tree.Dir(p.path, p.mode, p.owner)
	}
}

// Tree writes files below root, owned by ids of the range; the first
// failure is kept.
type Tree struct {
	Root  string
	First int
	Err   error
}

// Dir makes a directory. The mode comes before the owner: afterwards it would
// be a foreign directory.
func (t *Tree) Dir(name string, mode uint32, owner int) {
	if t.Err != nil {
		return
	}
	path := filepath.Join(t.Root, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Err = fmt.Errorf("making sandbox directory: %w", err)
		return
	}
	t.finish(path, mode, owner)
}

func (t *Tree) finish(path string, mode uint32, owner int) {
	if err := unix.Chmod(path, mode); err != nil {
		t.Err = fmt.Errorf("setting sandbox mode: %w", err)
		return
	}
	if err := os.Lchown(path, t.First+owner, t.First+owner); err != nil {
		t.Err = fmt.Errorf("setting sandbox owner: %w", err)
	}
}

func (t *Tree) File(name, text string) {
	if t.Err != nil {
		return
	}
	path := filepath.Join(t.Root, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Err = fmt.Errorf("writing sandbox file: %w", err)
		return
	}
	t.finish(path, 0o644, 0)
}

// Program copies an executable. Reading by offset leaves the shared file
// position alone, so that several jobs may copy at once.
func (t *Tree) Program(name string, from *os.File) {
	if t.Err != nil {
		return
	}
	path := filepath.Join(t.Root, name)
	if err := copyProgram(path, from); err != nil {
		t.Err = fmt.Errorf("copying program: %w", err)
		return
	}
	t.finish(path, 0o755, 0)
}

func copyProgram(path string, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, io.NewSectionReader(from, 0, info.Size())); err != nil {
		_ = to.Close()
		return err
	}
	return to.Close()
}

// upperPlaces are an overlay's two directories on a disk, and what lies in the
// upper one.
func upperPlaces() []place {
	all := []place{{"wk", 0o755, 0}, {"up", 0o755, 0}, {"up/home", 0o755, 0}, {"up/var", 0o755, 0}}
	for _, p := range places {
		all = append(all, place{filepath.Join("up", p.path), p.mode, p.owner})
	}
	return all
}

// prepared makes the overlay's directories on a fresh disk, with the places that a
// sandbox writes to. They are our own until ownUpper. A disk that can't be prepared
// is released.
func (d *Disk) prepared() (*Disk, error) {
	tree := Tree{Root: d.Path}
	for _, p := range upperPlaces() {
		tree.Dir(p.path, p.mode, 0)
	}
	makeSpare(&tree)
	if tree.Err != nil {
		return nil, errors.Join(tree.Err, d.Release())
	}
	return d, nil
}

// ownUpper gives them to a range of ids.
func ownUpper(disk string, first uint32) error {
	for _, p := range upperPlaces() {
		id := int(first) + p.owner
		if err := os.Lchown(filepath.Join(disk, p.path), id, id); err != nil {
			return fmt.Errorf("setting sandbox owner: %w", err)
		}
	}
	return nil
}
