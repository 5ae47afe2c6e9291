package main_test

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs what needs no sandbox: usage, help and settings, as an
// operator types it. Each file of testdata/script is a case.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", house.dir+":"+env.Getenv("PATH"))
			env.Setenv("VEYRA_CACHE_DIR", env.WorkDir+"/cache")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits CODE COMMAND…: the program must end with this status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	all := append([]string{"-c", `want=$1; shift; "$@"; got=$?; [ "$got" = "$want" ] || { echo "exit status $got, want $want" >&2; exit 1; }`, "sh"}, args...)
	if err := ts.Exec("sh", all...); err != nil {
		ts.Fatalf("%v", err)
	}
}
