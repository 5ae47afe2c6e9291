package main_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// weakRuntime is what a stand-in of runc does; see testdata/weakrunc.
type weakRuntime struct {
	Real    string
	Version string
	Take    []string
}

// Programs of testdata, made once for all tests.
var (
	buildWeak     = sync.OnceValues(func() (string, error) { return buildTool("weakrunc") })
	buildNoUserns = sync.OnceValues(func() (string, error) { return buildTool("nouserns") })
)

func buildTool(name string) (string, error) {
	path := filepath.Join(house.dir, name)
	return path, goBuild("-ldflags=-s -w", "-o", path, "./testdata/"+name)
}

// withWeakRuntime makes a directory whose runc is the stand-in.
func withWeakRuntime(t *testing.T, w weakRuntime) string {
	t.Helper()
	needSandboxes(t)
	runtimesIn(t, map[string]string{"runc": ""}) // skips where there is none
	built, err := buildWeak()
	if err != nil {
		t.Fatal(err)
	}
	w.Real = runtimePath()
	orders, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sandboxtest.WriteProgram(t, filepath.Join(dir, "runc"), readFile(t, built), 0o755)
	writeFile(t, filepath.Join(dir, "runc.json"), string(orders), 0o644)
	return dir
}

// takeAway is one control that a host does not give.
type takeAway struct {
	name string
	// names is what the refusal must say.
	names string
	// runtime is a directory with the runc to use.
	runtime func(t *testing.T) string
	// prelude is a shell command in a mount namespace of its own.
	prelude string
	// under runs the daemon under another program; nil: under none.
	under func() (string, error)
}

// takeAways leave out one thing each: the runtime, parts of what it is asked
// for, or what the host has for it.
var takeAways = []takeAway{
	{name: "no runtime", names: "runc", runtime: func(t *testing.T) string { return t.TempDir() }},
	taken("seccomp", "seccomp"),
	taken("memory", "memory"), taken("pids", "pids"), taken("cpu", "cpu"),
	taken("network", "network"), taken("root_read_only", "root_read_only"),
	{name: "no user namespace", names: "user_namespaces", runtime: realRuntime, under: buildNoUserns},
	{
		name: "no quota", names: "loop_devices", runtime: realRuntime,
		// A /dev without loop-control: what the others need is bound into it.
		prelude: `d=/mnt && mount -t tmpfs dev "$d" && for n in null zero full random urandom tty; do : >"$d/$n" && mount --bind /dev/$n "$d/$n"; done` +
			` && mkdir "$d/shm" "$d/pts" && mount --rbind "$d" /dev`,
	},
}

func taken(part, names string) takeAway {
	return takeAway{name: "no " + part, names: names, runtime: func(t *testing.T) string {
		return withWeakRuntime(t, weakRuntime{Take: []string{part}})
	}}
}

func realRuntime(t *testing.T) string { return runtimesIn(t, map[string]string{"runc": ""}) }

// ended runs the daemon's program with the control taken away. What costs no
// room on the host is tried until there is some.
func (c takeAway) ended(t *testing.T, dir string, args ...string) said {
	t.Helper()
	prelude := c.prelude
	if prelude == "" {
		prelude = ":"
	}
	var got said
	until(t, "the host has room for a sandbox", func() bool {
		words := []string{"--mount", "--propagation", "private", "sh", "-c", prelude + ` && exec "$@"`, "sh"}
		words = append(append(words, c.program(t)...), args...)
		cmd := exec.CommandContext(t.Context(), "unshare", words...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.Env = environ("PATH="+dir+":/usr/sbin:/usr/bin:/sbin:/bin", "VEYRA_SANDBOX_RUNTIME=runc")
		_ = cmd.Run()
		got = said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
		return !strings.Contains(got.out+got.err, string(sandbox.KindNoRoom))
	})
	return got
}

func (c takeAway) program(t *testing.T) []string {
	t.Helper()
	if c.under == nil {
		return []string{house.daemon}
	}
	built, err := c.under()
	if err != nil {
		t.Fatal(err)
	}
	return []string{built, house.daemon}
}

// TestWhatIsTakenAwayIsNamed: doctor and run end with 4, and say what is
// missing.
func TestWhatIsTakenAwayIsNamed(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	for _, c := range takeAways {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, config := c.runtime(t), frugal(t)
			got := c.ended(t, dir, "doctor", "--json", "--policy", "strict", "--config", config).want(t, 4)
			var d diagnosed
			if err := json.Unmarshal([]byte(got.out), &d); err != nil {
				t.Fatal(err)
			}
			if d.Enforceable || !strings.Contains(d.Missing, c.names) {
				t.Errorf("doctor says %q, which does not name %s", d.Missing, c.names)
			}
			state := filepath.Join(t.TempDir(), "state")
			got = c.ended(t, dir, "run", "--policy", "strict", "--config", config, "--state-dir", state).want(t, 4)
			if last := got.err[strings.LastIndex(strings.TrimSpace(got.err), "\n")+1:]; !strings.Contains(last, c.names) {
				t.Errorf("run ends with %q, which does not name %s", last, c.names)
			}
		})
	}
}
