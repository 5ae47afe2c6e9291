// Command vulnindex lays out the Go vulnerability database for govulncheck's
// -db file:// from the source of the database, which is a Go module. So the
// check needs no host but the one that the modules come from, and a pinned
// version gives the same findings every day.
//
//	vulnindex SOURCE TARGET
//
// SOURCE is the directory of the module golang.org/x/vulndb, TARGET a new
// directory. Start reading at build.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// maxAdvisory bounds one advisory's file; the largest today is under 100 KiB.
const maxAdvisory = 4 << 20

// The files of the index, as the database's version 1 names them.
type (
	dbIndex struct {
		Modified time.Time `json:"modified"`
	}
	moduleEntry struct {
		Path  string       `json:"path"`
		Vulns []moduleVuln `json:"vulns"`
	}
	moduleVuln struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
	}
	vulnEntry struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
		Aliases  []string  `json:"aliases,omitempty"`
	}
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: vulnindex SOURCE TARGET")
		os.Exit(2)
	}
	n, err := build(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulnindex:", err)
		os.Exit(1)
	}
	fmt.Printf("%d advisories\n", n)
}

// build writes the advisories and the three index files, and returns the number
// of advisories. None at all is an error: an empty database finds nothing, which
// would look like good news.
func build(source, target string) (int, error) {
	names, err := filepath.Glob(filepath.Join(source, "data", "osv", "*.json"))
	if err != nil || len(names) == 0 {
		return 0, errors.Join(fmt.Errorf("reading %s: no advisories in data/osv", source), err)
	}
	for _, dir := range []string{"ID", "index"} {
		if err := os.MkdirAll(filepath.Join(target, dir), 0o755); err != nil {
			return 0, err
		}
	}
	index := newIndex()
	for _, name := range names {
		if err := index.add(name, target); err != nil {
			return 0, fmt.Errorf("advisory %s: %w", filepath.Base(name), err)
		}
	}
	return len(names), index.write(target)
}

type index struct {
	// now stands for the times that the module leaves at zero; govulncheck
	// compares them only with each other.
	now     time.Time
	modules map[string][]moduleVuln
	vulns   []vulnEntry
}

func newIndex() *index {
	return &index{now: time.Unix(1, 0).UTC(), modules: map[string][]moduleVuln{}}
}

// add copies one advisory with its times set and remembers what it is about.
func (x *index) add(name, target string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(text) > maxAdvisory {
		return fmt.Errorf("%d bytes are too many", len(text))
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	var known struct {
		ID       string   `json:"id"`
		Aliases  []string `json:"aliases"`
		Affected []struct {
			Package struct {
				Name string `json:"name"`
			} `json:"package"`
		} `json:"affected"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	if known.ID == "" || known.ID+".json" != filepath.Base(name) {
		return fmt.Errorf("id %q is not the file's name", known.ID)
	}
	fields["modified"], fields["published"] = x.now, x.now
	x.vulns = append(x.vulns, vulnEntry{ID: known.ID, Modified: x.now, Aliases: known.Aliases})
	for _, affected := range known.Affected {
		x.addModule(affected.Package.Name, known.ID)
	}
	return writeJSON(filepath.Join(target, "ID", known.ID+".json"), fields)
}

// addModule counts an advisory once for a module, however many ranges it names.
func (x *index) addModule(path, id string) {
	vulns := x.modules[path]
	if len(vulns) == 0 || vulns[len(vulns)-1].ID != id {
		x.modules[path] = append(vulns, moduleVuln{ID: id, Modified: x.now})
	}
}

func (x *index) write(target string) error {
	modules := make([]moduleEntry, 0, len(x.modules))
	for path, vulns := range x.modules {
		modules = append(modules, moduleEntry{Path: path, Vulns: vulns})
	}
	slices.SortFunc(modules, func(a, b moduleEntry) int { return cmp.Compare(a.Path, b.Path) })
	return errors.Join(
		writeJSON(filepath.Join(target, "index", "db.json"), dbIndex{x.now}),
		writeJSON(filepath.Join(target, "index", "modules.json"), modules),
		writeJSON(filepath.Join(target, "index", "vulns.json"), x.vulns),
	)
}

func writeJSON(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
