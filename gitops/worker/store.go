package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// The object store is one pack and its index, nothing else: no refs, no
// configuration, no alternates that could name another place.
const (
	packName = "base.pack"
	idxName  = "base.idx"

	// cacheBytes holds delta bases and keeps a 13,000-file tree under the
	// memory of git's own checkout.
	cacheBytes = 24 << 20
)

// diskKind tells a full disk, which is a bound, from other faults.
func diskKind(err error) gitops.Kind {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		return gitops.KindTooLarge
	}
	return gitops.KindInternal
}

// receive scans a pack on its way into dir and indexes it there.
func receive(dir string, pack io.Reader, lim gitops.Limits) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return gitops.Errorf(diskKind(err), "making object store", "%w", err)
	}
	if err := storePack(dir, pack, lim); err != nil {
		return err
	}
	return indexPack(dir)
}

func storePack(dir string, pack io.Reader, lim gitops.Limits) error {
	f, err := os.OpenFile(filepath.Join(dir, packName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return gitops.Errorf(diskKind(err), "making pack", "%w", err)
	}
	err = prescan(pack, f, lim)
	if closed := f.Close(); err == nil && closed != nil {
		err = gitops.Errorf(diskKind(closed), "storing pack", "%w", closed)
	}
	return err
}

// indexPack resolves the deltas of a scanned pack, computes every object's id
// and stores the index.
func indexPack(dir string) (err error) {
	const op = "indexing pack"
	defer func() { err = recovered(op, recover(), err) }()
	f, err := osfs.New(dir).Open(packName)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, op, "%w", err)
	}
	defer f.Close()
	ids := new(idxfile.Writer)
	parser, err := packfile.NewParser(packfile.NewScanner(f), ids)
	if err != nil {
		return gitops.Errorf(gitops.KindInternal, op, "%w", err)
	}
	if _, err := parser.Parse(); err != nil {
		return gitops.Errorf(gitops.KindUnsupported, op, "%w", err)
	}
	idx, err := ids.Index()
	if err != nil {
		return gitops.Errorf(gitops.KindUnsupported, op, "%w", err)
	}
	return writeIndex(filepath.Join(dir, idxName), idx)
}

func writeIndex(name string, idx *idxfile.MemoryIndex) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return gitops.Errorf(diskKind(err), "storing index", "%w", err)
	}
	buf := bufio.NewWriter(f)
	_, err = idxfile.NewEncoder(buf).Encode(idx)
	err = errors.Join(err, buf.Flush(), f.Close())
	if err != nil {
		return gitops.Errorf(diskKind(err), "storing index", "%w", err)
	}
	return nil
}

// recovered turns a panic of the library into an unsupported repository. The
// sandbox would survive a crash as well, but its outcome would have no name.
func recovered(op string, fault any, err error) error {
	if fault == nil {
		return err
	}
	return gitops.Errorf(gitops.KindUnsupported, op, "library gave up: %v", fault)
}

// store reads objects of one indexed pack. Not for concurrent use.
type store struct {
	file billy.File
	ids  *idxfile.MemoryIndex
	pack *packfile.Packfile
}

func openStore(dir string) (*store, error) {
	const op = "opening object store"
	idx, err := readIndex(filepath.Join(dir, idxName))
	if err != nil {
		return nil, gitops.Errorf(gitops.KindInternal, op, "%w", err)
	}
	f, err := osfs.New(dir).Open(packName)
	if err != nil {
		return nil, gitops.Errorf(gitops.KindInternal, op, "%w", err)
	}
	pack := packfile.NewPackfileWithCache(idx, nil, f, cache.NewObjectLRU(cacheBytes), 0)
	return &store{file: f, ids: idx, pack: pack}, nil
}

func readIndex(name string) (*idxfile.MemoryIndex, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	idx := idxfile.NewMemoryIndex()
	return idx, idxfile.NewDecoder(bufio.NewReader(f)).Decode(idx)
}

// Close closes the pack.
func (s *store) Close() error { return s.file.Close() }

// has reports whether the pack holds an object.
func (s *store) has(id gitops.ObjectID) bool {
	found, err := s.ids.Contains(plumbing.NewHash(string(id)))
	return err == nil && found
}

// object opens one object of a type; a missing one or another type is an
// unsupported repository.
func (s *store) object(id gitops.ObjectID, want plumbing.ObjectType) (o plumbing.EncodedObject, err error) {
	op := fmt.Sprintf("reading %s %s", want, id)
	defer func() { err = recovered(op, recover(), err) }()
	o, err = s.pack.Get(plumbing.NewHash(string(id)))
	if err != nil {
		return nil, gitops.Errorf(gitops.KindUnsupported, op, "%w", err)
	}
	if o.Type() != want {
		return nil, gitops.Errorf(gitops.KindUnsupported, op, "it is a %s", o.Type())
	}
	return o, nil
}

// bytes reads a whole object; prescan has bounded its size.
func (s *store) bytes(id gitops.ObjectID, want plumbing.ObjectType) (b []byte, err error) {
	o, err := s.object(id, want)
	if err != nil {
		return nil, err
	}
	defer func() { err = recovered("reading object", recover(), err) }()
	r, err := o.Reader()
	if err != nil {
		return nil, gitops.Errorf(gitops.KindUnsupported, "reading object", "%s: %w", id, err)
	}
	defer r.Close()
	b, err = io.ReadAll(r)
	if err != nil {
		return nil, gitops.Errorf(gitops.KindUnsupported, "reading object", "%s: %w", id, err)
	}
	return b, nil
}

// treeOf gives the tree of a commit.
func (s *store) treeOf(commit gitops.ObjectID) (gitops.ObjectID, error) {
	b, err := s.bytes(commit, plumbing.CommitObject)
	if err != nil {
		return "", err
	}
	if len(b) < 46 || string(b[:5]) != "tree " || b[45] != '\n' {
		return "", gitops.Errorf(gitops.KindUnsupported, "reading commit", "%s names no tree", commit)
	}
	id, err := gitops.ParseObjectID(string(b[5:45]))
	if err != nil {
		return "", gitops.Errorf(gitops.KindUnsupported, "reading commit", "%s: %w", commit, err)
	}
	return id, nil
}

// tree reads and parses a tree.
func (s *store) tree(id gitops.ObjectID) ([]treeEntry, error) {
	if id == emptyTree {
		return nil, nil // often not in the pack at all
	}
	b, err := s.bytes(id, plumbing.TreeObject)
	if err != nil {
		return nil, err
	}
	return parseTree(id, b)
}
