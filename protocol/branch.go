package protocol

import "strings"

// LeasedPrefix begins the name of every branch that a job may write, for
// example "veyra/job-7-fix-the-parser-1".
const LeasedPrefix = "veyra/job-"

// ValidBranch tells whether s can be a branch: git's rules for names of refs
// (git-check-ref-format), plus no leading dash, which a tool could take for an
// option, no name of a special ref, and at most MaxBranchBytes bytes.
func ValidBranch(s string) bool {
	if s == "" || len(s) > MaxBranchBytes || s[0] == '-' || s == "@" || s == "HEAD" {
		return false
	}
	if strings.ContainsFunc(s, forbiddenInBranch) || strings.Contains(s, "..") || strings.Contains(s, "@{") {
		return false
	}
	if strings.HasPrefix(s, "refs/") || strings.HasSuffix(s, ".") {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(strings.ToLower(part), ".lock") {
			return false
		}
	}
	return true
}

// forbiddenInBranch names what git refuses; U+FFFD stands for bytes that are
// not UTF-8.
func forbiddenInBranch(r rune) bool {
	return r <= ' ' || r == 0x7f || r == '\uFFFD' || strings.ContainsRune("~^:?*[\\", r)
}
