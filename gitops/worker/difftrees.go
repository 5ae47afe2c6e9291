package worker

import (
	"io"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// DiffTrees reads a pack with the trees of head and of bases from in, stores it
// below p.Objects and answers with the head's commit object and, base by base,
// with every path that differs. No blob is read: a pack without any is enough.
func DiffTrees(in io.Reader, out *gitops.ReplyWriter, p Places, head gitops.ObjectID, bases []gitops.ObjectID, lim gitops.Limits) error {
	s, err := received(in, p, lim)
	if err != nil {
		return err
	}
	defer s.Close()
	now, err := s.treeOf(head)
	if err != nil {
		return err
	}
	commit, err := s.bytes(head, plumbing.CommitObject)
	if err != nil {
		return err
	}
	if _, err := out.Write(commit); err != nil {
		return err
	}
	for _, base := range bases {
		old, err := s.treeOf(base)
		if err != nil {
			return err
		}
		d := differ{read: s.tree, lim: lim}
		changed, err := d.paths(old, now)
		if err != nil {
			return err
		}
		out.Base(base)
		for _, c := range changed {
			out.Changed(c)
		}
	}
	out.Done(noID, noID, len(bases))
	return nil
}

// received stores a pack and opens it.
func received(in io.Reader, p Places, lim gitops.Limits) (*store, error) {
	if err := receive(p.Objects, in, lim); err != nil {
		return nil, err
	}
	return openStore(p.Objects)
}
