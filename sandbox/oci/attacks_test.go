package oci_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/proof"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// carrying is the first argument of a runner that holds files which whatever it
// starts would inherit.
const carrying = "runner-carrying-files"

// carried is how many it holds besides its own.
const carried = 50

// init is that runner: it starts itself anew on the way, so both times it opens
// what it should hold.
func init() {
	if len(os.Args) < 2 || os.Args[1] != carrying {
		return
	}
	for range carried {
		// On purpose without O_CLOEXEC.
		if _, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0); err != nil {
			fmt.Fprintln(os.Stderr, "holding files:", err)
			os.Exit(1)
		}
	}
	os.Exit(runner.Main(os.Args[2:], runner.Parts{Open: oci.Open}))
}

// TestA04RunnersFilesStayOutside: what the runner holds reaches neither PID 1
// nor a command.
func TestA04RunnersFilesStayOutside(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			config := configOf(t, "test-a04-"+runtime, runtime)
			config.Args = []string{carrying}
			c := start(t, config)
			if held := descriptors(t, c.Pid()); len(held) < carried {
				t.Fatalf("the runner holds %d files: the check is blind", len(held))
			}
			l := small(t)
			job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "a04", Limits: l})
			if err != nil {
				t.Fatal(err)
			}
			box, err := job.Create(t.Context(), sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: l})
			if err != nil {
				t.Fatal(err)
			}
			got, err := proof.Config{Isolation: isolations[runtime]}.One(t.Context(), box, l, "descriptors")
			if err != nil || !got.Enforced {
				t.Errorf("a command's descriptors: %v %s", err, got.Seen)
			}
			own, _ := os.Executable()
			for _, pid := range children(t, c.Pid()) {
				if held := descriptors(t, pid); runtime == "runc" && slices.Contains(held, own) {
					t.Errorf("PID 1 holds the runner's files: %v", held)
				}
			}
		})
	}
}

// isolations of the runtimes.
var isolations = map[string]sandbox.Isolation{"runc": sandbox.IsolationUserns, "runsc": sandbox.IsolationGVisor}

// descriptors are what a process holds, by where they lead.
func descriptors(t *testing.T, pid int) []string {
	t.Helper()
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is well formed
	var all []string
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			all = append(all, to)
		}
	}
	return all
}

// TestA05NoRuntimeEntersALiveSandbox: through a sandbox's whole life the OCI
// runtime is asked to start and to forget, never to execute something inside.
// What asks is the same code for every runtime; runsc can't be wrapped, since
// it is known by its own processes.
func TestA05NoRuntimeEntersALiveSandbox(t *testing.T) {
	config := config(t, "test-a05")
	dir := t.TempDir()
	log, wrapper := filepath.Join(dir, "log"), filepath.Join(dir, "runc")
	sandboxtest.WriteProgram(t, wrapper, fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", log, config.Runtime), 0o755)
	config.Runtime = wrapper
	wholeLife(t, start(t, config))
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	verbs := verbsOf(string(raw))
	if !slices.Contains(verbs, "run") {
		t.Errorf("the runtime was asked to %q: the check is blind:\n%s", verbs, raw)
	}
	for _, verb := range verbs {
		if !slices.Contains([]string{"run", "delete", "kill", "state", "--version"}, verb) {
			t.Errorf("the runtime was asked to %q:\n%s", verb, raw)
		}
	}
}

// verbsOf finds what each call of a runtime is about: the first word that is no
// option and no option's value.
func verbsOf(log string) []string {
	known := []string{
		"run", "delete", "kill", "state", "exec", "create", "start", "spec", "update", "pause", "resume", "checkpoint", "restore",
		"do", "ps", "events", "wait", "port-forward", "debug",
	}
	var verbs []string
	for line := range strings.Lines(log) {
		words := strings.Fields(line)
		at := slices.IndexFunc(words, func(w string) bool { return slices.Contains(known, w) })
		switch {
		case at >= 0:
			verbs = append(verbs, words[at])
		case slices.Contains(words, "--version"):
			verbs = append(verbs, "--version")
		default:
			verbs = append(verbs, strings.TrimSpace(line))
		}
	}
	return verbs
}

// wholeLife probes, runs commands that end well and badly, freezes, collects.
func wholeLife(t *testing.T, c *runner.Client) {
	t.Helper()
	ctx := context.Background()
	if _, err := c.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	l := small(t)
	job, err := c.OpenJob(ctx, sandbox.JobSpec{ID: "a05", Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close(ctx)
	for _, end := range []func(sandbox.Sandbox) error{
		func(b sandbox.Sandbox) error {
			_, err := b.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
			return err
		},
		func(b sandbox.Sandbox) error { return b.Collect(ctx, &strings.Builder{}) },
		func(b sandbox.Sandbox) error { return b.Close(ctx) },
	} {
		box, err := job.Create(ctx, sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: l})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{attack.Identity, attack.Doors} {
			if _, err := box.Run(ctx, sandbox.Command{Argv: []string{sandbox.InitPath, attack.Mode, name}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(box); err != nil {
			t.Error(err)
		}
	}
}
