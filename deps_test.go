package veyra_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/veyra-labs/veyra-sandboxd"

// arrows is the whole list of imports between our packages. A package is
// matched by its longest entry; internal/* may be imported by all and imports
// nothing but internal/*. A missing arrow is a security statement: jobs cannot
// sign, submit or write the journal; sandbox has no type for a token; the
// supervisor has no sandbox, git or provider.
var arrows = map[string]string{
	"protocol":        "",
	"gitops":          "",
	"provider":        "",
	"images":          "",
	"internal":        "",
	"policies":        "protocol",
	"controlplane":    "protocol",
	"journal":         "protocol",
	"signer":          "protocol",
	"gitops/wire":     "gitops protocol",
	"gitops/pulls":    "gitops protocol",
	"gitops/worker":   "gitops",
	"provider/openai": "provider",
	"sandbox":         "policies images",
	"sandbox/runner":  "sandbox policies images",
	"sandbox/proof":   "sandbox policies images",
	"sandbox/linux":   "sandbox policies images",
	"sandbox/oci":     "sandbox sandbox/linux policies images",
	"sandbox/docker":  "sandbox sandbox/linux policies images",
	"jobs/coding":     "provider sandbox policies protocol",
	"jobs":            "jobs/coding gitops gitops/wire gitops/pulls sandbox policies images provider protocol",
	"supervisor":      "jobs controlplane journal signer protocol policies",
	"cmd/veyra-init":  "",
	"cmd/veyra-git":   "gitops gitops/worker",
	"cmd/veyra-sandboxd": "supervisor jobs jobs/coding controlplane journal signer protocol policies gitops gitops/wire gitops/pulls" +
		" sandbox sandbox/linux sandbox/runner sandbox/proof sandbox/oci sandbox/docker images provider provider/openai",
	"cmd/veyra-devplane": "protocol gitops controlplane",
}

// foreign lists modules that are at home in few rooms only.
var foreign = map[string]string{
	"github.com/go-git/go-git":                   "gitops/worker",
	"github.com/go-git/go-billy":                 "gitops/worker",
	"github.com/docker/docker":                   "sandbox/docker",
	"github.com/containerd/errdefs":              "sandbox/docker",
	"github.com/opencontainers/runtime-spec":     "sandbox/oci policies",
	"github.com/moby/profiles/seccomp":           "policies",
	"github.com/opencontainers/umoci":            "images",
	"github.com/google/go-containerregistry":     "images",
	"modernc.org/sqlite":                         "journal",
	"github.com/spf13/cobra":                     "cmd/veyra-sandboxd cmd/veyra-devplane",
	"github.com/prometheus/client_golang":        "internal/telemetry supervisor",
	"github.com/elastic/go-seccomp-bpf":          "internal/confine images",
	"github.com/landlock-lsm/go-landlock":        "internal/confine images",
	"github.com/cenkalti/backoff":                "controlplane provider/openai supervisor",
	"golang.org/x/crypto":                        "supervisor",
	"golang.org/x/time":                          "supervisor",
	"github.com/BurntSushi/toml":                 "policies",
	"github.com/goccy/go-yaml":                   "policies cmd/veyra-sandboxd",
	"github.com/coreos/go-systemd":               "cmd/veyra-sandboxd",
	"github.com/schollz/progressbar":             "cmd/veyra-sandboxd",
	"rsc.io/qr":                                  "cmd/veyra-sandboxd",
	"github.com/rogpeppe/go-internal/testscript": "",
	"github.com/google/go-cmp":                   "",
	"pgregory.net/rapid":                         "",
	"go.uber.org/goleak":                         "",
}

// TestImportsPointDown parses every file that is not a test and fails on any
// import of ours that is no arrow. It reads the files by itself: what a
// sub-process reads is hidden from the test cache.
func TestImportsPointDown(t *testing.T) {
	for file, imports := range importsOf(t) {
		from := filepath.ToSlash(filepath.Dir(file))
		for _, to := range imports {
			if why := judgeImport(from, to); why != "" {
				t.Errorf("%s imports %s: %s", file, to, why)
			}
		}
	}
}

func importsOf(t *testing.T) map[string][]string {
	found := map[string][]string{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "tools" || d.Name() == "bin" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			to, _ := strconv.Unquote(spec.Path.Value)
			found[file] = append(found[file], to)
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("reading the tree: %v (%d files)", err, len(found))
	}
	return found
}

func judgeImport(from, to string) string {
	if ours, found := strings.CutPrefix(to, module+"/"); found {
		return judgeArrow(from, ours)
	}
	for name, rooms := range foreign {
		if to == name || strings.HasPrefix(to, name+"/") {
			if !isTestRoom(from) && !containsRoom(rooms, from) {
				return "this module is at home in: " + rooms
			}
		}
	}
	return ""
}

func judgeArrow(from, to string) string {
	if isTestRoom(from) || from == to {
		return "" // fakes and suites serve tests; they may see what tests see
	}
	if isTestRoom(to) {
		if from == "cmd/veyra-devplane" {
			return ""
		}
		return "a test package is for tests and veyra-devplane"
	}
	if strings.HasPrefix(to, "internal/") {
		return ""
	}
	allowed, known := arrows[roomOf(from)]
	if !known {
		return "the package has no entry in the list of arrows"
	}
	if !containsRoom(allowed, to) {
		return "no such arrow (allowed: " + allowed + ")"
	}
	return ""
}

// roomOf maps internal/x to internal and everything else to itself.
func roomOf(dir string) string {
	if strings.HasPrefix(dir, "internal/") {
		return "internal"
	}
	return dir
}

func isTestRoom(dir string) bool { return strings.HasSuffix(path.Base(dir), "test") }

func containsRoom(rooms, dir string) bool {
	for _, room := range strings.Fields(rooms) {
		if room == dir {
			return true
		}
	}
	return false
}

// TestArrowsRefuse shows that the judgement above can fail.
func TestArrowsRefuse(t *testing.T) {
	for from, to := range map[string]string{
		"jobs":           module + "/signer",
		"supervisor":     module + "/sandbox",
		"sandbox/oci":    module + "/protocol",
		"protocol":       module + "/policies",
		"gitops":         "github.com/go-git/go-git/v5/plumbing",
		"jobs/coding":    module + "/gitops",
		"controlplane":   module + "/controlplane/controlplanetest",
		"sandbox/runner": module + "/gitops/worker",
	} {
		if judgeImport(from, to) == "" {
			t.Errorf("%s may import %s", from, to)
		}
	}
}
