package linux

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// MakePlaces makes the directories that a sandbox may write to. The upper
// directory gets them as well: it is what their binds show.
func MakePlaces(tree *Tree) {
	tree.Dir("workspace", 0o755, sandbox.User)
	tree.Dir("home/veyra", 0o755, sandbox.User)
	tree.Dir("tmp", 0o1777, 0)
	tree.Dir("var/tmp", 0o1777, 0)
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

// PrepareUpper makes the overlay's directories on a fresh disk, with the places
// that a sandbox writes to.
func PrepareUpper(disk string, first uint32) error {
	tree := Tree{Root: disk, First: int(first)}
	tree.Dir("wk", 0o755, 0)
	tree.Dir("up", 0o755, 0)
	tree.Root = filepath.Join(disk, "up")
	tree.Dir("home", 0o755, 0)
	tree.Dir("var", 0o755, 0)
	MakePlaces(&tree)
	tree.Root = disk
	makeSpare(&tree)
	return tree.Err
}
