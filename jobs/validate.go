package jobs

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// validate is the clean room: only this run counts. The commit's layer is
// measured first, in a sandbox that never saw the pack, so that a taken-over
// git worker can't have one tree tested and another pushed.
func (j *job) validate(ctx context.Context, c committed) (tested, error) {
	j.enter(protocol.PhaseValidation, "Running the tests on the commit")
	layers := append([]sandbox.LayerID{c.layer}, append(c.deps, c.base)...)
	var place sandbox.Sandbox
	both, _ := errgroup.WithContext(ctx)
	both.Go(func() error {
		defer j.step("measure")()
		return j.measure(ctx, c, layers)
	})
	both.Go(func() (err error) {
		defer j.step("clean_room_start")()
		place, err = j.create(ctx, c.room, j.spec(c.room, sandbox.ProfileJob, c.image, layers...))
		return err
	})
	if err := both.Wait(); err != nil {
		j.end(place)
		return tested{}, err
	}
	j.facts.cleanRoom, j.facts.tree = true, c.reply.Tree
	j.lookOut(ctx)
	run := j.step("tests")
	after, err := j.runTests(ctx, c.ready, place)
	run()
	if err != nil {
		j.end(place)
		return tested{}, err
	}
	j.facts.after = &after
	j.noteAside(ctx, c.manifest, place)
	return tested{committed: c, after: after}, nil
}

// measure hashes the merged tree that the tests will see. Its id must be the
// commit's, and the commit's id must follow from it: one tree by measurement.
func (j *job) measure(ctx context.Context, c committed, layers []sandbox.LayerID) error {
	seen, err := j.hashLayers(ctx, c.room, gitops.NewHashRequest(c.manifest, c.request.Changes, false), layers)
	if err != nil {
		return err
	}
	if seen != c.reply.Tree || gitops.CommitID(c.request, seen) != c.reply.Commit {
		return otherTree(seen, c.reply.Tree)
	}
	return nil
}

func otherTree(seen, want gitops.ObjectID) error {
	return fail(protocol.CodeInternalError, "measuring the tree", fmt.Errorf("the layer's tree is %s, the commit's %s", seen, want))
}

// hashLayers computes the tree id of what the layers show together.
func (j *job) hashLayers(ctx context.Context, r room, asked gitops.HashRequest, layers []sandbox.LayerID) (gitops.ObjectID, error) {
	place, err := j.create(ctx, r, j.spec(r, sandbox.ProfileGit, "", layers...))
	if err != nil {
		return "", err
	}
	defer j.end(place)
	var request bytes.Buffer
	if err := gitops.WriteHashRequest(&request, asked); err != nil {
		return "", fmt.Errorf("asking for the tree's id: %w", err)
	}
	var seen gitops.Manifest
	err = j.gitAnswer(ctx, place, gitops.HashArgs(), &request, r.left(), func(answer io.Reader) (err error) {
		seen, err = gitops.ReadHashReply(answer, gitLimits(r.rules.Policy.Limits))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("measuring the tree: %w", err)
	}
	return seen.Tree, nil
}

// noteAside notes what the tests touched, and ends their sandbox, while the job
// goes on: neither decides anything.
func (j *job) noteAside(ctx context.Context, base gitops.Manifest, place sandbox.Sandbox) {
	noted := make(chan struct{})
	j.noting.Go(func() {
		defer close(noted)
		j.noteTouched(ctx, base, place)
	})
	j.background.Go(func() {
		<-noted
		endPlace(place, j.log)
	})
}

// noteTouched lists tracked files and test settings that the tests changed
// while they ran. It decides nothing: the commit is made.
func (j *job) noteTouched(ctx context.Context, base gitops.Manifest, place sandbox.Sandbox) {
	out, in := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.readTouched(out, base)
		_, _ = io.Copy(io.Discard, out)
	}()
	if err := place.Collect(ctx, in); err != nil {
		j.files.say("what the tests changed could not be read: %v", err)
	}
	in.Close()
	<-done
}

func (j *job) readTouched(r io.Reader, base gitops.Manifest) {
	in, err := treestream.NewReader(r, treestream.Limits{Entries: maxCollected, Bytes: 1 << 40})
	if err != nil {
		return
	}
	for {
		entry, err := in.Next()
		if err != nil {
			return
		}
		_, tracked := base.Lookup(entry.Path)
		if entry.Kind != treestream.Dir && (tracked || isTestControl(entry.Path)) {
			j.files.say("the tests changed %q", entry.Path)
		}
	}
}
