package wire

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

var repoPart = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}$`)

// CheckRepoPart accepts an owner's or a repository's name: letters, digits,
// "-", "_", ".", at most 100, no leading "-", not "." and not "..".
func CheckRepoPart(s string) error {
	if !repoPart.MatchString(s) || s == "." || s == ".." {
		return fmt.Errorf("checking repository name %q: %w", s, ErrInvalid)
	}
	return nil
}

// CheckBranch accepts a short branch name by git's rules (man page
// git-check-ref-format), without a leading "-" and at most 255 bytes.
func CheckBranch(s string) error {
	bad := s == "" || len(s) > 255 || !utf8.ValidString(s) || strings.HasPrefix(s, "-") ||
		strings.ContainsAny(s, " ~^:?*[\\\x7f") || strings.Contains(s, "..") ||
		strings.Contains(s, "@{") || s == "@" || strings.HasSuffix(s, ".")
	for i := 0; i < len(s) && !bad; i++ {
		bad = s[i] < 0x20
	}
	for part := range strings.SplitSeq(s, "/") {
		bad = bad || part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock")
	}
	if bad {
		return fmt.Errorf("checking branch %.80q: %w", s, ErrInvalid)
	}
	return nil
}

// parseOrigin accepts "https://host[:port]", and http for a loopback host or
// where the owner's policy lets plain text through.
func parseOrigin(s string, plain bool) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.Trim(u.Path, "/") != "" || u.Opaque != "" {
		return nil, fmt.Errorf("reading origin %q: %w", s, ErrInvalid)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !plain && !loopback(u.Hostname())) {
		return nil, fmt.Errorf("reading origin %q: scheme: %w", s, ErrInvalid)
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host)}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// repoPath takes "/<owner>/<name>[.git]" apart.
func repoPath(path string) (owner, name string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if len(parts) != 2 {
		return "", "", false
	}
	owner, name = parts[0], strings.TrimSuffix(parts[1], ".git")
	return owner, name, CheckRepoPart(owner) == nil && CheckRepoPart(name) == nil
}
