package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDocumentedConfigurationsWork: what the operator's page tells to write into
// the file must be taken as it stands.
func TestDocumentedConfigurationsWork(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Fatal("the page shows no configuration")
	}
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "mine.yaml")
		if err := os.WriteFile(file, block[1], 0o600); err != nil {
			t.Fatal(err)
		}
		s := defaultSettings()
		if err := s.readFile(file); err != nil {
			t.Fatal(err)
		}
		s.finish()
		if err := s.check(); err != nil {
			t.Errorf("%v, in\n%s", err, block[1])
		}
		if s.StateDir != "/var/lib/veyra-sandboxd/mine" {
			t.Errorf("state directory %s", s.StateDir)
		}
	}
}
