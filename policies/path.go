package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxPathBytes bounds a path in a change set; Linux takes no longer one.
const MaxPathBytes = 4096

var (
	// ErrPath is wrapped by every error about a path that can't be used.
	ErrPath = errors.New("path cannot be used")
	// ErrUndeliverable says that the control plane or the code host would lose
	// or alter the path, so that a result with it could never be accepted.
	ErrUndeliverable = errors.New("path cannot be delivered")
)

// NormalPath returns s, as a model or a tree may give it, as a clean relative
// path with "/" between its parts. A path that is absolute, empty, leaves the
// tree, or holds NUL, bad UTF-8 or outer white space wraps ErrPath.
func NormalPath(s string) (string, error) {
	switch {
	case len(s) > MaxPathBytes:
		return "", fmt.Errorf("path of %d bytes: %w", len(s), ErrPath)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return "", fmt.Errorf("path %q with bad bytes: %w", s, ErrPath)
	}
	slashed := strings.ReplaceAll(s, `\`, "/")
	parts := nameParts(slashed)
	normal := strings.Join(parts, "/")
	switch {
	case strings.HasPrefix(slashed, "/") || hasDrive(normal):
		return "", fmt.Errorf("path %q is absolute: %w", s, ErrPath)
	case normal == "" || slices.Contains(parts, ".."):
		return "", fmt.Errorf("path %q names no place in the tree: %w", s, ErrPath)
	case normal != pythonStrip(normal):
		return "", fmt.Errorf("path %q with outer white space: %w", s, ErrPath)
	}
	return normal, nil
}

// nameParts returns the names in a path, without those that say nothing.
func nameParts(slashed string) []string {
	return slices.DeleteFunc(strings.Split(slashed, "/"), func(part string) bool { return part == "" || part == "." })
}

// hasDrive says whether p begins like a path of Windows, such as "C:/x".
func hasDrive(p string) bool {
	return len(p) >= 2 && p[1] == ':' && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z'
}

// AlwaysForbidden says whether no job may change the path, whatever its policy
// says (protocol section 6, "Path policy"): environment files, everything below
// a .env at the root, .git at any depth, and the code host's workflows. The
// path is judged in every spelling that a file system or code host may take
// for the same name.
func AlwaysForbidden(path string) bool { return newSubject(path).alwaysForbidden() }

func (s subject) alwaysForbidden() bool {
	return forbiddenParts(s.folded) || s.wide != s.folded && forbiddenParts(s.wide)
}

func forbiddenParts(folded string) bool {
	parts := nameParts(folded)
	if len(parts) == 0 {
		return false
	}
	last := parts[len(parts)-1]
	switch {
	case last == ".env", strings.HasPrefix(last, ".env."), parts[0] == ".env":
		return true
	case len(parts) >= 2 && parts[0] == ".github" && parts[1] == "workflows":
		return true
	}
	return slices.Contains(parts, ".git")
}

// Deliverable returns nil if the control plane and the code host keep the path
// of a changed file as it is, else an error that wraps ErrUndeliverable. The
// control plane turns "\" into "/", strips outer white space as Python does and
// drops what holds ".."; the code host gives names back as UTF-8 only. Two
// written paths that differ only in case are Judge's to find.
func Deliverable(path string) error {
	switch {
	case path == "" || len(path) > MaxPathBytes:
		return fmt.Errorf("path of %d bytes: %w", len(path), ErrUndeliverable)
	case !utf8.ValidString(path):
		return fmt.Errorf("path %q is not UTF-8: %w", path, ErrUndeliverable)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("path %q holds NUL: %w", path, ErrUndeliverable)
	case strings.Contains(path, `\`):
		return fmt.Errorf("path %q holds a backslash: %w", path, ErrUndeliverable)
	case path != pythonStrip(path):
		return fmt.Errorf("path %q has outer white space: %w", path, ErrUndeliverable)
	case strings.Contains(path, ".."):
		return fmt.Errorf("path %q holds two dots in a row: %w", path, ErrUndeliverable)
	case path != strings.Trim(path, "/"):
		return fmt.Errorf("path %q has an outer slash: %w", path, ErrUndeliverable)
	}
	return nil
}
