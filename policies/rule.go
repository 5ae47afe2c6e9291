package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Bounds of what a task may bring along as rules. Matching takes the product of
// a path's and a pattern's length, so the patterns' lengths are bounded in all.
const (
	MaxRules         = 4 * protocol.MaxPaths
	MaxRuleBytes     = protocol.MaxPathBytes
	MaxWildcardBytes = 8 << 10
)

// ErrRule says that a rule which must forbid something can't be understood.
// The job stops: to ignore the rule would be to allow what it forbids.
var ErrRule = errors.New("path rule cannot be used")

// AllowRule covers the paths that the control plane's own comparison covers,
// and never one more (protocol section 6): the same path or one below it,
// "dir/**" likewise, and with "*", "?" or "[" a match of the whole path.
type AllowRule struct {
	text    string // as given
	folded  string
	pattern pattern // nil without wildcards
}

// NewAllowRule compiles a rule. There are no errors: what the control plane
// can't use covers nothing.
func NewAllowRule(text string) AllowRule {
	r := AllowRule{text: text}
	if len(text) > MaxRuleBytes || !utf8.ValidString(text) {
		return r
	}
	r.folded = Casefold(cleanRule(text))
	if base, found := strings.CutSuffix(r.folded, "/**"); found && !hasWildcard(base) {
		r.folded = base
	}
	if hasWildcard(r.folded) {
		r.pattern = compilePattern(r.folded)
	}
	return r
}

// cleanRule takes off what the control plane takes off.
func cleanRule(text string) string {
	return strings.Trim(pythonStrip(strings.ReplaceAll(text, `\`, "/")), "/")
}

func hasWildcard(s string) bool { return strings.ContainsAny(s, "*?[") }

// Covers says whether the rule allows the path.
func (r AllowRule) Covers(path string) bool { return r.coversFolded(Casefold(path)) }

func (r AllowRule) coversFolded(folded string) bool {
	switch {
	case r.folded == "":
		return false
	case r.pattern != nil:
		return r.pattern.match(folded)
	}
	return atOrBelow(folded, r.folded)
}

// String returns the rule as it was given.
func (r AllowRule) String() string { return r.text }

// atOrBelow says whether path is root, or lies in it.
func atOrBelow(path, root string) bool {
	rest, found := strings.CutPrefix(path, root)
	return found && (rest == "" || rest[0] == '/')
}

// ForbidRule covers at least the paths that the control plane's comparison
// covers, and all that are the same place in another spelling: another Unicode
// form, "./" or "x/.." in the rule, everything below a match, and a file that
// takes the place of a directory above it (attack case E12).
type ForbidRule struct {
	text     string
	places   []string  // folded, without wildcards: at, below and above are covered
	parents  []string  // directories above a pattern: a file there is covered
	patterns []pattern // the whole path is matched
}

// NewForbidRule compiles a rule. One that can't be understood (it leaves the
// tree, names all of it, is too long or not text) wraps ErrRule. A blank rule
// forbids nothing and is no error.
func NewForbidRule(text string) (ForbidRule, error) {
	r := ForbidRule{text: text}
	if len(text) > MaxRuleBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return r, fmt.Errorf("rule %.80q: %w", text, ErrRule)
	}
	if pythonStrip(text) == "" {
		return r, nil
	}
	normal, err := normalRule(text)
	if err != nil {
		return r, err
	}
	for _, form := range ruleForms(cleanRule(text), normal) {
		r.add(Casefold(form))
		r.add(wideFold(form))
	}
	return r, nil
}

// normalRule resolves "." and ".." in a rule as far as they stay in the tree.
func normalRule(text string) (string, error) {
	var parts []string
	for _, part := range strings.Split(stripAll(text), "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			parts = append(parts, part)
		case len(parts) == 0:
			return "", fmt.Errorf("rule %q leaves the tree: %w", text, ErrRule)
		default:
			parts = parts[:len(parts)-1]
		}
	}
	normal := strings.Join(parts, "/")
	if normal == "" || hasDrive(normal) {
		return "", fmt.Errorf("rule %q names no place in the tree: %w", text, ErrRule)
	}
	return normal, nil
}

// stripAll takes outer slashes and white space off in any order.
func stripAll(text string) string {
	return strings.TrimFunc(strings.ReplaceAll(text, `\`, "/"), func(r rune) bool {
		return r == '/' || isPythonSpace(r)
	})
}

// ruleForms lists the texts that a forbidding rule stands for. "**/" also means
// no directory at all, as most tools read it.
func ruleForms(cleaned, normal string) []string {
	forms := []string{normal, strings.TrimPrefix(normal, "**/"), strings.ReplaceAll(normal, "/**/", "/")}
	if !strings.Contains(cleaned, "..") {
		// As the control plane reads it: a set such as [a/.] is no directory, and
		// white space before a slash stays.
		forms = append(forms, cleaned)
	}
	for _, form := range forms {
		forms = append(forms, strings.TrimSuffix(form, "/**"))
	}
	slices.Sort(forms)
	return slices.DeleteFunc(slices.Compact(forms), func(s string) bool { return s == "" })
}

func (r *ForbidRule) add(folded string) {
	if hasWildcard(folded) {
		// "*" crosses "/", so the second pattern is "below a match of the first".
		r.patterns = append(r.patterns, compilePattern(folded), compilePattern(folded+"/*"))
		// A file in the place of a directory before the first wildcard would
		// replace what the rule protects.
		if folded = literalParent(folded); folded != "" {
			r.parents = append(r.parents, folded)
		}
		return
	}
	if !slices.Contains(r.places, folded) {
		r.places = append(r.places, folded)
	}
}

// literalParent returns the directories of a pattern before its first wildcard.
func literalParent(folded string) string {
	first := strings.IndexAny(folded, "*?[")
	return folded[:max(0, strings.LastIndexByte(folded[:first], '/'))]
}

// Covers says whether a change at the path is forbidden.
func (r ForbidRule) Covers(path string) bool { return r.covers(newSubject(path)) }

func (r ForbidRule) covers(s subject) bool {
	return r.coversFolded(s.folded) || s.wide != s.folded && r.coversFolded(s.wide)
}

func (r ForbidRule) coversFolded(path string) bool {
	return slices.ContainsFunc(r.places, func(place string) bool { return atOrBelow(path, place) || atOrBelow(place, path) }) ||
		slices.ContainsFunc(r.parents, func(parent string) bool { return atOrBelow(parent, path) }) ||
		slices.ContainsFunc(r.patterns, func(p pattern) bool { return p.match(path) })
}

// String returns the rule as it was given.
func (r ForbidRule) String() string { return r.text }

// subject is a path in the forms that rules ask for, made once for all rules.
type subject struct {
	path         string // as given
	folded, wide string // with "/" between names
	names        []string
}

func newSubject(path string) subject {
	slashed := strings.ReplaceAll(path, `\`, "/")
	s := subject{path: path, folded: Casefold(slashed)}
	s.wide = s.folded
	if !isASCII(slashed) {
		s.wide = wideFold(slashed)
	}
	s.names = strings.Split(s.wide, "/")
	return s
}
