package gitops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Digest is a SHA-256 of a file's bytes. Manifests compare by it, so that a
// pair of files with one SHA-1 cannot hide an edit.
type Digest [32]byte

// Entry is one path of a tree. For a symbolic link the bytes are its target;
// a gitlink has an id and no bytes.
type Entry struct {
	Path   string // raw bytes as git stores them, parts joined by "/"
	Mode   Mode
	Size   int64
	SHA256 Digest
	ID     ObjectID // blob id; the commit's id for a gitlink
}

// Manifest is the list of all paths of one commit's tree, sorted by path
// bytes. It is not changed after it was built.
type Manifest struct {
	Commit  ObjectID
	Tree    ObjectID
	Entries []Entry
}

// NewManifest sorts entries and refuses a path that stands twice or both as a
// file and as a directory, and names that CheckPath refuses.
func NewManifest(commit, tree ObjectID, entries []Entry) (Manifest, error) {
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	m := Manifest{Commit: commit, Tree: tree, Entries: entries}
	for i, e := range entries {
		if err := CheckPath(e.Path); err != nil {
			return Manifest{}, err
		}
		if i > 0 && entries[i-1].Path == e.Path {
			return Manifest{}, fmt.Errorf("building manifest: path %q stands twice", e.Path)
		}
		if m.HasDir(e.Path) {
			return Manifest{}, fmt.Errorf("building manifest: path %q is a file and a directory", e.Path)
		}
	}
	return m, nil
}

// Lookup finds the entry of exactly this path.
func (m Manifest) Lookup(path string) (Entry, bool) {
	i, ok := m.find(path)
	if !ok {
		return Entry{}, false
	}
	return m.Entries[i], true
}

// Below gives the entries under a directory, in order; "" is the whole tree.
// The result shares the manifest's memory.
func (m Manifest) Below(dir string) []Entry {
	if dir == "" {
		return m.Entries
	}
	prefix := dir + "/"
	from, _ := m.find(prefix)
	to := from
	for to < len(m.Entries) && strings.HasPrefix(m.Entries[to].Path, prefix) {
		to++
	}
	return m.Entries[from:to:to]
}

// HasDir reports whether the tree has a directory of this path.
func (m Manifest) HasDir(dir string) bool {
	i, _ := m.find(dir + "/")
	return i < len(m.Entries) && strings.HasPrefix(m.Entries[i].Path, dir+"/")
}

func (m Manifest) find(path string) (int, bool) {
	return slices.BinarySearchFunc(m.Entries, path, func(e Entry, p string) int {
		return cmp.Compare(e.Path, p)
	})
}
