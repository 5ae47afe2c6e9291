package policies

import (
	"fmt"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

// nameRule covers a name, or names in a row such as ".cargo/config.toml", at
// any depth of the tree, and everything below. Wildcards stay within one name.
type nameRule struct {
	text  string
	parts []pattern
}

// newNameRule compiles a name. One without a character that can be in a name
// wraps ErrRule.
func newNameRule(text string) (nameRule, error) {
	normal, err := normalRule(text)
	if err != nil {
		return nameRule{}, err
	}
	r := nameRule{text: text}
	for _, part := range strings.Split(wideFold(normal), "/") {
		r.parts = append(r.parts, compilePattern(part))
	}
	return r, nil
}

// covers says whether the names stand in the path. With above, a file in the
// place of one of the leading names is covered as well: it would replace them.
func (r nameRule) covers(s subject, above bool) bool {
	for start := range s.names {
		n := r.matching(s.names[start:])
		if n == len(r.parts) || above && n > 0 && start+n == len(s.names) {
			return true
		}
	}
	return false
}

// matching counts how many of the rule's names the given names begin with.
func (r nameRule) matching(names []string) int {
	for i, part := range r.parts {
		if i == len(names) || !part.match(names[i]) {
			return i
		}
	}
	return len(r.parts)
}

// knownNames are the name rules of data/names.yaml.
type knownNames struct{ manifests, migrations []nameRule }

// loadNames reads the embedded names once; an error is a fault of the build.
var loadNames = sync.OnceValues(func() (knownNames, error) {
	var file struct {
		Manifests  []string `yaml:"manifests"`
		Migrations []string `yaml:"migrations"`
	}
	text, err := dataFiles.ReadFile("data/names.yaml")
	if err != nil {
		return knownNames{}, fmt.Errorf("reading names: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return knownNames{}, fmt.Errorf("names: %w: %w", ErrPolicyInvalid, err)
	}
	var known knownNames
	if known.manifests, err = newNameRules(file.Manifests); err != nil {
		return knownNames{}, err
	}
	known.migrations, err = newNameRules(file.Migrations)
	return known, err
})

func newNameRules(texts []string) ([]nameRule, error) {
	rules := make([]nameRule, 0, len(texts))
	for _, text := range texts {
		r, err := newNameRule(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}
