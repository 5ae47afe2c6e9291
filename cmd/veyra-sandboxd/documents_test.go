package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// TestDocumentedConfigurationsWork: what the operator's page tells to write into
// the file must be taken as it stands, and a policy of one's own as well.
func TestDocumentedConfigurationsWork(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Fatal("the page shows no configuration")
	}
	isPolicy, policyFiles := regexp.MustCompile(`(?m)^extends:`), 0
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "mine.yaml")
		if err := os.WriteFile(file, block[1], 0o600); err != nil {
			t.Fatal(err)
		}
		if isPolicy.Match(block[1]) {
			policyFiles++
			if p, err := policies.Load(file); err != nil || p.Name != "roomy" {
				t.Errorf("policy %q, %v, in\n%s", p.Name, err, block[1])
			}
			continue
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
	if policyFiles == 0 || policyFiles == len(blocks) {
		t.Errorf("%d of %d configurations are policies", policyFiles, len(blocks))
	}
}
