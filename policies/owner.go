package policies

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/veyra-labs/veyra-sandboxd/internal/nearest"
)

// An owner's file says "extends" and changes keys of what it extends. Its text
// is judged key by key instead of being decoded into a struct, so that every
// mistake is told at once, with its line and what to do.

// What a text may hold before a parser sees it. Depth costs a parser its stack:
// in flow style a bracket a level, in block style a column a level.
const (
	maxOwnerLine     = 1024
	maxOwnerBrackets = 256
)

// Problem is one thing that keeps an owner's file from being used.
type Problem struct {
	Line int    `json:"line"` // from 1; 0: the file as a whole
	Key  string `json:"key"`  // for example "limits.pids"; may be empty
	Text string `json:"text"` // what is wrong, and what to do
}

// String is one line for people.
func (p Problem) String() string {
	parts := []string{}
	if p.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", p.Line))
	}
	if p.Key != "" {
		parts = append(parts, p.Key)
	}
	return strings.Join(append(parts, p.Text), ": ")
}

// FileError holds every problem of an owner's file, by line; it wraps
// ErrPolicyInvalid.
type FileError struct{ Problems []Problem }

// Error joins all problems.
func (e *FileError) Error() string {
	texts := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns ErrPolicyInvalid.
func (e *FileError) Unwrap() error { return ErrPolicyInvalid }

// ParseOwner reads the text of an owner's file. An error is a *FileError.
func ParseOwner(text []byte) (Policy, error) {
	r := &ownerReader{seen: map[string]int{}}
	root := r.parse(text)
	if root == nil {
		return Policy{}, r.failed()
	}
	r.base(root)
	r.group("", root)
	r.whole()
	if err := r.failed(); err != nil {
		return Policy{}, err
	}
	r.policy.source = string(text)
	return r.policy, nil
}

// ownerReader collects what a file says and what is wrong with it.
type ownerReader struct {
	policy   Policy
	known    bool           // extends names a policy
	seen     map[string]int // line of each key that was there
	problems []Problem
}

func (r *ownerReader) complain(line int, key, format string, args ...any) {
	r.problems = append(r.problems, Problem{Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (r *ownerReader) failed() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return &FileError{Problems: r.problems}
}

// parse returns the pairs of the one document, or nil with a problem.
func (r *ownerReader) parse(text []byte) ast.MapNode {
	if line, why := unbounded(text); why != "" {
		r.complain(line, "", "%s", why)
		return nil
	}
	file, err := parser.ParseBytes(text, 0)
	var syntax *yaml.SyntaxError
	switch {
	case errors.As(err, &syntax) && syntax.Token != nil:
		r.complain(syntax.Token.Position.Line, "", "this is no YAML: %s", syntax.Message)
	case err != nil:
		r.complain(0, "", "this is no YAML: %v", err)
	case len(file.Docs) > 1:
		r.complain(0, "", "there are %d documents in it; a policy is one: remove the lines of three dashes", len(file.Docs))
	default:
		if len(file.Docs) == 1 {
			if root, ok := file.Docs[0].Body.(ast.MapNode); ok {
				return root
			}
		}
		r.complain(0, "", "there is no policy in it: begin with the lines \"name: NAME\" and \"extends: strict\"")
	}
	return nil
}

// unbounded says which line has more in it than any policy needs.
func unbounded(text []byte) (int, string) {
	if len(text) > maxPolicyBytes {
		return 0, fmt.Sprintf("it is over %d KiB: a policy is short", maxPolicyBytes>>10)
	}
	brackets := 0
	for i, line := range bytes.Split(text, []byte("\n")) {
		brackets += bytes.Count(line, []byte("[")) + bytes.Count(line, []byte("{"))
		switch {
		case len(line) > maxOwnerLine:
			return i + 1, fmt.Sprintf("the line is over %d bytes: break it, lists may have an entry a line", maxOwnerLine)
		case brackets > maxOwnerBrackets:
			return i + 1, fmt.Sprintf("there are more than %d opening brackets up to here: write lists with an entry a line", maxOwnerBrackets)
		}
	}
	return 0, ""
}

// base starts from the policy that the file extends. Without a good one the
// other keys are judged all the same, against strict.
func (r *ownerReader) base(root ast.MapNode) {
	for pair := range pairs(root) {
		if pair.key == "extends" {
			name, _ := scalar(pair.value)
			var err error
			r.policy, err = Builtin(name)
			r.known = err == nil
		}
	}
	if !r.known {
		r.policy, _ = Builtin("strict")
	}
	r.policy.Name = ""
}

// ownerPair is a key, its value, and where it stands.
type ownerPair struct {
	key   string
	line  int
	value ast.Node
	merge bool
}

func pairs(node ast.MapNode) func(func(ownerPair) bool) {
	return func(yield func(ownerPair) bool) {
		for it := node.MapRange(); it.Next(); {
			token := it.Key().GetToken()
			if !yield(ownerPair{token.Value, token.Position.Line, it.Value(), it.Key().IsMergeKey()}) {
				return
			}
		}
	}
}

// group reads the keys of a mapping; prefix is "" or ends with a dot.
func (r *ownerReader) group(prefix string, node ast.MapNode) {
	for pair := range pairs(node) {
		full := prefix + pair.key
		r.seen[full] = pair.line
		key, known := ownerKeys[full]
		switch {
		case pair.merge || foreignNode(pair.value):
			r.complain(pair.line, full, "anchors, aliases, tags and merges are not read here: write the value out")
		case slices.Contains(ownerGroups, full):
			r.nested(full, pair)
		case !known:
			r.complain(pair.line, full, "there is no such key%s", meant(full))
		default:
			if why := key(&r.policy, pair.value); why != "" {
				r.complain(pair.line, full, "%s", why)
			}
		}
	}
}

func (r *ownerReader) nested(full string, pair ownerPair) {
	inner, ok := pair.value.(ast.MapNode)
	if !ok {
		r.complain(pair.line, full, "it holds keys of its own, such as %s", firstKeyOf(full))
		return
	}
	r.group(full+".", inner)
}

// foreignNode recognises what makes one value stand for another.
func foreignNode(node ast.Node) bool {
	switch node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return true
	}
	return false
}

// meant names the known key that is nearest: among all, by its last word.
func meant(key string) string {
	keys := append(slices.Sorted(mapKeys(ownerKeys)), ownerGroups...)
	leaves := make([]string, 0, len(keys))
	for _, k := range keys {
		leaves = append(leaves, k[strings.LastIndexByte(k, '.')+1:])
	}
	if i := nearest.Index(key[strings.LastIndexByte(key, '.')+1:], leaves); i >= 0 {
		return fmt.Sprintf(" (did you mean %s?)", keys[i])
	}
	return "; `veyra-sandboxd policy show strict` shows all keys"
}

// ownerName keeps a policy's name apart from paths and fit for evidence.
var ownerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// whole judges what single keys can't show.
func (r *ownerReader) whole() {
	p := &r.policy
	if _, said := r.seen["extends"]; !said {
		r.complain(0, "extends", "it is missing: say what the file changes, for example \"extends: standard\"")
	}
	if _, said := r.seen["name"]; !said {
		r.complain(0, "name", "it is missing: give the policy a name of its own, which evidence will carry")
	}
	if !r.known {
		return
	}
	if p.Extends == "strict" {
		r.strictKeeps()
	}
	if p.Limits.OutputKeepBytes > p.Limits.OutputReadBytes {
		r.complain(r.seen["limits.output_keep"], "limits.output_keep", "more is kept than limits.output_read lets a command write: lower it")
	}
	if len(r.problems) == 0 { // a rule of the built-in ones that no key above looks at
		if err := p.check(p.Name); err != nil {
			r.complain(0, "", "%v", err)
		}
	}
}

// strictKeeps: who extends strict may widen its numbers, but its sandboxes are
// held by everything that strict is held by, or the word would mean nothing.
func (r *ownerReader) strictKeeps() {
	const instead = "what extends strict can't go without it: extend standard instead"
	if len(r.policy.Without) > 0 {
		r.complain(r.seen["without"], "without", instead)
	}
	if !r.policy.Require.UserNamespace {
		r.complain(r.seen["require.user_namespace"], "require.user_namespace", instead)
	}
	if !r.policy.Require.DiskQuota {
		r.complain(r.seen["require.disk_quota"], "require.disk_quota", instead)
	}
}
