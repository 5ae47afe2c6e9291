package worker

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/pjbgf/sha1cd"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// emptyTree is the id of a tree without entries.
const emptyTree gitops.ObjectID = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

type treeEntry struct {
	name string
	mode gitops.Mode
	id   gitops.ObjectID
}

func (e treeEntry) isTree() bool { return e.mode == gitops.ModeDir }

// sortKey is git's order: a directory sorts as if its name ended with "/".
func (e treeEntry) sortKey() string {
	if e.isTree() {
		return e.name + "/"
	}
	return e.name
}

// parseTree takes a tree object apart and refuses everything that encodeTree
// would not give back byte for byte, and every name or mode that a work tree
// cannot hold.
func parseTree(id gitops.ObjectID, b []byte) ([]treeEntry, error) {
	var out []treeEntry
	seen := map[string]bool{}
	for len(b) > 0 {
		e, rest, err := parseEntry(b)
		if err == nil {
			err = checkEntry(e, out, seen)
		}
		if err != nil {
			return nil, gitops.Errorf(gitops.KindUnsupported, "reading tree", "%s: %w", id, err)
		}
		out, b = append(out, e), rest
	}
	return out, nil
}

func parseEntry(b []byte) (treeEntry, []byte, error) {
	var mode gitops.Mode
	digits := 0
	for digits < len(b) && b[digits] >= '0' && b[digits] <= '7' && digits < 7 {
		mode = mode<<3 | gitops.Mode(b[digits]-'0')
		digits++
	}
	if digits == 0 || b[0] == '0' || digits >= len(b) || b[digits] != ' ' {
		return treeEntry{}, nil, fmt.Errorf("mode of %d digits", digits)
	}
	b = b[digits+1:]
	end := bytes.IndexByte(b, 0)
	if end < 0 || len(b) < end+21 {
		return treeEntry{}, nil, fmt.Errorf("entry without end")
	}
	id := gitops.ObjectID(hex.EncodeToString(b[end+1 : end+21]))
	return treeEntry{name: string(b[:end]), mode: mode, id: id}, b[end+21:], nil
}

func checkEntry(e treeEntry, before []treeEntry, seen map[string]bool) error {
	if err := gitops.CheckName(e.name); err != nil {
		return err
	}
	known := e.isTree() || e.mode.IsFile() || e.mode == gitops.ModeLink || e.mode == gitops.ModeGitlink
	switch {
	case !known:
		return fmt.Errorf("entry %q of mode %o", e.name, e.mode)
	case seen[e.name]:
		return fmt.Errorf("name %q stands twice", e.name)
	case len(before) > 0 && before[len(before)-1].sortKey() >= e.sortKey():
		return fmt.Errorf("name %q out of order", e.name)
	case e.mode.IsLink() && gitops.IsModulesFile(e.name):
		return fmt.Errorf("%q is a symbolic link", e.name)
	case e.id == emptyTree && e.isTree():
		// Git itself never writes one, and no work tree can show it.
		return fmt.Errorf("directory %q is empty", e.name)
	}
	seen[e.name] = true
	return nil
}

// encodeTree sorts entries and gives the tree object's bytes.
func encodeTree(entries []treeEntry) []byte {
	slices.SortFunc(entries, func(a, b treeEntry) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	var b []byte
	for _, e := range entries {
		b = fmt.Appendf(b, "%o %s\x00", e.mode, e.name)
		b, _ = hex.AppendDecode(b, []byte(e.id))
	}
	return b
}

// newObjectHash begins the SHA-1 of an object: its type and size. sha1cd
// notices the known collision attacks.
func newObjectHash(kind string, size int64) hash.Hash {
	h := sha1cd.New()
	fmt.Fprintf(h, "%s %d\x00", kind, size)
	return h
}

func sumID(h hash.Hash) gitops.ObjectID { return gitops.ObjectID(hex.EncodeToString(h.Sum(nil))) }

func objectID(kind string, content []byte) gitops.ObjectID {
	h := newObjectHash(kind, int64(len(content)))
	h.Write(content)
	return sumID(h)
}
