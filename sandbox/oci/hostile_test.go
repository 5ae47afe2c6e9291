package oci_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// script writes a program that stands in for a runtime.
func script(t testing.TB, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	sandboxtest.WriteProgram(t, path, text, mode)
	return path
}

// probeWith probes with a runtime's file and wants everything gone afterwards.
func probeWith(t *testing.T, instance, path string) error {
	t.Helper()
	config := config(t, instance)
	config.Runtime, config.Stderr = path, nil
	c, err := runner.Start(context.Background(), config)
	if err == nil {
		_, err = c.Probe(context.Background())
		_ = c.Close()
	}
	wantClean(t, config)
	return err
}

// saysRunc answers --version as runc does.
const saysRunc = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo runc version 1.5.3; exit; fi\n"

// TestJ08BrokenRuntimes starts with files that are no runtime, or that others
// could replace: the probe says which it is.
func TestJ08BrokenRuntimes(t *testing.T) {
	pidFile := `while [ "$1" != --pid-file ]; do shift; done; `
	for i, c := range []struct{ name, path, want string }{
		{"missing", filepath.Join(t.TempDir(), "runc"), "no such file"},
		{"writable by others", script(t, "runc", saysRunc, 0o777), "others than its owner may change it"},
		{"not executable", script(t, "runc", saysRunc, 0o644), "permission denied"},
		{"of no known name", script(t, "kata", saysRunc, 0o755), "is called none of"},
		{"dies at once", script(t, "runc", "#!/bin/sh\nkill -9 $$\n", 0o755), "signal: killed"},
		{"says nothing", script(t, "runc", "#!/bin/sh\nexit 0\n", 0o755), "not the version of runc"},
		{"says garbage", script(t, "runc", "#!/bin/sh\nhead -c 100000 /dev/urandom\n", 0o755), "not the version of runc"},
		{"another one", script(t, "runsc", saysRunc, 0o755), "not the version of runsc"},
		{"hangs when asked", script(t, "runc", "#!/bin/sh\nsleep 1000 & wait\n", 0o755), "asking the runtime for its version"},
		{"hangs in create", script(t, "runc", saysRunc+"sleep 1000 & wait\n", 0o755), "starting container"},
		{"ends 137", script(t, "runc", saysRunc+"exit 137\n", 0o755), "exit status 137"},
		{"dies in create by 9", script(t, "runc", saysRunc+"kill -9 $$\n", 0o755), "signal: killed"},
		{"dies in create by 11", script(t, "runc", saysRunc+"kill -11 $$\n", 0o755), "signal: segmentation fault"},
		{"starts nothing", script(t, "runc", saysRunc+"exit 0\n", 0o755), "reading pid file"},
		{"names a stranger", script(t, "runc", saysRunc+pidFile+fmt.Sprintf("echo %d > $2\n", os.Getpid()), 0o755), "no process"},
		{"names nothing", script(t, "runc", saysRunc+pidFile+"echo none > $2\n", 0o755), "reading pid file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := probeWith(t, fmt.Sprintf("test-broken-%d", i), c.path)
			if sandbox.KindOf(err) != sandbox.KindStart || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v, want the start to fail with %q", err, c.want)
			}
		})
	}
}

// altering is a runtime that changes what it is asked for, then does it.
const altering = `#!/usr/bin/python3
import json, os, sys
real = %q
if "run" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    spec = json.load(open(path))
    process, linux = spec["process"], spec["linux"]
    resources = linux["resources"]
    def mount(at): return next(m for m in spec["mounts"] if m["destination"] == at)
    %s
    json.dump(spec, open(path, "w"))
os.execv(real, [real] + sys.argv[1:])
`

// TestJ08RuntimesThatApplyLess leave one control out each: the probe names it,
// so nothing is ever run without.
func TestJ08RuntimesThatApplyLess(t *testing.T) {
	for i, c := range []struct{ name, edit, runtime string }{
		{"seccomp", `del linux["seccomp"]`, "runc"},
		{"memory", `del resources["memory"]`, "runc"},
		{"pids", `del resources["pids"]`, "runc"},
		{"cpu", `del resources["cpu"]`, "runc"},
		{"init_capabilities", `process["capabilities"]["bounding"].append("CAP_SYS_ADMIN")`, "runc"},
		{"open_files", `process["rlimits"] = []`, "runc"},
		{"namespaces", `linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "network"]; del linux["sysctl"]; spec["mounts"].remove(mount("/sys"))`, "runc"},
		{"namespaces", `linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "ipc"]; spec["mounts"].remove(mount("/dev/mqueue"))`, "runc"},
		{"root_read_only", `spec["root"]["readonly"] = False`, "runc"},
		{"mounts", `mount("/run")["options"].remove("nosuid")`, "runc"},
		{"shm", `mount("/dev/shm")["options"] = ["nosuid", "nodev", "size=512m"]`, "runc"},
		// It is not the program that was looked at: a guest's kernel would be.
		{"the runtime has another isolation", "pass", "runsc"},
	} {
		t.Run(c.runtime+" "+c.name, func(t *testing.T) {
			t.Parallel()
			path := script(t, c.runtime, fmt.Sprintf(altering, program(t, c.runtime), c.edit), 0o755)
			err := probeWith(t, fmt.Sprintf("test-less-%d", i), path)
			if sandbox.KindOf(err) != sandbox.KindStart || !strings.Contains(fmt.Sprint(err), c.name) {
				t.Errorf("%v, want the start to fail with %q", err, c.name)
			}
		})
	}
}
