package gitops

import (
	"slices"
	"strings"
)

// HashRequest tells the mode hash what a work tree cannot show by itself. With
// it a tree id is computed from files alone, without any object store.
type HashRequest struct {
	// Gitlinks are submodules: an empty directory in the work tree.
	Gitlinks []Entry
	// Odd are untouched files whose mode git no longer writes.
	Odd []Entry
	// Files asks for the manifest of the work tree beside its tree id.
	Files bool
}

// NewHashRequest gives what base and changes leave unseen in a work tree.
func NewHashRequest(base Manifest, changes []Change, files bool) HashRequest {
	touched := make(map[string]bool, len(changes))
	for _, c := range changes {
		touched[c.Path] = true
	}
	r := HashRequest{Files: files}
	for _, e := range base.Entries {
		switch {
		case touched[e.Path]:
		case e.Mode.IsGitlink():
			r.Gitlinks = append(r.Gitlinks, e)
		case e.Mode.IsOdd():
			r.Odd = append(r.Odd, e)
		}
	}
	return r
}

// DiffFiles lists the paths that differ between two manifests, in bytes, mode
// or presence, sorted by path. It is how a run's effect on tracked files is
// seen: before is what should be there, after what the mode hash found.
func DiffFiles(before, after Manifest) []ChangedPath {
	return diffManifests(before, after, func(a, b Entry) bool {
		return a.Mode == b.Mode && a.Size == b.Size && a.SHA256 == b.SHA256
	})
}

// DiffTrees lists the paths that differ between two commits' manifests, as git
// without rename detection does: by mode and object id, sorted by path.
func DiffTrees(before, after Manifest) []ChangedPath {
	return diffManifests(before, after, func(a, b Entry) bool { return a.Mode == b.Mode && a.ID == b.ID })
}

func diffManifests(before, after Manifest, same func(a, b Entry) bool) []ChangedPath {
	var out []ChangedPath
	for _, e := range before.Entries {
		now, ok := after.Lookup(e.Path)
		switch {
		case !ok:
			out = append(out, ChangedPath{e.Path, PathDeleted})
		case !same(e, now):
			out = append(out, ChangedPath{e.Path, PathModified})
		}
	}
	for _, e := range after.Entries {
		if _, ok := before.Lookup(e.Path); !ok {
			out = append(out, ChangedPath{e.Path, PathAdded})
		}
	}
	slices.SortFunc(out, func(a, b ChangedPath) int { return strings.Compare(a.Path, b.Path) })
	return out
}
