package controlplanetest

import (
	"fmt"
	"regexp"
	"strings"
)

// mayChange judges one changed path by the funded policy.
func (s JobSpec) mayChange(name string) error {
	folded := strings.ToLower(name)
	if alwaysForbidden(folded) {
		return fmt.Errorf("Changed file %s is protected.", name)
	}
	for _, rule := range s.ForbiddenPaths {
		if covers(rule, folded) {
			return fmt.Errorf("Changed file %s is forbidden.", name)
		}
	}
	if len(s.AllowedPaths) == 0 {
		return nil
	}
	for _, rule := range s.AllowedPaths {
		if covers(rule, folded) {
			return nil
		}
	}
	return fmt.Errorf("Changed file %s is outside the allowed paths.", name)
}

func alwaysForbidden(folded string) bool {
	parts := strings.Split(folded, "/")
	for _, part := range parts {
		if part == ".git" {
			return true
		}
	}
	last := parts[len(parts)-1]
	return last == ".env" || strings.HasPrefix(last, ".env.") || parts[0] == ".env" ||
		strings.HasPrefix(folded, ".github/workflows/") || folded == ".github/workflows"
}

// covers tells whether a rule covers a folded path: equal, below, or by fnmatch
// over the whole path.
func covers(rule, folded string) bool {
	rule = strings.ToLower(clean(rule))
	root := strings.TrimSuffix(rule, "/**")
	if rule == "" {
		return false
	}
	if folded == root || strings.HasPrefix(folded, root+"/") {
		return true
	}
	return strings.ContainsAny(rule, "*?[") && fnmatch(rule, folded)
}

// fnmatch is Python's: * crosses slashes and [!a] negates.
func fnmatch(pattern, name string) bool {
	var re strings.Builder
	re.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			re.WriteString(".*")
		case '?':
			re.WriteString(".")
		case '[':
			end := strings.IndexByte(pattern[i+1:], ']')
			if end < 1 {
				re.WriteString(`\[`)
				continue
			}
			set := pattern[i+1 : i+1+end]
			if set[0] == '!' {
				set = "^" + set[1:]
			}
			re.WriteString("[" + strings.ReplaceAll(set, `\`, `\\`) + "]")
			i += end + 1
		default:
			re.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	compiled, err := regexp.Compile(re.String() + `\z`)
	return err == nil && compiled.MatchString(name)
}
