package worker

import (
	"bytes"
	"io"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Commit reads a request from in, takes the changed files' bytes from
// p.Workspace and answers with ids, changed paths and the pack of every object
// it made. The tree is the parent's with the changes put in: directories
// without a changed path keep their ids, entries without a change their modes.
func Commit(in io.Reader, out *gitops.ReplyWriter, p Places, lim gitops.Limits) error {
	req, err := gitops.ReadCommitRequest(in)
	if err != nil {
		return err
	}
	s, err := openStore(p.Objects)
	if err != nil {
		return err
	}
	defer s.Close()
	root, err := openRoot(p.Workspace)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, commitOp, "%w", err)
	}
	defer root.close()
	b := &build{store: s, root: root, lim: lim, made: map[gitops.ObjectID]object{}}
	return b.answer(req, out)
}

const commitOp = "building commit"

func badChange(format string, args ...any) error {
	return gitops.Errorf(gitops.KindChange, commitOp, format, args...)
}

// object is one new object: content in memory for trees and the commit, a path
// of the work tree for a blob.
type object struct {
	kind    byte
	size    int64
	content []byte
	path    string
}

// build collects the objects of one commit.
type build struct {
	store *store
	root  directory
	lim   gitops.Limits
	made  map[gitops.ObjectID]object
	order []gitops.ObjectID
	total int64
}

func (b *build) answer(req gitops.CommitRequest, out *gitops.ReplyWriter) error {
	parent, err := b.store.treeOf(req.Parent)
	if err != nil {
		return err
	}
	tree, err := b.rootTree(parent, req.Changes)
	if err != nil {
		return err
	}
	changed, err := b.diff(parent, tree)
	if err != nil {
		return err
	}
	body := gitops.CommitBody(req, tree)
	id := b.add(packCommit, "commit", body)
	out.Commit(id, tree)
	for _, c := range changed {
		out.Changed(c)
	}
	if err := b.pack(out); err != nil {
		return err
	}
	out.PackEnd(id)
	return nil
}

// add keeps a new object once, however often it was made.
func (b *build) add(kind byte, name string, content []byte) gitops.ObjectID {
	id := objectID(name, content)
	b.keep(id, object{kind: kind, size: int64(len(content)), content: content})
	return id
}

func (b *build) keep(id gitops.ObjectID, o object) {
	if _, known := b.made[id]; !known {
		b.made[id] = o
		b.order = append(b.order, id)
	}
}

func (b *build) rootTree(base gitops.ObjectID, changes []gitops.Change) (gitops.ObjectID, error) {
	entries, err := b.store.tree(base)
	if err != nil {
		return "", err
	}
	entries, err = b.apply(entries, "", changes)
	if err != nil {
		return "", err
	}
	return b.add(packTree, "tree", encodeTree(entries)), nil
}

// apply puts changes below dir into a tree's entries. Deletions of a name come
// first, then what lies below it, then a file written in its place: so a
// directory can become a file and the reverse.
func (b *build) apply(entries []treeEntry, dir string, changes []gitops.Change) ([]treeEntry, error) {
	t := editing{build: b, dir: dir, entries: map[string]treeEntry{}}
	for _, e := range entries {
		t.entries[e.name] = e
	}
	groups := groupByName(dir, changes)
	for _, step := range []func(name string, g group) error{t.remove, t.descend, t.write} {
		for _, g := range groups {
			if err := step(g.name, g); err != nil {
				return nil, err
			}
		}
	}
	out := make([]treeEntry, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, e)
	}
	return out, nil
}

// group is what happens to one name of a directory.
type group struct {
	name  string
	own   *gitops.Change  // at the name itself
	below []gitops.Change // further down
}

func groupByName(dir string, changes []gitops.Change) []group {
	at := map[string]int{}
	var out []group
	for _, c := range changes {
		rest := c.Path
		if dir != "" {
			rest = rest[len(dir)+1:]
		}
		name, _, below := strings.Cut(rest, "/")
		i, known := at[name]
		if !known {
			i = len(out)
			at[name] = i
			out = append(out, group{name: name})
		}
		if below {
			out[i].below = append(out[i].below, c)
		} else {
			out[i].own = &c
		}
	}
	return out
}

// editing is one directory on its way to a new tree.
type editing struct {
	build   *build
	dir     string
	entries map[string]treeEntry
}

func (t *editing) remove(name string, g group) error {
	if g.own == nil || g.own.Kind != gitops.ChangeDelete {
		return nil
	}
	e, ok := t.entries[name]
	if !ok || e.isTree() || e.mode.IsGitlink() {
		return badChange("path %q is no file that could be deleted", g.own.Path)
	}
	delete(t.entries, name)
	return nil
}

func (t *editing) descend(name string, g group) error {
	if len(g.below) == 0 {
		return nil
	}
	path := join(t.dir, name)
	var old []treeEntry
	if e, ok := t.entries[name]; ok {
		if !e.isTree() {
			return badChange("path %q is a file, changes below it", path)
		}
		var err error
		if old, err = t.build.store.tree(e.id); err != nil {
			return err
		}
	}
	entries, err := t.build.apply(old, path, g.below)
	if err != nil {
		return err
	}
	if len(entries) == 0 { // an emptied directory disappears
		delete(t.entries, name)
		return nil
	}
	id := t.build.add(packTree, "tree", encodeTree(entries))
	t.entries[name] = treeEntry{name: name, mode: gitops.ModeDir, id: id}
	return nil
}

func (t *editing) write(name string, g group) error {
	if g.own == nil || g.own.Kind != gitops.ChangeWrite {
		return nil
	}
	old, existed := t.entries[name]
	if existed && (old.isTree() || old.mode.IsGitlink()) {
		return badChange("path %q is a directory", g.own.Path)
	}
	if existed && old.mode.IsFile() {
		if err := t.build.pointerStays(old.id, g.own.Path); err != nil {
			return err
		}
	}
	id, err := t.build.blob(g.own.Path)
	if err != nil {
		return err
	}
	t.entries[name] = treeEntry{name: name, mode: g.own.Mode(), id: id}
	return nil
}

// blob reads a changed file once for its id; pack reads it again.
func (b *build) blob(path string) (gitops.ObjectID, error) {
	id, size, err := b.hashFile(path)
	if err != nil {
		return "", err
	}
	if b.total += size; b.total > b.lim.Pack {
		return "", gitops.Errorf(gitops.KindTooLarge, commitOp, "more than %d bytes of changed files", b.lim.Pack)
	}
	b.keep(id, object{kind: packBlob, size: size, path: path})
	return id, nil
}

func (b *build) hashFile(path string) (id gitops.ObjectID, size int64, err error) {
	err = b.open(path, func(f io.Reader, n int64) error {
		if n > b.lim.Object {
			return gitops.Errorf(gitops.KindTooLarge, commitOp, "file %q of %d bytes", path, n)
		}
		h := newObjectHash("blob", n)
		if _, err := io.CopyN(h, f, n); err != nil {
			return gitops.Errorf(gitops.KindInternal, commitOp, "reading %q: %w", path, err)
		}
		id, size = sumID(h), n
		return nil
	})
	return id, size, err
}

// open gives a changed file and its size to read.
func (b *build) open(path string, read func(io.Reader, int64) error) error {
	dir, name, err := b.root.at(path)
	if err != nil {
		return badChange("%q: %w", path, err)
	}
	defer dir.close()
	f, st, ok, err := dir.regular(name)
	if err != nil || !ok {
		return badChange("path %q is no regular file: %w", path, err)
	}
	defer f.Close()
	return read(f, st.Size)
}

func (b *build) pack(w io.Writer) error {
	p := newPackWriter(w, len(b.order))
	for _, id := range b.order {
		if err := b.packObject(p, id); err != nil {
			return err
		}
	}
	return p.end()
}

// packObject writes an object. A blob's file is hashed again on the way: a
// file that changed in between would make a pack that no server takes.
func (b *build) packObject(p *packWriter, id gitops.ObjectID) error {
	o := b.made[id]
	if o.path == "" {
		return p.object(o.kind, o.size, bytes.NewReader(o.content))
	}
	return b.open(o.path, func(f io.Reader, _ int64) error {
		h := newObjectHash("blob", o.size)
		if err := p.object(o.kind, o.size, io.TeeReader(f, h)); err != nil {
			return gitops.Errorf(gitops.KindInternal, commitOp, "packing %q: %w", o.path, err)
		}
		if sumID(h) != id {
			return gitops.Errorf(gitops.KindInternal, commitOp, "file %q changed while it was read", o.path)
		}
		return nil
	})
}

// diff lists the paths that differ between two trees. It reads both trees
// again instead of repeating the request: what it says is about the commit.
func (b *build) diff(old, now gitops.ObjectID) ([]gitops.ChangedPath, error) {
	d := differ{read: b.anyTree, lim: b.lim}
	return d.paths(old, now)
}

func (b *build) anyTree(id gitops.ObjectID) ([]treeEntry, error) {
	if o, ok := b.made[id]; ok && o.kind == packTree {
		return parseTree(id, o.content)
	}
	return b.store.tree(id)
}
