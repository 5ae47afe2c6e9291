package gitops

import (
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

const (
	maxPath  = 4096
	maxName  = 255
	maxDepth = 64
)

// CheckPath refuses paths that no tree of ours may hold: empty parts, "." and
// "..", NUL, ".git" in any disguise (attack case E10), and parts or paths
// longer than Linux takes. Any other byte is fine in a base tree.
func CheckPath(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("checking path of %d bytes: longer than %d", len(path), maxPath)
	}
	if n := strings.Count(path, "/"); n > maxDepth {
		return fmt.Errorf("checking path %.80q: deeper than %d", path, maxDepth)
	}
	for part := range strings.SplitSeq(path, "/") {
		if err := CheckName(part); err != nil {
			return err
		}
	}
	return nil
}

// CheckPlain is what CheckPath asks of any path that may be named at all: no
// empty part, ".", ".." or NUL, and a path that Linux takes. What a job left in
// ignored directories may hold a ".git" and be deeper than any tree of ours.
func CheckPlain(path string) error {
	if len(path) > maxPath || strings.ContainsRune(path, 0) {
		return fmt.Errorf("checking path %.80q: %d bytes or NUL", path, len(path))
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return fmt.Errorf("checking path %.80q: part %.80q", path, part)
		}
	}
	return nil
}

// CheckName is CheckPath for one part of a path.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("checking name %q: not a file name", name)
	case len(name) > maxName:
		return fmt.Errorf("checking name of %d bytes: longer than %d", len(name), maxName)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("checking name %q: holds a slash or NUL", name)
	case IsDotGit(name):
		return fmt.Errorf("checking name %q: stands for .git", name)
	}
	return nil
}

// IsDotGit reports whether some file system takes name for ".git": by case,
// by NTFS rules (short name, stream suffix, trailing dots and spaces), by HFS+
// rules (ignorable code points) or by compatibility forms.
func IsDotGit(name string) bool {
	folded := foldName(name)
	if at := strings.IndexAny(folded, ":\\"); at >= 0 { // NTFS stream or separator
		folded = folded[:at]
	}
	folded = strings.TrimRight(folded, ". ")
	return folded == ".git" || folded == "git~1"
}

// IsModulesFile reports whether name stands for ".gitmodules", which decides
// where submodules come from and so must be a plain file.
func IsModulesFile(name string) bool {
	folded := strings.TrimRight(foldName(name), ". ")
	return folded == ".gitmodules" || strings.HasPrefix(folded, "gitmod~")
}

func foldName(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		if ignorable(r) {
			return -1
		}
		return r
	}, norm.NFKC.String(name)))
}

// ignorable lists the code points that HFS+ leaves out when it compares names
// (Apple Technical Note 1150; git's utf8.c has the same list), and Unicode's
// other default ignorables of the same kind.
func ignorable(r rune) bool {
	switch {
	case r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f:
		return true
	case r == 0xfeff, r == 0x00ad, r == 0x034f, r >= 0xfe00 && r <= 0xfe0f:
		return true
	}
	return false
}
