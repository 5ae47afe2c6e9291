package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// pour unpacks a selection of a spooled change, as the job's own user, into the
// workspace of a live sandbox.
func (j *job) pour(ctx context.Context, place sandbox.Sandbox, spool string, limits policies.Limits, wanted selection) error {
	file, err := os.Open(spool)
	if err != nil {
		return fmt.Errorf("opening the change: %w", err)
	}
	defer file.Close()
	out, in := io.Pipe()
	go func() { in.CloseWithError(copyTree(file, in, limits, wanted)) }()
	words := headtail.New(4 << 10)
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

// selection is what of a spool is poured. The zero selection takes nothing.
type selection struct {
	keep func(treestream.Entry) bool
	// deletes are paths to be removed besides what the spool says, in any order.
	deletes []string
	// plain turns opaque directories into plain ones: what they hide is among
	// deletes then, so that unchanged files below them, which the spool holds
	// too, need not be written again.
	plain bool
}

func copyTree(spool io.Reader, w io.Writer, limits policies.Limits, wanted selection) error {
	in, err := treestream.NewReader(spool, treestream.Limits{Entries: maxCollected, Bytes: limits.ChangeBytes})
	if err != nil {
		return err
	}
	out := newPourWriter(w, wanted.deletes)
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.close()
		}
		if err != nil {
			return err
		}
		if !wanted.keep(entry) {
			continue
		}
		if wanted.plain && entry.Kind == treestream.Opaque {
			entry.Kind = treestream.Dir
		}
		entry.MTime = 0 // the time of unpacking: build tools go by it
		if err := out.add(entry, in); err != nil {
			return err
		}
	}
}

// pourWriter merges deletions into a stream, in the stream's order.
type pourWriter struct {
	out     *treestream.Writer
	deletes []string // sorted, those not yet written
	leaf    string   // the last path that has nothing below it
}

func newPourWriter(w io.Writer, deletes []string) *pourWriter {
	sorted := slices.Clone(deletes)
	slices.SortFunc(sorted, func(a, b string) int {
		if treestream.Less(a, b) {
			return -1
		}
		return 1
	})
	return &pourWriter{out: treestream.NewWriter(w, treestream.Options{}), deletes: sorted}
}

func (p *pourWriter) add(e treestream.Entry, content io.Reader) error {
	if err := p.deleteBefore(e.Path); err != nil {
		return err
	}
	if e.Kind != treestream.Dir && e.Kind != treestream.Opaque {
		p.leaf = e.Path
	}
	return p.out.Add(e, content)
}

// deleteBefore writes the deletions that come before path. One of path itself,
// or below a path that is a file now or was deleted whole, is done by that.
func (p *pourWriter) deleteBefore(path string) error {
	for len(p.deletes) > 0 && (path == "" || !treestream.Less(path, p.deletes[0])) {
		next := p.deletes[0]
		p.deletes = p.deletes[1:]
		if next == path || p.leaf != "" && strings.HasPrefix(next, p.leaf+"/") {
			continue
		}
		p.leaf = next
		if err := p.out.Add(treestream.Entry{Kind: treestream.Delete, Path: next}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *pourWriter) close() error {
	if err := p.deleteBefore(""); err != nil {
		return err
	}
	return p.out.Close()
}

// plainFile is a file of ours on its way into a sandbox.
type plainFile struct {
	path string
	exec bool
	text []byte
}

// writeTree writes files and deletions, in any order, as one stream. A deleted
// path with a file below it becomes an empty directory first: it was a link, or
// a file, in the place of one.
func writeTree(w io.Writer, files []plainFile, deletes []string) error {
	entries, texts := make([]treestream.Entry, 0, len(files)), map[string][]byte{}
	for _, f := range files {
		entry := treestream.Entry{Kind: treestream.File, Path: f.path, Mode: 0o644, Size: int64(len(f.text)), Links: 1}
		if f.exec {
			entry.Mode = 0o755
		}
		entries, texts[f.path] = append(entries, entry), f.text
	}
	replaced, gone := partition(deletes, func(d string) bool { return hasBelow(files, d) })
	for _, path := range replaced {
		entries = append(entries, treestream.Entry{Kind: treestream.Opaque, Path: path, Mode: 0o755})
	}
	slices.SortFunc(entries, func(a, b treestream.Entry) int {
		if treestream.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	out := newPourWriter(w, gone)
	for _, entry := range entries {
		if err := out.add(entry, bytes.NewReader(texts[entry.Path])); err != nil {
			return err
		}
	}
	return out.close()
}

func hasBelow(files []plainFile, dir string) bool {
	return slices.ContainsFunc(files, func(f plainFile) bool { return strings.HasPrefix(f.path, dir+"/") })
}

func partition(paths []string, first func(string) bool) (yes, no []string) {
	for _, p := range paths {
		if first(p) {
			yes = append(yes, p)
		} else {
			no = append(no, p)
		}
	}
	return yes, no
}

// everything takes all but links and special files, for the next round of the
// model: what can't be delivered is not handed on.
func everything() selection {
	return selection{keep: func(e treestream.Entry) bool {
		return e.Kind != treestream.Symlink && e.Kind != treestream.Special
	}}
}

// exactly takes a change set: its written files, what was deleted, and the
// directories above either.
func exactly(set gitops.ChangeSet) selection {
	wanted := selection{keep: pathFilter(set), plain: true}
	for _, c := range set.Changes {
		if c.Kind == gitops.ChangeDelete {
			wanted.deletes = append(wanted.deletes, c.Path)
		}
	}
	return wanted
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
