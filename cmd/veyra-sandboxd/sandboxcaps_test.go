package main_test

import (
	"bufio"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSandboxRunPowers looks at the command itself while a sandbox of it runs: it
// keeps a capability only where there is an owner's directory to read.
func TestSandboxRunPowers(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	for _, c := range []struct {
		name string
		args []string
		want uint64
	}{
		{"without a directory", nil, 0},
		{"with a directory", []string{"-C", t.TempDir()}, mask(unix.CAP_DAC_READ_SEARCH)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"sandbox", "run", "--policy", "strict", "--config", frugal(t)}, c.args...)
			args = append(args, "--", "sh", "-c", "echo up; cat")
			until(t, "the sandbox runs", func() bool { return whileItRuns(t, args, func(pid int) { wantCapabilities(t, c.name, pid, c.want) }) })
		})
	}
}

// whileItRuns calls look once the command has said a line; false: it ended
// before, since the host had no room.
func whileItRuns(t *testing.T, args []string, look func(pid int)) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), house.daemon, args...)
	cmd.Env = environ()
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if inErr != nil || outErr != nil || cmd.Start() != nil {
		t.Fatalf("starting %v: %v %v", args, inErr, outErr)
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if line == "up\n" {
		look(cmd.Process.Pid)
	}
	_ = stdin.Close()
	err := cmd.Wait()
	return err == nil && line == "up\n"
}
