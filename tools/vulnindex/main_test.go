package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func source(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	osv := filepath.Join(dir, "data", "osv")
	if err := os.MkdirAll(osv, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(osv, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestIndexesAdvisories(t *testing.T) {
	from, to := source(t, map[string]string{
		"GO-1.json": `{"id":"GO-1","modified":"0001-01-01T00:00:00Z","aliases":["CVE-1"],"affected":[{"package":{"name":"a"}},{"package":{"name":"a"}},{"package":{"name":"b"}}]}`,
		"GO-2.json": `{"id":"GO-2","affected":[{"package":{"name":"a"}}]}`,
	}), t.TempDir()
	if n, err := build(from, to); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	var modules []moduleEntry
	read(t, filepath.Join(to, "index", "modules.json"), &modules)
	if len(modules) != 2 || modules[0].Path != "a" || len(modules[0].Vulns) != 2 || len(modules[1].Vulns) != 1 {
		t.Errorf("modules: %+v", modules)
	}
	var advisory struct{ Modified, Published string }
	read(t, filepath.Join(to, "ID", "GO-1.json"), &advisory)
	if advisory.Modified == "0001-01-01T00:00:00Z" || advisory.Published == "" {
		t.Errorf("the times stay at zero: %+v", advisory)
	}
}

func TestRefusesBrokenSources(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":       {},
		"no JSON":       {"GO-1.json": "{"},
		"another's id":  {"GO-1.json": `{"id":"GO-2"}`},
		"path as an id": {"GO-1.json": `{"id":"../x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := build(source(t, files), t.TempDir()); err == nil {
				t.Errorf("%d advisories indexed", n)
			}
		})
	}
}

func read(t *testing.T, name string, v any) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
