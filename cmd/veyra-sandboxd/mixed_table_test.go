package main_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// tellMixed writes a table of all lanes to the log, and to the file that
// VEYRA_SOAK_TABLE names.
func tellMixed(t *testing.T, results *sync.Map) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %5s  %-36s %-28s %s\n", "lane", "jobs", "resident KiB: supervisor, runner", "descriptors, of the runner", "goroutines")
	results.Range(func(_, value any) bool {
		l := value.(*lane)
		if len(l.samples) > 0 {
			l.row(&table)
		}
		return true
	})
	t.Logf("\n%s", table.String())
	path := os.Getenv("VEYRA_SOAK_TABLE")
	if path == "" {
		return
	}
	if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
		t.Error(err)
	}
}

// row compares the first job of the last life with its last.
func (l *lane) row(table *strings.Builder) {
	first, last := l.samples[0], l.samples[len(l.samples)-1]
	sum := 0
	for _, n := range l.counts {
		sum += n
	}
	fmt.Fprintf(table, "%-12s %5d  %-36s %-28s %s\n", l.name, sum,
		fmt.Sprintf("%d → %d, %d → %d", first.supervisor>>10, last.supervisor>>10, first.runner>>10, last.runner>>10),
		fmt.Sprintf("%d → %d, %d → %d", first.descriptors, last.descriptors, first.runnerDescriptors, last.runnerDescriptors),
		fmt.Sprintf("%d → %d", first.goroutines, last.goroutines))
	for _, kind := range slices.Sorted(maps.Keys(l.counts)) {
		fmt.Fprintf(table, "%-12s %5d  %s\n", "", l.counts[kind], kind)
	}
}
