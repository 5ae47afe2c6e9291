package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// source is where packs come from. It has no word for a push.
type source interface {
	Fetch(ctx context.Context, want wire.Want, w io.Writer) error
}

// treeOf asks for a commit alone, with its tree.
func treeOf(commit gitops.ObjectID) wire.Want {
	return wire.Want{IDs: []gitops.ObjectID{commit}, Depth: 1}
}

// indexPack writes a commit's tree into a sandbox and gives its manifest.
func (j *job) indexPack(ctx, webCtx context.Context, r room, from source, place sandbox.Sandbox, commit gitops.ObjectID) (gitops.Manifest, error) {
	var manifest gitops.Manifest
	err := j.feedPack(ctx, webCtx, r, from, place, treeOf(commit), gitops.IndexArgs(commit), func(answer io.Reader) (err error) {
		manifest, err = gitops.ReadIndexReply(answer, commit, gitLimits(r.rules.Policy.Limits))
		return err
	})
	return manifest, err
}

// feedPack joins a download and a mode of the git worker by a pipe. When both
// fail, the one that broke the pipe has the cause.
func (j *job) feedPack(
	ctx, webCtx context.Context, r room, from source, place sandbox.Sandbox, want wire.Want, argv []string, read func(io.Reader) error,
) error {
	packOut, packIn := io.Pipe()
	fetched := make(chan error, 1)
	webCtx, stop := context.WithCancelCause(webCtx)
	defer stop(nil)
	go func() {
		err := from.Fetch(webCtx, want, packIn)
		packIn.CloseWithError(err)
		fetched <- err
	}()
	answerErr := j.gitAnswer(ctx, place, argv, packOut, r.left(), read)
	packOut.Close()
	if answerErr != nil {
		stop(wire.ErrReceiver) // a host that sends slowly must not hold us
	}
	fetchErr := <-fetched
	if fetchErr != nil && (answerErr == nil || !errors.Is(fetchErr, wire.ErrReceiver)) {
		return fmt.Errorf("fetching a pack: %w", fetchErr)
	}
	if answerErr != nil {
		return fmt.Errorf("reading a pack: %w", answerErr)
	}
	return nil
}

// gitLimits: no answer may be larger than the sandbox's disk.
func gitLimits(l policies.Limits) gitops.Limits {
	limits := gitops.DefaultLimits()
	limits.Pack = min(limits.Pack, l.DiskBytes)
	return limits
}

// gitAnswer runs the git worker and reads its answer while it runs. The answer
// that the worker gives is worth more than its exit status.
func (j *job) gitAnswer(ctx context.Context, place sandbox.Sandbox, argv []string, in io.Reader, limit time.Duration, read func(io.Reader) error) error {
	out, into := io.Pipe()
	words := headtail.New(8 << 10)
	answered := make(chan error, 1)
	go func() {
		err := read(out)
		_, _ = io.Copy(io.Discard, out) // let the command end
		answered <- err
	}()
	exit, runErr := place.Run(ctx, sandbox.Command{
		Argv: argv, Env: j.gitEnv(), Stdin: in, Stdout: into, Stderr: words, Timeout: limit, OutputBytes: maxGitAnswer,
	})
	into.Close()
	readErr := <-answered
	switch {
	case runErr != nil:
		return runErr
	case exit.Ended != "":
		return &limitError{limit: exit.Ended, inGit: true}
	case readErr != nil && len(exit.Limits) > 0:
		return &limitError{limit: exit.Limits[0], inGit: true}
	case readErr != nil:
		j.files.say("git worker: exit status %d: %s", exit.Code, words)
		return readErr
	}
	return nil
}

// maxGitAnswer bounds what the git worker may print: a manifest of 200,000
// paths and the pack of a change set fit.
const maxGitAnswer = 2 << 30

// gitEnv keeps the git worker below the sandbox's memory: it collects earlier
// rather than being killed.
func (j *job) gitEnv() []string {
	memory := j.cfg.Policy.Limits.MemoryBytes / 5 * 4
	return append(sandbox.DefaultEnv(), "GOGC=50", "GOMEMLIMIT="+strconv.FormatInt(memory, 10))
}
