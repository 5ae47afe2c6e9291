package gitops

import (
	"bytes"
	"fmt"
	"io"
	"slices"
)

// MaxBases is how many merge bases two commits may have. Histories of people
// have one, or two after a criss-cross merge.
const MaxBases = 16

// BaseDiff is what differs from one merge base to the head: every path added,
// deleted or modified, sorted by path, without rename detection.
type BaseDiff struct {
	Base    ObjectID
	Changed []ChangedPath
}

// ReadHistoryReply reads the answer of the mode history to its end: the merge
// bases, none when the two have no common history. KindIncomplete asks for more
// history.
func ReadHistoryReply(r io.Reader, lim Limits) ([]ObjectID, error) {
	diffs, err := readBases(&answer{r: r, op: "reading history answer", lim: lim}, nil)
	if err != nil {
		return nil, err
	}
	out := make([]ObjectID, 0, len(diffs))
	for _, d := range diffs {
		out = append(out, d.Base)
	}
	return out, nil
}

// DiffReply is the answer of the mode difftrees. Tree is proved to be the
// head's: it stands in a commit whose bytes hash to the head's id. The paths are
// the worker's word.
type DiffReply struct {
	Tree  ObjectID
	Diffs []BaseDiff // one for each base asked, in that order
}

// ReadDiffReply reads the answer of the mode difftrees to its end. A commit that
// is not the head, or a base that was not asked, is KindBroken.
func ReadDiffReply(r io.Reader, head ObjectID, bases []ObjectID, lim Limits) (DiffReply, error) {
	a := &answer{r: r, op: "reading diff answer", lim: lim}
	var commit bytes.Buffer
	diffs, err := readBases(a, &commit)
	if err != nil {
		return DiffReply{}, err
	}
	if !slices.EqualFunc(diffs, bases, func(d BaseDiff, b ObjectID) bool { return d.Base == b }) {
		return DiffReply{}, a.broken(fmt.Errorf("%d bases that were not asked, of %d", len(diffs), len(bases)))
	}
	tree, err := treeIn(commit.Bytes(), head)
	if err != nil {
		return DiffReply{}, a.broken(err)
	}
	return DiffReply{Tree: tree, Diffs: diffs}, nil
}

// treeIn gives the tree that a commit names, once its bytes are those of id.
func treeIn(commit []byte, id ObjectID) (ObjectID, error) {
	if got := commitID(commit); got != id {
		return "", fmt.Errorf("commit hashes to %s, not to %s", got, id)
	}
	line, _, _ := bytes.Cut(commit, []byte("\n"))
	tree, ok := bytes.CutPrefix(line, []byte("tree "))
	if !ok {
		return "", fmt.Errorf("commit %s names no tree", id)
	}
	return ParseObjectID(string(tree))
}

// maxCommit bounds a commit object, in bytes.
const maxCommit = 1 << 20

// readBases reads bases up to the done frame; with commit also the head's bytes
// before them and the paths after each.
func readBases(a *answer, commit *bytes.Buffer) ([]BaseDiff, error) {
	var out []BaseDiff
	for {
		kind, payload, err := a.next()
		switch {
		case err != nil:
			return nil, err
		case kind == framePack && commit != nil && len(out) == 0 && commit.Len() < maxCommit:
			commit.Write(payload)
		case kind == frameBase && len(out) < MaxBases:
			out, err = a.base(out, payload)
		case kind == frameChanged && commit != nil && len(out) > 0:
			err = a.path(&out[len(out)-1].Changed, payload)
		case kind == frameDone:
			return out, a.basesDone(out, payload)
		default:
			err = a.unexpected(kind)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (a *answer) base(out []BaseDiff, payload []byte) ([]BaseDiff, error) {
	d := decoder{b: payload}
	id := d.id()
	if err := d.end("base"); err != nil {
		return nil, a.broken(err)
	}
	return append(out, BaseDiff{Base: id}), nil
}

func (a *answer) basesDone(out []BaseDiff, payload []byte) error {
	s, err := a.done(payload)
	if err == nil && s.count != int64(len(out)) {
		err = a.broken(fmt.Errorf("%d bases, announced %d", len(out), s.count))
	}
	return err
}
