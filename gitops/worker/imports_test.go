package worker_test

import (
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Attack case F06: of the library only plumbing is used. Its work trees,
// clones, pushes, transports and alternates have had holes, or follow what a
// repository says.
func TestOnlyPlumbingOfTheLibraryIsImported(t *testing.T) {
	allowed := []string{
		"github.com/go-git/go-billy/v5", "github.com/go-git/go-billy/v5/osfs",
		"github.com/go-git/go-git/v5/plumbing", "github.com/go-git/go-git/v5/plumbing/cache",
		"github.com/go-git/go-git/v5/plumbing/format/idxfile", "github.com/go-git/go-git/v5/plumbing/format/packfile",
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if !strings.HasPrefix(path, "github.com/go-git/") {
				continue
			}
			seen++
			if !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
	}
	if seen == 0 {
		t.Error("no import of the library was seen")
	}
}
