package main_test

import (
	"bytes"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// attacked runs an attack under an init that nothing but its own ids, its four
// capabilities and its namespaces confines.
func attacked(t *testing.T, args ...string) map[string]attack.Try {
	t.Helper()
	p := dial(t)
	c := initwire.Command{
		Flags: initwire.Merged | initwire.NoStdin, Dir: "/workspace", Argv: append([]string{"/.veyra/init", attack.Mode}, args...),
		Env: []string{"PATH=/usr/bin:/bin", "TOKEN=canary"},
	}
	p.send(t, initwire.Start, 1, c.Encode())
	var out bytes.Buffer
	for f := p.next(t); f.Type != initwire.Exited; f = p.next(t) {
		out.Write(f.Payload)
	}
	tries, err := attack.Parse(&out)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	all := map[string]attack.Try{}
	for _, try := range tries {
		all[try.Name] = try
	}
	return all
}

// TestAttacksSeeOpenDoors: where nothing keeps it, an attack says that it got
// through. An attack that can't succeed proves nothing by its failure.
func TestAttacksSeeOpenDoors(t *testing.T) {
	for _, c := range []struct{ attack, name, want string }{
		{attack.Identity, "Seccomp", attack.Seen},
		{attack.Calls, "keyctl", attack.Done},
		{attack.Calls, "kcmp", attack.Done},
		{attack.Calls, "personality", attack.Done},
		{attack.Families, "af_16_high", attack.Done},
		{attack.Families, "netlink_15", attack.Done},
		{attack.Environment, "variable_1", attack.Seen},
		{attack.Masked, "/proc/key-users", attack.Done},
		{attack.Root, "create@/tmp", ""},
		{attack.Alone, "others", attack.Seen},
	} {
		if got := attacked(t, c.attack)[c.name]; got.Result != c.want {
			t.Errorf("%s: %s gave %+v, want %q", c.attack, c.name, got, c.want)
		}
	}
	if got := attacked(t, attack.Identity)["Seccomp"]; got.Detail != "0" {
		t.Errorf("without a filter: %+v", got)
	}
}

// TestAttacksGiveUpByThemselves: with nothing to stop them they end where the
// caller says.
func TestAttacksGiveUpByThemselves(t *testing.T) {
	for _, c := range []struct{ attack, name, bound string }{
		{attack.PIDs, "fork", "5"},
		{attack.Memory, "touch", "33554432"},
		{attack.Disk, "bytes", "1048576"},
		{attack.Inodes, "files", "50"},
		{attack.OpenFiles, "open", "20"},
	} {
		if got := attacked(t, c.attack, c.bound)[c.name]; got.Result != attack.Done || got.Detail != c.bound {
			t.Errorf("%s up to %s gave %+v", c.attack, c.bound, got)
		}
	}
}
