package runner

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// Ready is what init read about itself before the first command. It is a
// measurement: whoever asked for controls compares them with it.
type Ready struct {
	// Init is the status of init.
	Init Status
	// Forker is the status of the thread that forks commands. They keep its
	// Bounding, Inheritable and Ambient sets, NoNewPrivs and Seccomp.
	Forker Status
	// UIDMap and GIDMap are the id maps of the user namespace.
	UIDMap, GIDMap []IDMap
	// Mounts are all mounts, in the kernel's order.
	Mounts []Mount
	// Dumpable is PR_GET_DUMPABLE of init; 0 keeps its /proc files shut.
	Dumpable int
	// Files, Core (bytes) and Procs are init's hard limits; a number that does
	// not fit stands for none.
	Files, Core, Procs int64
}

// Status is the part of /proc/<pid>/status that tells of rights.
type Status struct {
	UID, GID   [4]int // real, effective, saved, file system
	Groups     []int
	NoNewPrivs int
	Seccomp    int // 0 none, 2 filter
	// The five capability sets, bit n for capability n.
	Inheritable, Permitted, Effective, Bounding, Ambient uint64
}

// IDMap is one line of a user namespace's map.
type IDMap struct{ Inside, Outside, Count int64 }

// Mount is one line of mountinfo.
type Mount struct {
	Root, Path   string
	Options      []string // of this mount
	Type, Source string
	Super        []string // of its file system
}

// Writable reports whether files can be written through this mount.
func (m Mount) Writable() bool { return !m.Has("ro") && !has(m.Super, "ro") }

// Has reports whether the mount itself has the option, for example "nosuid".
func (m Mount) Has(option string) bool { return has(m.Options, option) }

func has(list []string, word string) bool {
	for _, w := range list {
		if w == word {
			return true
		}
	}
	return false
}

// parseHello reads the first frame. Its texts are the kernel's, passed on by
// our own init; an odd one is an error all the same.
func parseHello(f initwire.Frame) (Ready, error) {
	if f.Type != initwire.HelloFrame {
		return Ready{}, fmt.Errorf("first frame is of type %d: %w", f.Type, initwire.ErrFrame)
	}
	h, err := initwire.DecodeHello(f.Payload)
	if err != nil {
		return Ready{}, err
	}
	p := parser{}
	r := Ready{
		Init: p.status(h.Status), Forker: p.status(h.Forker),
		UIDMap: p.idMap(h.UIDMap), GIDMap: p.idMap(h.GIDMap),
		Mounts: p.mounts(h.MountInfo), Dumpable: int(h.Dumpable),
		Files: clamp(h.Files), Core: clamp(h.Core), Procs: clamp(h.Procs),
	}
	return r, p.err
}

// clamp keeps "unlimited" from becoming a negative number.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// parser keeps its first error, so that a missing line can't pass for a zero.
type parser struct{ err error }

func (p *parser) fail(what, text string) {
	if p.err == nil {
		p.err = fmt.Errorf("reading %s %q: %w", what, text, initwire.ErrFrame)
	}
}

func (p *parser) status(text string) Status {
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		lines[name] = strings.TrimSpace(value)
	}
	return Status{
		UID: p.ids("Uid", lines), GID: p.ids("Gid", lines), Groups: p.ints("Groups", lines["Groups"]),
		NoNewPrivs: int(p.number("NoNewPrivs", lines, 10)), Seccomp: int(p.number("Seccomp", lines, 10)),
		Inheritable: p.number("CapInh", lines, 16), Permitted: p.number("CapPrm", lines, 16),
		Effective: p.number("CapEff", lines, 16), Bounding: p.number("CapBnd", lines, 16),
		Ambient: p.number("CapAmb", lines, 16),
	}
}

func (p *parser) number(name string, lines map[string]string, base int) uint64 {
	n, err := strconv.ParseUint(lines[name], base, 64)
	if err != nil {
		p.fail(name, lines[name])
	}
	return n
}

func (p *parser) ints(name, text string) []int {
	var list []int
	for _, word := range strings.Fields(text) {
		n, err := strconv.Atoi(word)
		if err != nil {
			p.fail(name, text)
		}
		list = append(list, n)
	}
	return list
}

func (p *parser) ids(name string, lines map[string]string) [4]int {
	list := p.ints(name, lines[name])
	if len(list) != 4 {
		p.fail(name, lines[name])
		return [4]int{}
	}
	return [4]int(list)
}

func (p *parser) idMap(text string) []IDMap {
	var list []IDMap
	for line := range strings.Lines(text) {
		n := p.ints("id map", line)
		if len(n) != 3 {
			p.fail("id map", line)
			return nil
		}
		list = append(list, IDMap{int64(n[0]), int64(n[1]), int64(n[2])})
	}
	return list
}

// mounts parses proc_pid_mountinfo(5): six fields, optional ones up to a dash,
// three more.
func (p *parser) mounts(text string) []Mount {
	var list []Mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		l, r := strings.Split(left, " "), strings.Split(right, " ")
		if !ok || len(l) < 6 || len(r) < 3 {
			p.fail("mountinfo", line)
			return nil
		}
		list = append(list, Mount{
			Root: unescape(l[3]), Path: unescape(l[4]), Options: strings.Split(l[5], ","),
			Type: r[0], Source: unescape(r[1]), Super: strings.Split(r[2], ","),
		})
	}
	return list
}

// unescape undoes the kernel's octal escapes of space, tab, newline, backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
