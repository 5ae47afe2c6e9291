package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// commit turns the collected change into a commit and a layer, in a sandbox
// without image and network: no git ever runs on files that a job wrote,
// outside of one.
func (j *job) commit(ctx context.Context, c collected) (committed, error) {
	j.enter(protocol.PhaseCommit, "Making the commit")
	got := j.step("commit_start")
	place, err := c.next.get(ctx)
	got()
	if err != nil {
		return committed{}, err
	}
	defer j.end(place)
	defer j.step("commit")()
	if c, err = j.admit(ctx, place, c); err != nil {
		return committed{}, err
	}
	made := committed{collected: c, request: j.commitRequest(c), pack: j.spoolPath("commit.pack")}
	patched := j.step("commit_patch")
	j.writePatch(ctx, place, c)
	patched()
	poured := j.step("commit_unpack")
	if err := j.pour(ctx, place, c.spool, c.rules.Policy.Limits, exactly(c.changes)); err != nil {
		return made, err
	}
	poured()
	if made.reply, err = j.makeCommit(ctx, place, made); err != nil {
		return made, err
	}
	defer j.step("commit_freeze")()
	layers, err := place.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	if err != nil {
		return made, fmt.Errorf("freezing the commit layer: %w", err)
	}
	made.layer = layers[0]
	j.files.say("commit %s, tree %s, %d paths", made.reply.Commit, made.reply.Tree, len(made.reply.Changed))
	return made, nil
}

// admit leaves out what the base tree ignores and judges the rest.
func (j *job) admit(ctx context.Context, place sandbox.Sandbox, c collected) (collected, error) {
	looked := j.step("commit_ignored")
	ignored, err := j.ignored(ctx, place, c)
	looked()
	if err != nil {
		return c, err
	}
	c.changes = withoutPaths(c.changes, ignored)
	j.facts.ignored = len(ignored)
	if len(c.changes.Unsupported) > 0 {
		return c, fail(protocol.CodeChangeUnsupported, "judging the change", fmt.Errorf("%d changed paths can't be delivered, the first is %q", len(c.changes.Unsupported), c.changes.Unsupported[0]))
	}
	if len(c.changes.Changes) == 0 {
		return c, &returnedError{
			cause: fail(protocol.CodeEmptyDiff, "judging the change", errors.New("all new files are ignored by the repository's .gitignore")),
			why:   "Only files that .gitignore leaves out were changed.", tree: c.spool,
		}
	}
	if n := len(c.changes.Changes); n > protocol.MaxChangedFiles {
		return c, fail(protocol.CodeChangeTooLarge, "judging the change", fmt.Errorf("%d files changed", n))
	}
	if n := namesOnWire(c.changes); n > maxNamesOnWire {
		return c, fail(protocol.CodeChangeTooLarge, "judging the change", fmt.Errorf("the names of the changed files take %d bytes", n))
	}
	return c, judge(c)
}

// maxNamesOnWire bounds the list of changed files as JSON, in bytes: the result
// must stay below the size of a request body.
const maxNamesOnWire = 1 << 20

func namesOnWire(set gitops.ChangeSet) int {
	total := 0
	for _, change := range set.Changes {
		text, err := json.Marshal(change.Path)
		if err != nil {
			return maxNamesOnWire + 1
		}
		total += len(text) + 1
	}
	return total
}

// judge asks the path rules about both names of a rename: every written and
// every deleted path is among the changes.
func judge(c collected) error {
	changes := make([]policies.Change, 0, len(c.changes.Changes))
	for _, change := range c.changes.Changes {
		if u := c.uppers[change.Path]; u.Size >= maxDeliverable {
			return fail(protocol.CodeChangeTooLarge, "judging the change", fmt.Errorf("%q has 100 MB or more", change.Path))
		}
		changes = append(changes, policies.Change{Path: change.Path, Kind: kindOf(c.manifest, change)})
	}
	found := c.rules.Judge(changes)
	if len(found) == 0 {
		return nil
	}
	cause := fail(violationCode(found), "judging the change", fmt.Errorf("%d paths must not change here, the first is %q (%s, rule %q)", len(found), found[0].Path, found[0].Kind, found[0].Rule))
	return &returnedError{cause: cause, why: whyViolations(found), tree: c.spool}
}

// maxDeliverable is less than what repository hosts refuse in one file, in bytes:
// whether they mean 10^8 or 2^20 a hundred times is theirs to say.
const maxDeliverable = 100_000_000

func kindOf(base gitops.Manifest, c gitops.Change) policies.ChangeKind {
	_, existed := base.Lookup(c.Path)
	switch {
	case c.Kind == gitops.ChangeDelete:
		return policies.ChangeDelete
	case existed:
		return policies.ChangeModify
	}
	return policies.ChangeAdd
}

func whyViolations(found []policies.Violation) string {
	var said []string
	for _, v := range found[:min(len(found), 10)] {
		said = append(said, fmt.Sprintf("%q (%s)", v.Path, v.Kind))
	}
	return "The change touches paths that must not change in this job: " + strings.Join(said, ", ") + ". Undo that and solve the task without it."
}

// ignored asks which new paths the base tree's .gitignore files leave out. It
// runs before anything of the change is in the sandbox.
func (j *job) ignored(ctx context.Context, place sandbox.Sandbox, c collected) (map[string]bool, error) {
	fresh := newPaths(c)
	if len(fresh) == 0 {
		return nil, nil
	}
	var request bytes.Buffer
	if err := gitops.WriteIgnoreRequest(&request, fresh); err != nil {
		return nil, fmt.Errorf("asking for ignored paths: %w", err)
	}
	var answer []string
	err := j.gitAnswer(ctx, place, gitops.IgnoreArgs(), &request, c.left(), func(r io.Reader) (err error) {
		answer, err = gitops.ReadIgnoreReply(r, fresh, gitLimits(c.rules.Policy.Limits))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("asking for ignored paths: %w", err)
	}
	found := make(map[string]bool, len(answer))
	for _, path := range answer {
		found[path] = true
	}
	return found, nil
}

// newPaths: tracked files always count, whatever .gitignore says.
func newPaths(c collected) []string {
	var fresh []string
	add := func(path string) {
		if _, tracked := c.manifest.Lookup(path); !tracked && gitops.CheckPlain(path) == nil {
			fresh = append(fresh, path)
		}
	}
	for _, change := range c.changes.Changes {
		if change.Kind == gitops.ChangeWrite {
			add(change.Path)
		}
	}
	for _, path := range c.changes.Unsupported {
		add(path)
	}
	return fresh
}

func withoutPaths(set gitops.ChangeSet, out map[string]bool) gitops.ChangeSet {
	var kept gitops.ChangeSet
	for _, c := range set.Changes {
		if !out[c.Path] || c.Kind == gitops.ChangeDelete {
			kept.Changes = append(kept.Changes, c)
		}
	}
	for _, path := range set.Unsupported {
		if !out[path] {
			kept.Unsupported = append(kept.Unsupported, path)
		}
	}
	return kept
}

// commitRequest: the date is the journal's time of acceptance, so that a retry
// makes the same id.
func (j *job) commitRequest(c collected) gitops.CommitRequest {
	return gitops.CommitRequest{
		Parent: j.facts.base, Date: j.run.Accepted,
		Message: gitops.Message(j.run.Job.JobID, j.run.Job.Work.Title), Changes: c.changes.Changes,
	}
}

// makeCommit has the worker build the commit and spools the pack of its new
// objects. Its answer must follow from the request.
func (j *job) makeCommit(ctx context.Context, place sandbox.Sandbox, made committed) (gitops.CommitReply, error) {
	defer j.step("commit_make")()
	var request bytes.Buffer
	if err := gitops.WriteCommitRequest(&request, made.request); err != nil {
		return gitops.CommitReply{}, fmt.Errorf("asking for the commit: %w", err)
	}
	pack, err := os.OpenFile(made.pack, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return gitops.CommitReply{}, fmt.Errorf("making the pack file: %w", err)
	}
	defer pack.Close()
	limits := gitLimits(made.rules.Policy.Limits)
	limits.Pack = min(limits.Pack, made.rules.Policy.Limits.ChangeBytes)
	var reply gitops.CommitReply
	err = j.gitAnswer(ctx, place, gitops.CommitArgs(), &request, made.left(), func(r io.Reader) (err error) {
		reply, err = gitops.ReadCommitReply(r, pack, limits)
		return err
	})
	if err != nil {
		return reply, fmt.Errorf("making the commit: %w", err)
	}
	if err := gitops.CheckReply(made.manifest, made.request, reply); err != nil {
		return reply, fmt.Errorf("checking the commit: %w", err)
	}
	return reply, pack.Sync()
}
