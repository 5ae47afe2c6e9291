package main_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// house is the built daemon and what it needs, shared by all tests of this
// package: they start it as an operator does, as a process.
var house struct {
	dir    string // holds the daemon and its helpers
	daemon string
	cache  string
	// why tells what real sandboxes lack here; "" if nothing.
	why string
}

func TestMain(m *testing.M) {
	sandboxtest.OrdinaryMain()
	flag.Parse()
	// These tests wait for beats more than they work.
	if parallel := flag.Lookup("test.parallel"); parallel != nil && runtime.GOMAXPROCS(0) < 6 {
		_ = parallel.Value.Set("6")
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "veyra-daemon-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	house.dir = dir
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	house.why = lacking()
	return m.Run()
}

// build makes the daemon from these sources. Its helpers are laid over the
// directory that it embeds, so that the working tree stays as it is.
func build() error {
	replace := map[string]string{}
	for _, helper := range []string{"veyra-init", "veyra-git"} {
		made := filepath.Join(house.dir, "made-"+helper)
		if err := goBuild("-ldflags=-s -w", "-o", made, "../"+helper); err != nil {
			return err
		}
		place, err := filepath.Abs(filepath.Join("helpers", helper))
		if err != nil {
			return err
		}
		replace[place] = made
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	list := filepath.Join(house.dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return err
	}
	house.daemon = filepath.Join(house.dir, "veyra-sandboxd")
	// mkdtemp's 0700 would keep the supervisor's own id from its own program.
	return errors.Join(os.Chmod(house.dir, 0o755), goBuild("-overlay="+list, "-o", house.daemon, "."))
}

func goBuild(args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %v: %w: %s", args, err, out)
	}
	return nil
}

// lacking tells why no real sandbox can run here.
func lacking() string {
	house.cache = os.Getenv("VEYRA_CACHE_DIR")
	if house.cache == "" {
		house.cache = "/var/cache/veyra-sandboxd"
	}
	if os.Getuid() != 0 {
		return "needs root"
	}
	store, err := images.Open(filepath.Join(house.cache, "images"))
	if err != nil {
		return "the image store can't be opened: " + err.Error()
	}
	if _, err := store.Lookup("python"); err != nil {
		return "no python image (`make image` builds it)"
	}
	if _, err := os.Stat(runtimePath()); err != nil {
		if _, err := exec.LookPath("runc"); err != nil {
			return "no runc (`make setup` builds it)"
		}
	}
	return ""
}

// runtimePath is where make setup puts the OCI runtime.
func runtimePath() string {
	path, _ := filepath.Abs("../../bin/runc")
	return path
}

// needSandboxes skips a test where none can run.
func needSandboxes(t testing.TB) {
	t.Helper()
	if house.why != "" {
		t.Skip("not applicable: " + house.why)
	}
}

// environ is the least that a command of ours gets: nothing of the machine's.
func environ(more ...string) []string {
	return append([]string{
		"PATH=" + filepath.Dir(runtimePath()) + ":" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C.UTF-8",
		"VEYRA_CACHE_DIR=" + house.cache,
		// The strongest is slower: tests of it name it.
		"VEYRA_SANDBOX_RUNTIME=runc",
	}, more...)
}

// said is how a command ended.
type said struct {
	code     int
	out, err string
}

// command runs a command of the built program to its end.
func command(t testing.TB, env []string, args ...string) said {
	t.Helper()
	return commandIn(t, env, "", args...)
}

func commandIn(t testing.TB, env []string, stdin string, args ...string) said {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), house.daemon, args...)
	var out, errs strings.Builder
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ(env...), strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	return said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want fails unless a command ended with code.
func (s said) want(t testing.TB, code int) said {
	t.Helper()
	if s.code != code {
		t.Fatalf("exit status %d, want %d\nstdout: %s\nstderr: %s", s.code, code, s.out, s.err)
	}
	return s
}

func writeFile(t testing.TB, path, text string, perm os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), perm)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
