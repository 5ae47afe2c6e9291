package gitops

import (
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
	diffs, err := readBases(&answer{r: r, op: "reading history answer", lim: lim}, false)
	if err != nil {
		return nil, err
	}
	out := make([]ObjectID, 0, len(diffs))
	for _, d := range diffs {
		out = append(out, d.Base)
	}
	return out, nil
}

// ReadDiffReply reads the answer of the mode difftrees to its end: one diff for
// each base asked, in that order; anything else is KindBroken.
func ReadDiffReply(r io.Reader, bases []ObjectID, lim Limits) ([]BaseDiff, error) {
	a := &answer{r: r, op: "reading diff answer", lim: lim}
	diffs, err := readBases(a, true)
	if err != nil {
		return nil, err
	}
	if !slices.EqualFunc(diffs, bases, func(d BaseDiff, b ObjectID) bool { return d.Base == b }) {
		return nil, a.broken(fmt.Errorf("%d bases that were not asked, of %d", len(diffs), len(bases)))
	}
	return diffs, nil
}

func readBases(a *answer, paths bool) ([]BaseDiff, error) {
	var out []BaseDiff
	for {
		kind, payload, err := a.next()
		switch {
		case err != nil:
			return nil, err
		case kind == frameBase && len(out) < MaxBases:
			out, err = a.base(out, payload)
		case kind == frameChanged && paths && len(out) > 0:
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
