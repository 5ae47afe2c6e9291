package treedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
)

// Left is an entry of a stream that is told instead of written.
type Left struct {
	// Kind is deleted, replaced (a directory whose old content is gone), link
	// or special.
	Kind string `json:"kind"`
	Path string `json:"path"`
}

// Empty tells whether the directory holds nothing.
func Empty(root *os.Root) (bool, error) {
	dir, err := root.Open(".")
	if err != nil {
		return false, fmt.Errorf("reading directory: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return err == nil && len(names) == 0, err
}

// Write makes the regular files of a stream below an empty root and returns
// the rest. It follows no link in root and replaces nothing.
func Write(root *os.Root, in *treestream.Reader) ([]Left, error) {
	var left []Left
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			return left, nil
		}
		if err != nil {
			return left, fmt.Errorf("reading the changes: %w", err)
		}
		if kind := toldAs(entry); kind != "" {
			left = append(left, Left{Kind: kind, Path: entry.Path})
			continue
		}
		if entry.Kind != treestream.File {
			continue
		}
		if err := writeFile(root, entry, in); err != nil {
			return left, err
		}
	}
}

func toldAs(e treestream.Entry) string {
	switch {
	case e.Kind == treestream.Delete:
		return "deleted"
	case e.Kind == treestream.Opaque:
		return "replaced"
	case e.Kind == treestream.Symlink:
		return "link"
	case e.Kind == treestream.Special, e.Kind == treestream.File && e.Links > 1:
		return "special"
	}
	return ""
}

func writeFile(root *os.Root, e treestream.Entry, content io.Reader) error {
	if dir := path.Dir(e.Path); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making directory %q: %w", dir, err)
		}
	}
	mode := fs.FileMode(0o644)
	if e.Mode&0o100 != 0 {
		mode = 0o755
	}
	file, err := root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return fmt.Errorf("writing %q: %w", e.Path, err)
	}
	_, err = io.Copy(file, content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", e.Path, err)
	}
	return nil
}
