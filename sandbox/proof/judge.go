package proof

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// judge tells whether a control holds, and what was seen.
type judge func(view) (bool, string)

// shown is how many attempts a sentence names.
const shown = 5

// results are words of attack.Try.
type results []string

// What counts as refused where nothing else is said. gVisor answers some calls
// that a filter refuses by itself, with any errno: no attempt reaches the host.
var (
	byFilter = results{"EPERM", "ENOSYS"}
	byRights = results{"EPERM", "EACCES", "EROFS", "ENOENT", "ENOSYS", "ENOTDIR", "ENXIO", "ENODEV", "ESRCH"}
)

// refusal expects every attempt to fail.
type refusal struct {
	// must lists attempts that have to be in the report.
	must []string
	// kernel and gvisor are the results that count; gvisor empty: every errno.
	kernel, gvisor results
	// but holds attempts with other results than those, by name.
	but map[string]results
	// butGVisor adds to it on gVisor: what touches the guest only.
	butGVisor map[string]results
}

func (r refusal) judge(v view) (bool, string) {
	counts, wrong := map[string]int{}, []string{}
	missing := slices.Clone(r.must)
	for _, t := range v.tries {
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == t.Name })
		if t.Result == attack.Seen {
			continue
		}
		counts[meant(t.Result)]++
		if !r.allows(v.gvisor, t) {
			wrong = append(wrong, strings.TrimSpace(t.Name+" gave "+t.Result+" "+quoted(t.Detail)))
		}
	}
	if len(wrong)+len(missing) > 0 {
		return false, strings.Join(slices.Concat(some("", wrong), some("not tried: ", missing)), "; ")
	}
	if len(counts) == 0 {
		return false, "nothing was tried"
	}
	return true, tally(counts)
}

// meant is the word of a tally: an attempt that worked and counts as harmless
// is one that everybody may make.
func meant(result string) string {
	switch result {
	case attack.Done:
		return "harmless"
	case attack.Nothing:
		return "in vain"
	}
	return result
}

func (r refusal) allows(gvisor bool, t attack.Try) bool {
	if gvisor && slices.Contains(r.butGVisor[t.Name], t.Result) {
		return true
	}
	if other, found := r.but[t.Name]; found {
		return slices.Contains(other, t.Result)
	}
	switch {
	case !gvisor:
		return slices.Contains(r.kernel, t.Result)
	case len(r.gvisor) > 0:
		return slices.Contains(r.gvisor, t.Result)
	}
	return failed(t)
}

// failed reports whether an attempt ended in an errno, a signal or nothing.
func failed(t attack.Try) bool { return t.Result != attack.Done && t.Result != attack.Seen }

// some shortens a list for a sentence.
func some(before string, list []string) []string {
	if len(list) == 0 {
		return nil
	}
	text := strings.Join(list[:min(shown, len(list))], ", ")
	if more := len(list) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return []string{before + text}
}

// tally tells how often each result came.
func tally(counts map[string]int) string {
	total, parts := 0, []string{}
	for _, result := range slices.Sorted(maps.Keys(counts)) {
		total += counts[result]
		parts = append(parts, fmt.Sprintf("%s %d", result, counts[result]))
	}
	return fmt.Sprintf("%d attempts: %s", total, strings.Join(parts, ", "))
}

func quoted(detail string) string {
	if detail == "" {
		return ""
	}
	return strconv.QuoteToASCII(detail[:min(len(detail), 80)])
}

// detail is what the report says of a name, and whether it says so just once.
func (v view) detail(name string) (attack.Try, bool) {
	var found []attack.Try
	for _, t := range v.tries {
		if t.Name == name {
			found = append(found, t)
		}
	}
	if len(found) != 1 {
		return attack.Try{}, false
	}
	return found[0], true
}

// facts expects each name to be told with one of its values.
func facts(want map[string][]string) judge {
	return func(v view) (bool, string) {
		told, wrong := []string{}, []string{}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			t, found := v.detail(name)
			word := name + "=" + quoted(t.Detail)
			if !found || t.Result != attack.Seen || !slices.Contains(want[name], t.Detail) {
				wrong = append(wrong, word)
			}
			told = append(told, word)
		}
		if len(wrong) > 0 {
			return false, strings.Join(some("unexpected: ", wrong), "")
		}
		return true, strings.Join(told, " ")
	}
}

// both expects two judges to agree.
func both(a, b judge) judge {
	return func(v view) (bool, string) {
		okA, seenA := a(v)
		okB, seenB := b(v)
		switch {
		case okA && okB:
			return true, seenA + "; " + seenB
		case okA:
			return false, seenB
		}
		return false, seenA
	}
}

// number reads how far an attack got.
func number(t attack.Try) int64 {
	n, err := strconv.ParseInt(t.Detail, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
