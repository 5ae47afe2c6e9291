package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// pour unpacks the entries of a spooled change that belong, as the job's own
// user, into the workspace of a live sandbox.
func (j *job) pour(ctx context.Context, place sandbox.Sandbox, spool string, limits policies.Limits, belongs func(treestream.Entry) bool) error {
	file, err := os.Open(spool)
	if err != nil {
		return fmt.Errorf("opening the change: %w", err)
	}
	defer file.Close()
	out, in := io.Pipe()
	go func() { in.CloseWithError(copyTree(file, in, limits, belongs)) }()
	words := newHeadTail(4 << 10)
	exit, err := place.Run(ctx, sandbox.Command{
		Argv: []string{sandbox.InitPath, "unpack", sandbox.Workspace}, Stdin: out, Stdout: words, Timeout: 5 * time.Minute,
	})
	out.Close()
	switch {
	case err != nil:
		return fmt.Errorf("unpacking the change: %w", err)
	case exit.Code != 0 && len(exit.Limits) > 0:
		return &limitError{limit: exit.Limits[0]}
	case exit.Code != 0:
		return fail(protocol.CodeInternalError, "unpacking the change", fmt.Errorf("exit status %d: %q", exit.Code, words.String()))
	}
	return nil
}

func copyTree(spool io.Reader, w io.Writer, limits policies.Limits, belongs func(treestream.Entry) bool) error {
	in, err := treestream.NewReader(spool, treestream.Limits{Entries: maxCollected, Bytes: limits.ChangeBytes})
	if err != nil {
		return err
	}
	out := treestream.NewWriter(w, treestream.Options{})
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if !belongs(entry) {
			continue
		}
		entry.MTime = 0 // the time of unpacking: build tools go by it
		if err := out.Add(entry, in); err != nil {
			return err
		}
	}
}

// deliverableKind keeps all but links and special files, for the next round of
// the model: what can't be delivered is not handed on.
func deliverableKind(e treestream.Entry) bool {
	return e.Kind != treestream.Symlink && e.Kind != treestream.Special
}

// pathFilter keeps written files, what was deleted, and the directories above
// either.
func pathFilter(set gitops.ChangeSet) func(treestream.Entry) bool {
	written, above := map[string]bool{}, map[string]bool{}
	for _, c := range set.Changes {
		if c.Kind == gitops.ChangeWrite {
			written[c.Path] = true
		}
		for i, r := range c.Path {
			if r == '/' {
				above[c.Path[:i]] = true
			}
		}
	}
	return func(e treestream.Entry) bool {
		switch e.Kind {
		case treestream.File:
			return written[e.Path]
		case treestream.Delete:
			return true
		case treestream.Dir, treestream.Opaque:
			return above[e.Path]
		}
		return false
	}
}
