package policies

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/veyra-labs/veyra-sandboxd/internal/nearest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// ownerKey puts one value into a policy, or says what is wrong with it.
type ownerKey func(p *Policy, value ast.Node) string

// ownerGroups are the keys that hold keys.
var ownerGroups = []string{"require", "limits", "limits.fetch", "jobs", "paths"}

// Ends of ranges. The lower ones are what a sandbox needs to start at all, the
// upper ones what a kernel can count.
const (
	mostBytes = int64(1) << 50
	mostPIDs  = int64(1) << 22
	mostFiles = int64(1) << 30
)

// ownerKeys are all keys that an owner's file may hold. It is filled by init
// because messages of its entries name its keys.
var ownerKeys map[string]ownerKey

func init() {
	ownerKeys = map[string]ownerKey{
		"name":    readName,
		"extends": readExtends,
		"without": readWithout,

		"require.user_namespace": boolKey(func(p *Policy) *bool { return &p.Require.UserNamespace }),
		"require.disk_quota":     boolKey(func(p *Policy) *bool { return &p.Require.DiskQuota }),
		"require.image_digest":   boolKey(func(p *Policy) *bool { return &p.Require.ImageDigest }),
		"require.https":          boolKey(func(p *Policy) *bool { return &p.Require.HTTPS }),

		"network":    wordKey(func(p *Policy) *Network { return &p.Network }, NetworkNone, NetworkRegistries),
		"scripts":    wordKey(func(p *Policy) *Scripts { return &p.Scripts }, ScriptsOff, ScriptsPrepare, ScriptsFetch),
		"fetch_tree": wordKey(func(p *Policy) *FetchTree { return &p.FetchTree }, FetchManifests, FetchBase),

		"limits.cpus":          numberKey(0, 4096, func(p *Policy) *int { return &p.Limits.CPUs }),
		"limits.memory":        sizeKey(MinMemoryBytes, mostBytes, func(p *Policy) *int64 { return &p.Limits.MemoryBytes }),
		"limits.pids":          numberKey(16, mostPIDs, func(p *Policy) *int64 { return &p.Limits.PIDs }),
		"limits.disk":          sizeKey(MinDiskBytes, mostBytes, func(p *Policy) *int64 { return &p.Limits.DiskBytes }),
		"limits.inodes":        numberKey(1024, mostFiles, func(p *Policy) *int64 { return &p.Limits.Inodes }),
		"limits.shm":           sizeKey(4096, mostBytes, func(p *Policy) *int64 { return &p.Limits.ShmBytes }),
		"limits.open_files":    numberKey(64, mostFiles, func(p *Policy) *int64 { return &p.Limits.OpenFiles }),
		"limits.core":          sizeKey(0, mostBytes, func(p *Policy) *int64 { return &p.Limits.CoreBytes }),
		"limits.output_keep":   sizeKey(4096, 1<<30, func(p *Policy) *int64 { return &p.Limits.OutputKeepBytes }),
		"limits.output_read":   sizeKey(4096, mostBytes, func(p *Policy) *int64 { return &p.Limits.OutputReadBytes }),
		"limits.change":        sizeKey(4096, mostBytes, func(p *Policy) *int64 { return &p.Limits.ChangeBytes }),
		"limits.fetch.tunnels": numberKey(1, 4096, func(p *Policy) *int { return &p.Limits.FetchTunnels }),
		"limits.fetch.down":    sizeKey(4096, mostBytes, func(p *Policy) *int64 { return &p.Limits.FetchDownBytes }),
		"limits.fetch.up":      sizeKey(4096, mostBytes, func(p *Policy) *int64 { return &p.Limits.FetchUpBytes }),
		"limits.setup_percent": numberKey(1, 90, func(p *Policy) *int { return &p.Limits.SetupPercent }),
		"limits.test_percent":  numberKey(1, 90, func(p *Policy) *int { return &p.Limits.TestPercent }),

		"jobs.minutes":             numberKey(1, protocol.MaxMinutes, func(p *Policy) *int { return &p.Jobs.Minutes }),
		"jobs.repairs":             numberKey(0, protocol.MaxRepairs, func(p *Policy) *int { return &p.Jobs.Repairs }),
		"jobs.new_dependencies":    boolKey(func(p *Policy) *bool { return &p.Jobs.NewDependencies }),
		"jobs.database_migrations": boolKey(func(p *Policy) *bool { return &p.Jobs.DatabaseMigrations }),

		"paths.allowed":         listKey(func(p *Policy) *[]string { return &p.Paths.Allowed }, allowedText),
		"paths.forbidden":       listKey(func(p *Policy) *[]string { return &p.Paths.Forbidden }, forbiddenText),
		"paths.protected":       listKey(func(p *Policy) *[]string { return &p.Paths.Protected }, forbiddenText),
		"paths.protected_names": listKey(func(p *Policy) *[]string { return &p.Paths.ProtectedNames }, nameText),
	}
}

func mapKeys(m map[string]ownerKey) iter.Seq[string] { return maps.Keys(m) }

// firstKeyOf is an example of what a group holds.
func firstKeyOf(group string) string {
	for _, key := range slices.Sorted(mapKeys(ownerKeys)) {
		if strings.HasPrefix(key, group+".") {
			return key
		}
	}
	return group
}

// scalar is the text of a plain or quoted value on one line.
func scalar(node ast.Node) (string, bool) {
	switch node.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
		return node.GetToken().Value, true
	}
	return "", false
}

func readName(p *Policy, value ast.Node) string {
	name, _ := scalar(value)
	switch {
	case slices.Contains(Names(), name):
		return name + " is a built-in policy's: choose a name of your own"
	case !ownerName.MatchString(name):
		return "a name is 1 to 32 of a-z, 0-9 and -, and begins with a letter"
	}
	p.Name = name
	return ""
}

// readExtends judges only: base has read it before all other keys.
func readExtends(_ *Policy, value ast.Node) string {
	if name, _ := scalar(value); !slices.Contains(Names(), name) {
		return "write strict, standard or relaxed: a file extends a built-in policy, not another file"
	}
	return ""
}

func readWithout(p *Policy, value ast.Node) string {
	texts, why := textsOf(value)
	if why != "" {
		return why
	}
	p.Without = nil
	names := make([]string, 0, len(waivers))
	for _, c := range Waivable() {
		names = append(names, string(c))
	}
	for _, text := range texts {
		if !slices.Contains(names, text) {
			if i := nearest.Index(text, names); i >= 0 {
				return fmt.Sprintf("%.40q is no control that a policy can go without (did you mean %s?)", text, names[i])
			}
			return fmt.Sprintf("%.40q is no control that a policy can go without; those are %s", text, strings.Join(names, ", "))
		}
		p.Without = append(p.Without, Control(text))
	}
	slices.Sort(p.Without)
	p.Without = slices.Compact(p.Without)
	return ""
}

func boolKey(field func(*Policy) *bool) ownerKey {
	return func(p *Policy, value ast.Node) string {
		b, ok := value.(*ast.BoolNode)
		if !ok {
			return "write true or false"
		}
		*field(p) = b.Value
		return ""
	}
}

func wordKey[W ~string](field func(*Policy) *W, words ...W) ownerKey {
	return func(p *Policy, value ast.Node) string {
		text, _ := scalar(value)
		if !slices.Contains(words, W(text)) {
			return "write one of " + strings.Trim(strings.ReplaceAll(fmt.Sprint(words), " ", ", "), "[]")
		}
		*field(p) = W(text)
		return ""
	}
}

func numberKey[N int | int64](low, high N, field func(*Policy) *N) ownerKey {
	return func(p *Policy, value ast.Node) string {
		text, _ := scalar(value)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(low) || n > int64(high) {
			return fmt.Sprintf("write a whole number from %d to %d", low, high)
		}
		*field(p) = N(n)
		return ""
	}
}

func sizeKey(low, high int64, field func(*Policy) *int64) ownerKey {
	return func(p *Policy, value ast.Node) string {
		text, _ := scalar(value)
		n, err := parseSize(text)
		if err != nil || n < low || n > high {
			return fmt.Sprintf("write a size such as 512MiB, from %s to %s", amount(low, "B"), amount(high, "B"))
		}
		*field(p) = n
		return ""
	}
}

// listKey replaces the whole list of what the file extends.
func listKey(field func(*Policy) *[]string, judge func(string) error) ownerKey {
	return func(p *Policy, value ast.Node) string {
		texts, why := textsOf(value)
		if why != "" {
			return why
		}
		for _, text := range texts {
			if err := judge(text); err != nil {
				return fmt.Sprintf("%.80q can't be used: %v", text, err)
			}
		}
		if err := boundedRules(texts); err != nil {
			return err.Error()
		}
		*field(p) = texts
		return ""
	}
}

func textsOf(value ast.Node) ([]string, string) {
	list, ok := value.(*ast.SequenceNode)
	if !ok {
		return nil, "write a list, an entry a line behind a dash, or [] for none"
	}
	texts := make([]string, 0, len(list.Values))
	for _, entry := range list.Values {
		text, ok := scalar(entry)
		if !ok || text == "" {
			return nil, "an entry of the list is no text of one line"
		}
		texts = append(texts, text)
	}
	return texts, ""
}

// allowedText refuses a rule that covers nothing: it would close the whole
// repository and look like a rule.
func allowedText(text string) error {
	_, err := normalRule(text)
	return err
}

func forbiddenText(text string) error {
	_, err := NewForbidRule(text)
	return err
}

func nameText(text string) error {
	_, err := newNameRule(text)
	return err
}
