package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// maxPatchFile bounds the two sides of one file in the patch, in bytes.
const maxPatchFile = 512 << 10

// writePatch keeps the change set as a patch in the run's own record, for the
// owner to read. What is no text or too large is named only; trouble here is a
// line in the log. The sandbox is read at once, and the file written while the
// job goes on.
func (j *job) writePatch(ctx context.Context, place sandbox.Sandbox, c collected) {
	before, total := make(map[string]sideOf, len(c.changes.Changes)), 0
	for _, change := range c.changes.Changes {
		side := sideOf{exists: true, odd: true}
		if total <= maxPatch { // the file holds no more
			side = sideIn(ctx, place, c.manifest, change.Path)
		}
		before[change.Path], total = side, total+len(side.text)
	}
	j.noting.Wait() // for the patch of an earlier round
	j.noting.Go(func() { j.keepPatch(c, before) })
}

func (j *job) keepPatch(c collected, before map[string]sideOf) {
	name := j.spoolPath("change.patch")
	_ = os.Remove(name) // of an earlier round
	record := openRecord(j.cfg.Secrets, name, maxPatch, j.log)
	defer record.close()
	written, err := spoolTexts(c)
	if err != nil {
		j.files.say("the patch could not be written: %v", err)
		return
	}
	for _, change := range c.changes.Changes {
		_, _ = record.Write(patchOf(change.Path, change.Exec, before[change.Path], written[change.Path]))
	}
}

// sideOf is one version of a file: its text, or why there is none.
type sideOf struct {
	text   []byte
	exists bool
	odd    bool // no text, or too large
}

// sideIn reads the version of a file that stands in a sandbox's workspace.
func sideIn(ctx context.Context, place sandbox.Sandbox, manifest gitops.Manifest, path string) sideOf {
	entry, found := manifest.Lookup(path)
	if !found {
		return sideOf{}
	}
	if !entry.Mode.IsFile() || entry.Size > maxPatchFile {
		return sideOf{exists: true, odd: true}
	}
	text, ok := readInside(ctx, place, path, maxPatchFile)
	return sideOf{text: text, exists: true, odd: !ok || !isText(text)}
}

func patchOf(path string, exec bool, before, after sideOf) []byte {
	if before.odd || after.odd {
		return fmt.Appendf(nil, "# %q: no text, or larger than %d bytes\n", path, maxPatchFile)
	}
	head := fmt.Sprintf("# %q\n", path)
	if bytes.Equal(before.text, after.text) {
		return fmt.Appendf(nil, "%s# mode changed, executable: %v\n", head, exec)
	}
	from, to := "a/"+quoted(path), "b/"+quoted(path)
	if !before.exists {
		from = "/dev/null"
	}
	if !after.exists {
		to = "/dev/null"
	}
	return append([]byte(head), diff.Diff(from, before.text, to, after.text)...)
}

// quoted escapes control characters; it is for reading, not for git apply.
func quoted(path string) string {
	text := fmt.Sprintf("%q", path)
	return text[1 : len(text)-1]
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// spoolTexts reads the texts of the written files out of the spool.
func spoolTexts(c collected) (map[string]sideOf, error) {
	file, err := os.Open(c.spool)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in, err := treestream.NewReader(file, treestream.Limits{Entries: maxCollected, Bytes: c.rules.Policy.Limits.ChangeBytes})
	if err != nil {
		return nil, err
	}
	belongs, texts, total := pathFilter(c.changes), map[string]sideOf{}, 0
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			return texts, nil
		}
		if err != nil {
			return nil, err
		}
		if entry.Kind != treestream.File || !belongs(entry) {
			continue
		}
		side := sideOf{exists: true, odd: entry.Size > maxPatchFile || total > maxPatch}
		if !side.odd {
			if side.text, err = io.ReadAll(in); err != nil {
				return nil, err
			}
			side.odd, total = !isText(side.text), total+len(side.text)
		}
		texts[entry.Path] = side
	}
}
