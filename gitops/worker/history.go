package worker

import (
	"bytes"
	"container/heap"
	"io"
	"slices"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

const historyOp = "finding merge bases"

// History reads a pack of commits from in, stores it below p.Objects and
// answers with the merge bases of head and base, as `git merge-base --all`
// finds them. Trees and blobs need not be in the pack. A parent that is missing
// where the answer depends on it is KindIncomplete.
func History(in io.Reader, out *gitops.ReplyWriter, p Places, head, base gitops.ObjectID, lim gitops.Limits) error {
	s, err := received(in, p, lim)
	if err != nil {
		return err
	}
	defer s.Close()
	w := &walk{store: s, known: map[gitops.ObjectID]*ancestor{}}
	bases, err := w.bases(head, base)
	if err != nil {
		return err
	}
	for _, id := range bases {
		out.Base(id)
	}
	out.Done(noID, noID, len(bases))
	return nil
}

// The flags of a commit during a walk: from which side it is reached, whether
// it lies below a result, and whether it was taken for one.
const (
	sideOne = 1 << iota
	sideOthers
	stale
	result
)

type ancestor struct {
	id      gitops.ObjectID
	date    int64 // of the committer
	parents []gitops.ObjectID
	flags   uint8
}

// walk is git's own way to merge bases: newest commits first, both sides at
// once, until only what lies below a result is left. So a recent branch costs a
// few dozen commits of a history of any length.
type walk struct {
	store *store
	known map[gitops.ObjectID]*ancestor
	queue dated
	order int
}

func (w *walk) bases(one, other gitops.ObjectID) ([]gitops.ObjectID, error) {
	if one == other {
		return []gitops.ObjectID{one}, nil
	}
	found, err := w.paint(one, []gitops.ObjectID{other})
	if err != nil || len(found) < 2 {
		return found, err
	}
	if len(found) > gitops.MaxBases {
		return nil, gitops.Errorf(gitops.KindTooLarge, historyOp, "more than %d merge bases", gitops.MaxBases)
	}
	return w.independent(found)
}

// paint walks from both sides and gives what both reach and no other result
// does. Where clocks were wrong a result may still lie below another one.
func (w *walk) paint(one gitops.ObjectID, others []gitops.ObjectID) ([]gitops.ObjectID, error) {
	for _, a := range w.known {
		a.flags = 0
	}
	w.queue = nil
	if err := w.reach(one, sideOne); err != nil {
		return nil, err
	}
	for _, id := range others {
		if err := w.reach(id, sideOthers); err != nil {
			return nil, err
		}
	}
	var found []*ancestor
	for w.queue.alive() {
		next := heap.Pop(&w.queue).(waiting).ancestor
		pass := next.flags & (sideOne | sideOthers | stale)
		if pass == sideOne|sideOthers {
			if next.flags&result == 0 {
				next.flags |= result
				found = append(found, next)
			}
			pass |= stale
		}
		for _, id := range next.parents {
			if err := w.reach(id, pass); err != nil {
				return nil, err
			}
		}
	}
	return fresh(found), nil
}

// fresh gives the ids of the results that no later step found to be below
// another one.
func fresh(found []*ancestor) (ids []gitops.ObjectID) {
	for _, a := range found {
		if a.flags&stale == 0 {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// reach puts a commit into the queue unless it was reached this way before.
func (w *walk) reach(id gitops.ObjectID, flags uint8) error {
	a, err := w.commit(id)
	if err != nil || a.flags&flags == flags {
		return err
	}
	a.flags |= flags
	w.order++
	heap.Push(&w.queue, waiting{a, w.order})
	return nil
}

// independent drops what is an ancestor of another result.
func (w *walk) independent(found []gitops.ObjectID) ([]gitops.ObjectID, error) {
	below := map[gitops.ObjectID]bool{}
	for _, one := range found {
		if below[one] {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(found), func(id gitops.ObjectID) bool { return id == one || below[id] })
		if _, err := w.paint(one, others); err != nil {
			return nil, err
		}
		below[one] = w.known[one].flags&sideOthers != 0
		for _, id := range others {
			below[id] = w.known[id].flags&sideOne != 0
		}
	}
	return slices.DeleteFunc(found, func(id gitops.ObjectID) bool { return below[id] }), nil
}

func (w *walk) commit(id gitops.ObjectID) (*ancestor, error) {
	if a, ok := w.known[id]; ok {
		return a, nil
	}
	if !w.store.has(id) {
		return nil, gitops.Errorf(gitops.KindIncomplete, historyOp, "commit %s is not in the pack", id)
	}
	b, err := w.store.bytes(id, plumbing.CommitObject)
	if err != nil {
		return nil, err
	}
	a, err := parseAncestor(id, b)
	if err != nil {
		return nil, err
	}
	w.known[id] = a
	return a, nil
}

// parseAncestor takes parents and the committer's date out of a commit. A date
// that is none counts as 0, as git has it.
func parseAncestor(id gitops.ObjectID, b []byte) (*ancestor, error) {
	a := &ancestor{id: id}
	head, _, _ := bytes.Cut(b, []byte("\n\n"))
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		if parent, ok := bytes.CutPrefix(line, []byte("parent ")); ok {
			parentID, err := gitops.ParseObjectID(string(parent))
			if err != nil {
				return nil, gitops.Errorf(gitops.KindUnsupported, historyOp, "commit %s: %w", id, err)
			}
			a.parents = append(a.parents, parentID)
		}
		if who, ok := bytes.CutPrefix(line, []byte("committer ")); ok {
			a.date = dateOf(who)
			break // a signature's lines follow and may look like anything
		}
	}
	return a, nil
}

func dateOf(who []byte) int64 {
	fields := bytes.Fields(who[bytes.LastIndexByte(who, '>')+1:])
	if len(fields) == 0 {
		return 0
	}
	date, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil || date < 0 {
		return 0
	}
	return date
}

// dated is the queue: the newest commit first, of equally old ones the first
// that came.
type dated []waiting

type waiting struct {
	*ancestor
	order int
}

// alive reports whether the queue holds a commit that may still matter.
func (d dated) alive() bool {
	return slices.ContainsFunc(d, func(e waiting) bool { return e.flags&stale == 0 })
}

func (d dated) Len() int      { return len(d) }
func (d dated) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d dated) Less(i, j int) bool {
	if d[i].date != d[j].date {
		return d[i].date > d[j].date
	}
	return d[i].order < d[j].order
}

// Push and Pop are for container/heap.
func (d *dated) Push(x any) { *d = append(*d, x.(waiting)) }

func (d *dated) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
