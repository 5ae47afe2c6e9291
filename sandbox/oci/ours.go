package oci

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Binaries are the programs of ours that sandboxes start with: open files, so
// that what runs inside is what was looked at, whatever happens to the names.
type Binaries struct {
	Init *os.File // veyra-init, static
	Git  *os.File // veyra-git, static; nil where no git work is done
}

// ours builds the top lower layer of a job's sandboxes: our own binaries, the
// name files of /etc and every mount point. It lies on the runner's tmpfs and
// belongs to the range's root, so a job can neither write init nor name a host
// path by it. bare is for sandboxes without an image.
func (d *Driver) ours(target string, first uint32, bare bool) error {
	tree := oursTree{root: target, first: int(first)}
	tree.dir("", 0o755, 0)
	for _, name := range []string{".veyra", "dev", "etc", "home", "proc", "run", "sys", "var"} {
		tree.dir(name, 0o755, 0)
	}
	makePlaces(&tree)
	tree.file("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
	tree.file("etc/hostname", "sandbox\n")
	tree.file("etc/resolv.conf", "")
	tree.program(".veyra/init", d.config.Binaries.Init)
	if bare {
		tree.file("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nveyra:x:1000:1000:veyra:"+sandbox.Home+":/sbin/nologin\n")
		tree.file("etc/group", "root:x:0:\nveyra:x:1000:\n")
		if d.config.Binaries.Git != nil {
			tree.program(".veyra/git", d.config.Binaries.Git)
		}
	}
	return tree.err
}

// makePlaces makes the directories that a sandbox may write to. The upper
// directory gets them as well: it is what their binds show.
func makePlaces(tree *oursTree) {
	tree.dir("workspace", 0o755, sandbox.User)
	tree.dir("home/veyra", 0o755, sandbox.User)
	tree.dir("tmp", 0o1777, 0)
	tree.dir("var/tmp", 0o1777, 0)
}

// oursTree writes files below root, owned by ids of the range; the first
// failure is kept.
type oursTree struct {
	root  string
	first int
	err   error
}

// dir makes a directory. The mode comes before the owner: afterwards it would
// be a foreign directory.
func (t *oursTree) dir(name string, mode uint32, owner int) {
	if t.err != nil {
		return
	}
	path := filepath.Join(t.root, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.err = fmt.Errorf("making sandbox directory: %w", err)
		return
	}
	t.finish(path, mode, owner)
}

func (t *oursTree) finish(path string, mode uint32, owner int) {
	if err := unix.Chmod(path, mode); err != nil {
		t.err = fmt.Errorf("setting sandbox mode: %w", err)
		return
	}
	if err := os.Lchown(path, t.first+owner, t.first+owner); err != nil {
		t.err = fmt.Errorf("setting sandbox owner: %w", err)
	}
}

func (t *oursTree) file(name, text string) {
	if t.err != nil {
		return
	}
	path := filepath.Join(t.root, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.err = fmt.Errorf("writing sandbox file: %w", err)
		return
	}
	t.finish(path, 0o644, 0)
}

// program copies an executable. Reading by offset leaves the shared file
// position alone, so that several jobs may copy at once.
func (t *oursTree) program(name string, from *os.File) {
	if t.err != nil {
		return
	}
	path := filepath.Join(t.root, name)
	if err := copyProgram(path, from); err != nil {
		t.err = fmt.Errorf("copying program: %w", err)
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
