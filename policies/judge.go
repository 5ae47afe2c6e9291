package policies

import "slices"

// ChangeKind says what a change set does to a path.
type ChangeKind string

// The kinds. A file that takes the place of a directory, or the reverse, is a
// deletion and an addition; so is a rename.
const (
	ChangeAdd    ChangeKind = "add"
	ChangeModify ChangeKind = "modify"
	ChangeDelete ChangeKind = "delete"
	ChangeMode   ChangeKind = "mode"
)

// Change is one entry of a change set, judged by its name alone.
type Change struct {
	Path string
	Kind ChangeKind
}

// ViolationKind says which sort of rule a change breaks.
type ViolationKind string

// The sorts of rules, in the order in which they are asked.
const (
	ViolationUndeliverable  ViolationKind = "undeliverable"
	ViolationForbidden      ViolationKind = "forbidden"
	ViolationProtected      ViolationKind = "protected"
	ViolationDependencies   ViolationKind = "dependency-manifest"
	ViolationMigration      ViolationKind = "migration"
	ViolationOutsideAllowed ViolationKind = "outside-allowed"
)

// Violation is one change against one rule. Rule is the rule's text, or a short
// name where the rule is built in. Both texts are a stranger's: escape them
// before showing them.
type Violation struct {
	Path string
	Rule string
	Kind ViolationKind
}

// Judge returns every change that the effective policy does not let through,
// with the first rule of each sort that it breaks; none is a yes. Both names of
// a rename must be among the changes.
func (e *Effective) Judge(changes []Change) []Violation {
	var found []Violation
	twins := caseTwins(changes)
	for _, c := range changes {
		found = e.judgeOne(found, c.Path)
		if twins[c.Path] && c.Kind != ChangeDelete {
			found = append(found, Violation{c.Path, "another written path differs only in case", ViolationUndeliverable})
		}
	}
	return found
}

func (e *Effective) judgeOne(found []Violation, path string) []Violation {
	s := newSubject(path)
	add := func(kind ViolationKind, rule string, broken bool) {
		if broken {
			found = append(found, Violation{path, rule, kind})
		}
	}
	if err := Deliverable(path); err != nil {
		add(ViolationUndeliverable, err.Error(), true)
	}
	rules := e.rules
	add(ViolationForbidden, "always forbidden", s.alwaysForbidden())
	rule, hit := firstForbid(rules.forbidden, s)
	add(ViolationForbidden, rule, hit)
	rule, hit = firstForbid(rules.protected, s)
	add(ViolationProtected, rule, hit)
	rule, hit = firstName(rules.protectedNames, s, true)
	add(ViolationProtected, rule, hit)
	rule, hit = firstName(rules.known.manifests, s, false)
	add(ViolationDependencies, rule, hit && !e.NewDependencies)
	rule, hit = firstName(rules.known.migrations, s, false)
	add(ViolationMigration, rule, hit && !e.DatabaseMigrations)
	for _, allowed := range rules.allowed {
		add(ViolationOutsideAllowed, "allowed paths", !anyAllows(allowed, path))
	}
	return found
}

func firstForbid(rules []ForbidRule, s subject) (string, bool) {
	i := slices.IndexFunc(rules, func(r ForbidRule) bool { return r.covers(s) })
	if i < 0 {
		return "", false
	}
	return rules[i].String(), true
}

func firstName(rules []nameRule, s subject, above bool) (string, bool) {
	i := slices.IndexFunc(rules, func(r nameRule) bool { return r.covers(s, above) })
	if i < 0 {
		return "", false
	}
	return rules[i].text, true
}

// anyAllows takes the path as it is: a backslash is a character of its name, and
// no form but the control plane's own may let it through.
func anyAllows(rules []AllowRule, path string) bool {
	folded := Casefold(path)
	return slices.ContainsFunc(rules, func(r AllowRule) bool { return r.coversFolded(folded) })
}

// caseTwins returns the written paths that the control plane would fold into
// one with another written path (attack case E09).
func caseTwins(changes []Change) map[string]bool {
	first := make(map[string]string, len(changes))
	twins := make(map[string]bool)
	for _, c := range changes {
		if c.Kind == ChangeDelete {
			continue
		}
		folded := Casefold(c.Path)
		other, seen := first[folded]
		if seen && other != c.Path {
			twins[other], twins[c.Path] = true, true
		}
		if !seen {
			first[folded] = c.Path
		}
	}
	return twins
}
