package policies

import (
	"errors"
	"strings"
	"testing"
)

// TestDecodeIsStrict changes one thing of a good file at a time.
func TestDecodeIsStrict(t *testing.T) {
	good, err := dataFiles.ReadFile("data/strict.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode("strict", good); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct{ old, new string }{
		{"name: strict", "name: lax"},
		{"name: strict", "name: strict\nname: strict"},
		{"name: strict", "name: strict\nunknown: 1"},
		{"cpus: 2", "cpus: two"},
		{"cpus: 2", "cpus: -1"},
		{"pids: 512", "pids: 0"},
		{"pids: 512", ""},
		{"memory: 4GiB", "memory: 4GB"},
		{"memory: 4GiB", "memory: 512MiB"},
		{"memory: 4GiB", "memory: -4GiB"},
		{"memory: 4GiB", "memory: 9999999999GiB"},
		{"disk: 10GiB", "disk: 1GiB"},
		{"setup_percent: 30", "setup_percent: 91"},
		{"test_percent: 25", "test_percent: 0"},
		{"minutes: 240", "minutes: 241"},
		{"repairs: 5", "repairs: -1"},
		{"network: registries", "network: open"},
		{"scripts: off", "scripts: on"},
		{"fetch_tree: manifests", "fetch_tree: all"},
		{"user_namespace: true", "user_namespace: maybe"},
		{"tunnels: 64", "tunnels: 64, extra: 1"},
	} {
		if !strings.Contains(string(good), change.old) {
			t.Fatalf("the file has no %q", change.old)
		}
		text := strings.Replace(string(good), change.old, change.new, 1)
		if p, err := decode("strict", []byte(text)); !errors.Is(err, ErrPolicyInvalid) {
			t.Errorf("%q for %q: %+v, %v", change.new, change.old, p.Limits, err)
		}
	}
	if _, err := decode("strict", make([]byte, maxPolicyBytes+1)); !errors.Is(err, ErrPolicyInvalid) {
		t.Errorf("a large file: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "4KiB": 4096, "64 MiB": 64 << 20, " 2GiB ": 2 << 30, "1TiB": 1 << 40, "9223372036854775807": 1<<63 - 1,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "GiB", "1GB", "1.5GiB", "-1", "9223372036854775808", "8388608TiB", "0x10", "1 G iB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q = %d", text, got)
		}
	}
}

func TestKnownNamesCompile(t *testing.T) {
	known, err := loadNames()
	if err != nil || len(known.manifests) < 50 || len(known.migrations) == 0 {
		t.Fatalf("%d manifests, %d migrations, %v", len(known.manifests), len(known.migrations), err)
	}
	// The names that the protocol lists itself.
	for _, path := range []string{
		"requirements.txt", "pyproject.toml", "package.json", "package-lock.json", "pnpm-lock.yaml", "yarn.lock", "poetry.lock",
		"a/b/Gemfile.lock", "GO.MOD", "x/app.csproj", "requirements/dev.txt",
	} {
		if _, hit := firstName(known.manifests, newSubject(path), false); !hit {
			t.Errorf("%q is no manifest", path)
		}
	}
	for _, path := range []string{"a.txt", "docs/requirements.md", "package.json.md", "src/go.mod.go", "requirement.txt"} {
		if rule, hit := firstName(known.manifests, newSubject(path), false); hit {
			t.Errorf("%q is taken for a manifest by %q", path, rule)
		}
	}
}
