package gitops

import (
	"cmp"
	"slices"
	"strings"
)

// ChangeKind says what happens to a path.
type ChangeKind uint8

// The kinds of change. Their numbers travel in frames.
const (
	ChangeWrite  ChangeKind = 1 // the path is a regular file with new bytes or mode
	ChangeDelete ChangeKind = 2 // the path is gone
)

// Change is one path of a change set. Exec is the mode of a written file.
type Change struct {
	Path string
	Kind ChangeKind
	Exec bool
}

// Mode is the tree mode that a written file gets.
func (c Change) Mode() Mode {
	if c.Exec {
		return ModeExec
	}
	return ModeFile
}

// UpperKind is what a collected path of a sandbox's upper layer is.
type UpperKind uint8

// The kinds of collected paths.
const (
	UpperFile   UpperKind = 1 // regular file with one link
	UpperGone   UpperKind = 2 // whiteout: the path of the lower layer is gone
	UpperDir    UpperKind = 3 // directory merged with the lower one
	UpperOpaque UpperKind = 4 // directory that hides all of the lower one
	UpperOther  UpperKind = 5 // symlink, FIFO, socket, device, second hard link
)

// Upper is one collected path. Size and SHA256 count for files only.
type Upper struct {
	Path   string
	Kind   UpperKind
	Exec   bool
	Size   int64
	SHA256 Digest
}

// ChangeSet is an upper layer seen against a base tree.
type ChangeSet struct {
	// Changes is sorted by path; a path stands once. Files whose bytes and
	// mode are the base tree's are left out: copied up is not changed.
	Changes []Change
	// Unsupported lists paths that no commit of ours can hold: UpperOther,
	// a file or directory in the place of a gitlink, names that CheckPath
	// refuses. Whether an ignored one may be dropped is the caller's decision.
	Unsupported []string
}

// Compare turns an upper layer into changes of base. Uppers may come in any
// order. A path below a top-level ".git" is skipped unread.
func Compare(base Manifest, uppers []Upper) ChangeSet {
	d := diff{base: base, changes: map[string]Change{}, unsupported: map[string]bool{}}
	for _, u := range uppers { // deletions first: an opaque directory's writes come after it
		d.remove(u)
	}
	for _, u := range uppers {
		d.write(u)
	}
	return d.result()
}

type diff struct {
	base        Manifest
	changes     map[string]Change
	unsupported map[string]bool
}

func skipped(path string) bool { return path == ".git" || strings.HasPrefix(path, ".git/") }

func (d *diff) remove(u Upper) {
	if skipped(u.Path) {
		return
	}
	if u.Kind != UpperDir { // whatever else stands here hides what was below
		for _, e := range d.base.Below(u.Path) {
			d.delete(e)
		}
	}
	if e, ok := d.base.Lookup(u.Path); ok && !d.stays(e, u) {
		d.delete(e)
	}
}

// stays reports whether u leaves the base entry e at its path. A gitlink is an
// empty directory in the work tree, and what happens below it is ignored.
func (d *diff) stays(e Entry, u Upper) bool {
	return e.Mode.IsGitlink() && (u.Kind == UpperDir || u.Kind == UpperOpaque)
}

func (d *diff) delete(e Entry) {
	if e.Mode.IsGitlink() {
		d.unsupported[e.Path] = true
		return
	}
	d.changes[e.Path] = Change{Path: e.Path, Kind: ChangeDelete}
}

func (d *diff) write(u Upper) {
	switch {
	case skipped(u.Path) || d.inGitlink(u.Path):
	case u.Kind == UpperOther:
		d.unsupported[u.Path] = true
	case u.Kind == UpperFile && CheckPath(u.Path) != nil:
		d.unsupported[u.Path] = true
	case u.Kind == UpperFile && d.same(u):
		delete(d.changes, u.Path)
	case u.Kind == UpperFile:
		d.changes[u.Path] = Change{Path: u.Path, Kind: ChangeWrite, Exec: u.Exec}
	}
}

func (d *diff) same(u Upper) bool {
	e, ok := d.base.Lookup(u.Path)
	return ok && e.Mode.IsFile() && e.Mode.IsExec() == u.Exec && e.Size == u.Size && e.SHA256 == u.SHA256
}

// inGitlink reports whether a directory above path is a gitlink of the base.
func (d *diff) inGitlink(path string) bool {
	for i, c := range []byte(path) {
		if c == '/' {
			if e, ok := d.base.Lookup(path[:i]); ok && e.Mode.IsGitlink() {
				return true
			}
		}
	}
	return false
}

func (d *diff) result() (s ChangeSet) {
	for _, c := range d.changes {
		s.Changes = append(s.Changes, c)
	}
	for p := range d.unsupported {
		s.Unsupported = append(s.Unsupported, p)
	}
	slices.SortFunc(s.Changes, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	slices.Sort(s.Unsupported)
	return s
}
