package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// readable is all that a verification knows of the repository host.
type readable interface {
	source
	ListRefs(ctx context.Context, names ...string) (map[string]gitops.ObjectID, error)
}

// claim is a submission that the repository bears out: the pull request's head
// is the commit, and what it changes is what was said. tree is proved to be the
// commit's.
type claim struct {
	room
	from       readable
	base, head gitops.ObjectID
	tree       gitops.ObjectID
	changed    []gitops.ChangedPath
}

// compare holds the submission against the repository, before a single file is
// fetched.
func (v *verification) compare(ctx context.Context, r room) (claim, error) {
	v.review(protocol.VerificationPreparing, "Comparing the pull request with the submission")
	remote, err := v.remote()
	if err != nil {
		return claim{}, err
	}
	var got claim
	err = v.fetching(ctx, r, func(webCtx context.Context) (err error) {
		got, err = v.compareOnce(ctx, webCtx, claim{room: r, from: remote})
		return err
	})
	return got, err
}

func (v *verification) compareOnce(ctx, webCtx context.Context, c claim) (claim, error) {
	target, err := v.tips(webCtx, &c)
	if err != nil {
		return c, err
	}
	bases, err := v.mergeBases(ctx, webCtx, c, target)
	if err != nil {
		return c, fmt.Errorf("finding the merge base: %w", err)
	}
	if len(bases) == 0 {
		return c, mismatch(errors.New("the pull request has no history in common with its target"))
	}
	reply, err := v.changedSince(ctx, webCtx, c, bases)
	if err != nil {
		return c, fmt.Errorf("listing what changed: %w", err)
	}
	c.tree = reply.Tree
	for _, diff := range reply.Diffs {
		// With several merge bases the host's choice is not known: one of
		// them must give the list.
		if bearsOut(diff.Changed, v.task.Submission.ChangedFiles) {
			c.base, c.changed = diff.Base, diff.Changed
			v.files.say("head %s, merge base %s, %d paths differ", c.head, c.base, len(c.changed))
			return c, nil
		}
	}
	return c, mismatch(fmt.Errorf("the submission lists %d files, and no merge base gives those", len(v.task.Submission.ChangedFiles)))
}

func mismatch(err error) error {
	return fail(protocol.CodePullRequestMismatch, "comparing the pull request", err)
}

// tips reads both refs. The pull request's head must be the submitted commit.
func (v *verification) tips(ctx context.Context, c *claim) (target gitops.ObjectID, err error) {
	branch := "refs/heads/" + v.task.Repository.TargetBranch
	pull := "refs/pull/" + strconv.FormatInt(v.task.Submission.PullRequestNumber, 10) + "/head"
	refs, err := c.from.ListRefs(ctx, branch, pull)
	if err != nil {
		return "", fmt.Errorf("reading the pull request's head: %w", err)
	}
	target, found := refs[branch]
	if !found {
		return "", fail(protocol.CodeBranchMissing, "reading the target branch", errors.New("no such ref"))
	}
	c.head = refs[pull]
	if string(c.head) != v.task.Submission.CommitSHA {
		return "", mismatch(fmt.Errorf("its head is %q, the submitted commit %q", c.head, v.task.Submission.CommitSHA))
	}
	return target, nil
}

// deepening is how many commits are fetched, with all their files, from a
// server that can't leave files out. Beyond the last the repository counts as
// too large.
var deepening = []int{50, 500, 5000}

func (v *verification) mergeBases(ctx, webCtx context.Context, c claim, target gitops.ObjectID) ([]gitops.ObjectID, error) {
	want := wire.Want{IDs: []gitops.ObjectID{c.head, target}, Filter: wire.FilterTrees}
	bases, err := v.history(ctx, webCtx, c, want)
	if !errors.Is(err, wire.ErrNoFilter) {
		return bases, err
	}
	want.Filter = ""
	for _, want.Depth = range deepening {
		if bases, err = v.history(ctx, webCtx, c, want); gitops.KindOf(err) != gitops.KindIncomplete {
			break
		}
	}
	return bases, err
}

func (v *verification) history(ctx, webCtx context.Context, c claim, want wire.Want) (bases []gitops.ObjectID, err error) {
	err = v.ask(ctx, webCtx, c, want, gitops.HistoryArgs(want.IDs[0], want.IDs[1]), func(answer io.Reader) (err error) {
		bases, err = gitops.ReadHistoryReply(answer, gitLimits(c.rules.Policy.Limits))
		return err
	})
	return bases, err
}

// changedSince lists what differs from each merge base, from trees alone.
func (v *verification) changedSince(ctx, webCtx context.Context, c claim, bases []gitops.ObjectID) (reply gitops.DiffReply, err error) {
	want := wire.Want{IDs: append([]gitops.ObjectID{c.head}, bases...), Depth: 1, Filter: wire.FilterBlobs}
	read := func(answer io.Reader) (err error) {
		reply, err = gitops.ReadDiffReply(answer, c.head, bases, gitLimits(c.rules.Policy.Limits))
		return err
	}
	err = v.ask(ctx, webCtx, c, want, gitops.DiffArgs(c.head, bases), read)
	if errors.Is(err, wire.ErrNoFilter) {
		want.Filter = ""
		err = v.ask(ctx, webCtx, c, want, gitops.DiffArgs(c.head, bases), read)
	}
	return reply, err
}

// ask puts one pack before one mode of the git worker, in a sandbox of its own.
func (v *verification) ask(
	ctx, webCtx context.Context, c claim, want wire.Want, argv []string, read func(io.Reader) error,
) error {
	place, err := v.create(ctx, c.room, v.spec(c.room, sandbox.ProfileGit, ""))
	if err != nil {
		return err
	}
	defer v.end(place)
	return v.feedPack(ctx, webCtx, c.room, c.from, place, want, argv, read)
}

// bearsOut tells whether a host's list of a pull request's files can stand for
// these changes. A host lists a rename once, under its new name: what the list
// lacks must be deletions, at most one for each added file.
func bearsOut(changed []gitops.ChangedPath, listed []string) bool {
	open := make(map[string]bool, len(listed))
	for _, path := range listed {
		open[path] = true
	}
	if len(open) != len(listed) {
		return false
	}
	added, missing := 0, 0
	for _, c := range changed {
		if c.Status == gitops.PathAdded {
			added++
		}
		if open[c.Path] {
			delete(open, c.Path)
			continue
		}
		if missing++; c.Status != gitops.PathDeleted {
			return false
		}
	}
	return len(open) == 0 && missing <= added
}
