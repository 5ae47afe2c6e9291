package worker

import (
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

const diffOp = "comparing trees"

// differ walks two trees side by side and skips what has the same id. A few
// small trees that name each other can stand for any number of paths, so that
// what is looked at has a bound.
type differ struct {
	read func(gitops.ObjectID) ([]treeEntry, error)
	lim  gitops.Limits
	seen int // entries of both sides
	out  []gitops.ChangedPath
}

// paths lists what differs, sorted by path.
func (d *differ) paths(old, now gitops.ObjectID) ([]gitops.ChangedPath, error) {
	if err := d.trees(old, now, ""); err != nil {
		return nil, err
	}
	slices.SortFunc(d.out, func(x, y gitops.ChangedPath) int { return strings.Compare(x.Path, y.Path) })
	return d.out, nil
}

func (d *differ) trees(old, now gitops.ObjectID, dir string) error {
	if old == now {
		return nil
	}
	if len(dir) > d.lim.Path || strings.Count(dir, "/") > d.lim.Depth {
		return gitops.Errorf(gitops.KindTooLarge, diffOp, "path of %d bytes", len(dir))
	}
	before, err := d.named(old)
	if err != nil {
		return err
	}
	after, err := d.named(now)
	if err != nil {
		return err
	}
	for name, e := range before {
		if err := d.entry(e, after[name], join(dir, name)); err != nil {
			return err
		}
	}
	for name, e := range after {
		if _, both := before[name]; !both {
			if err := d.entry(treeEntry{}, e, join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *differ) named(id gitops.ObjectID) (map[string]treeEntry, error) {
	if id == "" {
		return nil, nil
	}
	entries, err := d.read(id)
	if d.seen += len(entries); err == nil && d.seen > 2*d.lim.Entries {
		err = gitops.Errorf(gitops.KindTooLarge, diffOp, "more than %d entries", 2*d.lim.Entries)
	}
	out := make(map[string]treeEntry, len(entries))
	for _, e := range entries {
		out[e.name] = e
	}
	return out, err
}

// entry compares one name; a missing side is the zero entry. A file that
// became a directory is a deletion and what stands below now is new.
func (d *differ) entry(old, now treeEntry, path string) error {
	oldTree, nowTree := subtree(old), subtree(now)
	if err := d.trees(oldTree, nowTree, path); err != nil {
		return err
	}
	hadFile, hasFile := old.id != "" && oldTree == "", now.id != "" && nowTree == ""
	switch {
	case hadFile && !hasFile:
		d.add(path, gitops.PathDeleted)
	case !hadFile && hasFile:
		d.add(path, gitops.PathAdded)
	case hadFile && (old.id != now.id || old.mode != now.mode):
		d.add(path, gitops.PathModified)
	}
	return nil
}

func subtree(e treeEntry) gitops.ObjectID {
	if e.isTree() {
		return e.id
	}
	return ""
}

func (d *differ) add(path string, status gitops.PathStatus) {
	d.out = append(d.out, gitops.ChangedPath{Path: path, Status: status})
}
