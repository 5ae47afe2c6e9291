package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what a task may bring along as rules.
const (
	MaxRules     = 512
	MaxRuleBytes = 1024
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
func (r AllowRule) Covers(path string) bool {
	folded := Casefold(path)
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
	literals []string  // folded places; at, below and above are covered
	patterns []pattern // of the folded forms; at and below are covered
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
	forms := []string{cleaned, normal, strings.TrimPrefix(normal, "**/"), strings.ReplaceAll(normal, "/**/", "/")}
	for _, form := range forms {
		forms = append(forms, strings.TrimSuffix(form, "/**"))
	}
	slices.Sort(forms)
	return slices.DeleteFunc(slices.Compact(forms), func(s string) bool { return s == "" })
}

func (r *ForbidRule) add(folded string) {
	if hasWildcard(folded) {
		r.patterns = append(r.patterns, compilePattern(folded))
		// The directories before the first wildcard are places of their own:
		// a file there would replace what the rule protects.
		folded = literalParent(folded)
		if folded == "" {
			return
		}
		folded += "/*" // never equal to a path, so only "above" can hit
	}
	if !slices.Contains(r.literals, folded) {
		r.literals = append(r.literals, folded)
	}
}

// literalParent returns the directories of a pattern before its first wildcard.
func literalParent(folded string) string {
	first := strings.IndexAny(folded, "*?[")
	return folded[:max(0, strings.LastIndexByte(folded[:first], '/'))]
}

// Covers says whether a change at the path is forbidden.
func (r ForbidRule) Covers(path string) bool {
	path = strings.ReplaceAll(path, `\`, "/")
	folded := Casefold(path)
	if r.coversFolded(folded) {
		return true
	}
	return !isASCII(path) && r.coversFolded(wideFold(path))
}

func (r ForbidRule) coversFolded(path string) bool {
	for _, place := range r.literals {
		if atOrBelow(path, place) || atOrBelow(place, path) {
			return true
		}
	}
	for _, p := range r.patterns {
		if matchesAtOrAbove(path, p.match) {
			return true
		}
	}
	return false
}

// String returns the rule as it was given.
func (r ForbidRule) String() string { return r.text }

// matchesAtOrAbove asks about the path and each directory above it.
func matchesAtOrAbove(path string, match func(string) bool) bool {
	for i := range len(path) {
		if path[i] == '/' && match(path[:i]) {
			return true
		}
	}
	return match(path)
}
