// Package treestream is a tree of files, or what changed in one, as a stream:
// what the runner collects from a sandbox, what unpack places in one. A stream
// is bounded, in one order, and holds no path that leaves its root; both ends
// check that, since a stream about a job's files is a job's words. It touches
// no file system. Start reading at Reader.
package treestream

import (
	"errors"
	"fmt"
	"strings"
)

// ErrFormat is in the chain of errors about bytes that are no such stream, and
// about entries that may not stand in one.
var ErrFormat = errors.New("malformed tree stream")

// ErrLimit is in the chain of errors about a tree that is larger than allowed.
var ErrLimit = errors.New("tree is larger than allowed")

// Kind says what an entry is.
type Kind uint8

// The kinds of entries.
const (
	// File is a regular file with its content.
	File Kind = 1
	// Dir is a directory; missing ones above any entry are implied.
	Dir Kind = 2
	// Symlink has its target as content. Whoever unpacks makes it only when
	// the stream's header allows links.
	Symlink Kind = 3
	// Delete: what had this name is gone, with all below it.
	Delete Kind = 4
	// Opaque is a directory of which nothing remained; what follows is new.
	Opaque Kind = 5
	// Special is anything else (FIFO, socket, device): reported, never made.
	Special Kind = 6
	// end closes the stream with its sums.
	end Kind = 7
)

// Sizes in bytes that hold for every stream.
const (
	MaxPath   = 4096
	MaxName   = 255
	MaxTarget = 4096
	MaxDepth  = 512
)

// Entry is one entry. Paths are bytes, relative to the root of the tree.
type Entry struct {
	Kind Kind
	Path string
	// Mode holds permission bits as they were found, at most 07777.
	Mode uint32
	// MTime in nanoseconds since 1970; 0: not known.
	MTime int64
	// Size is the length of a File's content.
	Size int64
	// Links is the count of hard links, 0 when not known.
	Links uint32
	// Target of a Symlink, as it stands in the link.
	Target string
}

// Limits bound one stream; zero means that MaxInt holds.
type Limits struct {
	Entries int64 // all kinds
	Bytes   int64 // sum of sizes of files
}

// ValidPath reports whether p may stand in a stream: relative, clean, without
// "..", NUL or empty parts, inside the sizes.
func ValidPath(p string) bool {
	if p == "" || len(p) > MaxPath || strings.ContainsRune(p, 0) {
		return false
	}
	parts := 0
	for name := range strings.SplitSeq(p, "/") {
		parts++
		if name == "" || name == "." || name == ".." || len(name) > MaxName {
			return false
		}
	}
	return parts <= MaxDepth
}

// Less is the order of a stream: by bytes, name for name, so that a directory
// is followed at once by all that is below it.
func Less(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			// The separator sorts below every byte of a name.
			return b[i] != '/' && (a[i] == '/' || a[i] < b[i])
		}
	}
	return len(a) < len(b)
}

// order checks entries one after the other. Writer and Reader share it, so that
// nothing is written that would not be read.
type order struct {
	limits  Limits
	last    string // path of the last entry
	leaf    string // last path that is no directory
	entries int64
	bytes   int64
}

func (o *order) check(e Entry) error {
	if err := checkFields(e); err != nil {
		return err
	}
	if o.entries > 0 && !Less(o.last, e.Path) {
		return fmt.Errorf("entry %q after %q: %w", e.Path, o.last, ErrFormat)
	}
	if o.leaf != "" && strings.HasPrefix(e.Path, o.leaf+"/") {
		return fmt.Errorf("entry %q below %q, which is no directory: %w", e.Path, o.leaf, ErrFormat)
	}
	o.entries++
	o.last = e.Path
	if e.Kind != Dir && e.Kind != Opaque {
		o.leaf = e.Path
	}
	return o.count(e)
}

func (o *order) count(e Entry) error {
	if o.limits.Entries > 0 && o.entries > o.limits.Entries {
		return fmt.Errorf("entry %q is above the limit of %d entries: %w", e.Path, o.limits.Entries, ErrLimit)
	}
	if sum := o.bytes + e.Size; sum < o.bytes || o.limits.Bytes > 0 && sum > o.limits.Bytes {
		return fmt.Errorf("file %q of %d bytes is above the limit of %d bytes: %w", e.Path, e.Size, o.limits.Bytes, ErrLimit)
	}
	o.bytes += e.Size
	return nil
}

func checkFields(e Entry) error {
	switch {
	case e.Kind < File || e.Kind > Special:
		return fmt.Errorf("entry of kind %d: %w", e.Kind, ErrFormat)
	case !ValidPath(e.Path):
		return fmt.Errorf("path %.300q: %w", e.Path, ErrFormat)
	case e.Mode > 0o7777 || e.Size < 0 || e.Size > 0 && e.Kind != File:
		return fmt.Errorf("mode or size of %q: %w", e.Path, ErrFormat)
	case (e.Kind == Symlink) != (e.Target != ""), len(e.Target) > MaxTarget, strings.ContainsRune(e.Target, 0):
		return fmt.Errorf("target of %q: %w", e.Path, ErrFormat)
	}
	return nil
}
