package worker

import (
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// A pointer stands in the tree for a large file that is kept elsewhere. It is
// never resolved here; whoever writes real bytes in its place would break the
// repository for everybody who has the file.
const (
	pointerStart = "version https://git-lfs.github.com/spec/v1\n"
	maxPointer   = 1024
)

// pointerStays refuses a change that puts other bytes in the place of a
// pointer.
func (b *build) pointerStays(old gitops.ObjectID, path string) error {
	o, err := b.store.object(old, plumbing.BlobObject)
	if err != nil || o.Size() > maxPointer {
		return err
	}
	was, err := b.store.bytes(old, plumbing.BlobObject)
	if err != nil || !strings.HasPrefix(string(was), pointerStart) {
		return err
	}
	return b.open(path, func(f io.Reader, _ int64) error {
		start := make([]byte, len(pointerStart))
		if _, err := io.ReadFull(f, start); err != nil || string(start) != pointerStart {
			return badChange("file %q was a pointer to a large file and is none any more", path)
		}
		return nil
	})
}
