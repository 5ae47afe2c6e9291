package worker

import (
	"crypto/sha256"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Places are the directories that a mode works on.
type Places struct {
	Objects   string // made by Index, read by Commit
	Workspace string // exists; empty for Index
}

// Index reads a pack from in, stores it below p.Objects and writes the tree of
// commit into p.Workspace: raw bytes, modes 0644 and 0755, links as they are,
// gitlinks as empty directories, everything with gitops.BaseTime. Each path is
// sent to out, then the tree's id.
func Index(in io.Reader, out *gitops.ReplyWriter, p Places, commit gitops.ObjectID, lim gitops.Limits) error {
	s, err := received(in, p, lim)
	if err != nil {
		return err
	}
	defer s.Close()
	tree, err := s.treeOf(commit)
	if err != nil {
		return err
	}
	root, err := openRoot(p.Workspace)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, checkoutOp, "%w", err)
	}
	defer root.close()
	c := &checkout{store: s, out: out, lim: lim}
	if err := c.tree(tree, root, ""); err != nil {
		return err
	}
	// The work tree's own directory may belong to the sandbox's init.
	if err := root.age(); err != nil && err != unix.EPERM {
		return c.fault(err)
	}
	out.Done(commit, tree, c.files)
	return nil
}

const checkoutOp = "writing base tree"

// checkout writes a tree, entry by entry.
type checkout struct {
	store   *store
	out     *gitops.ReplyWriter
	lim     gitops.Limits
	entries int   // directories count, too: a small pack can repeat a tree without end
	files   int   // entries that are paths of the manifest
	written int64 // bytes of all files: one blob may stand at many paths
}

func (c *checkout) fault(err error) error {
	return gitops.Errorf(diskKind(err), checkoutOp, "%w", err)
}

func (c *checkout) tree(id gitops.ObjectID, dir directory, path string) error {
	entries, err := c.store.tree(id)
	if err != nil {
		return err
	}
	if c.entries += len(entries); c.entries > c.lim.Entries {
		return gitops.Errorf(gitops.KindTooLarge, checkoutOp, "more than %d entries", c.lim.Entries)
	}
	for _, e := range entries {
		if err := c.entry(e, dir, join(path, e.name)); err != nil {
			return err
		}
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func (c *checkout) entry(e treeEntry, dir directory, path string) error {
	if len(path) > c.lim.Path || len(e.name) > c.lim.Name || strings.Count(path, "/") > c.lim.Depth {
		return gitops.Errorf(gitops.KindTooLarge, checkoutOp, "path of %d bytes", len(path))
	}
	switch {
	case e.isTree():
		return c.directory(e, dir, path)
	case e.mode.IsGitlink():
		return c.gitlink(e, dir, path)
	case e.mode.IsLink():
		return c.link(e, dir, path)
	}
	return c.file(e, dir, path)
}

func (c *checkout) directory(e treeEntry, dir directory, path string) error {
	sub, err := dir.make(e.name)
	if err != nil {
		return c.fault(err)
	}
	defer sub.close()
	if err := c.tree(e.id, sub, path); err != nil {
		return err
	}
	if err := sub.age(); err != nil {
		return c.fault(err)
	}
	return nil
}

func (c *checkout) gitlink(e treeEntry, dir directory, path string) error {
	sub, err := dir.make(e.name)
	if err != nil {
		return c.fault(err)
	}
	defer sub.close()
	c.send(gitops.Entry{Path: path, Mode: e.mode, ID: e.id})
	return sub.age()
}

func (c *checkout) send(e gitops.Entry) {
	c.files++
	c.out.Entry(e)
}

func (c *checkout) link(e treeEntry, dir directory, path string) error {
	b, err := c.store.bytes(e.id, plumbing.BlobObject)
	if err != nil {
		return err
	}
	if target := string(b); target == "" || len(target) > 4095 || strings.ContainsRune(target, 0) {
		return gitops.Errorf(gitops.KindUnsupported, checkoutOp, "link %q has no usable target", path)
	}
	if err := dir.link(e.name, string(b)); err != nil {
		return c.fault(err)
	}
	c.send(gitops.Entry{Path: path, Mode: e.mode, Size: int64(len(b)), SHA256: sha256.Sum256(b), ID: e.id})
	return nil
}

func (c *checkout) file(e treeEntry, dir directory, path string) error {
	o, err := c.store.object(e.id, plumbing.BlobObject)
	if err != nil {
		return err
	}
	if c.written += o.Size(); c.written > c.lim.Inflated {
		return gitops.Errorf(gitops.KindTooLarge, checkoutOp, "more than %d bytes of files", c.lim.Inflated)
	}
	sum, size := sha256.New(), int64(0)
	err = dir.create(e.name, e.mode.IsExec(), func(w io.Writer) error {
		r, err := o.Reader()
		if err != nil {
			return err
		}
		defer r.Close()
		size, err = io.Copy(io.MultiWriter(w, sum), r)
		return err
	})
	if err != nil {
		return c.fault(err)
	}
	c.send(gitops.Entry{Path: path, Mode: e.mode, Size: size, SHA256: gitops.Digest(sum.Sum(nil)), ID: e.id})
	return nil
}
