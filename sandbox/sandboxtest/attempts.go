package sandboxtest

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// soaking says that the long versions of the cases are wanted.
func soaking() bool { return os.Getenv("VEYRA_SOAK") == "1" }

// try runs a command that may take the sandbox with it.
func (b *Box) try(cmd sandbox.Command) (sandbox.Exit, string, error) {
	b.t.Helper()
	var out bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	exit, err := b.Run(ctxOf(b.t), cmd)
	return exit, out.String(), err
}

// background starts a command that says "up" when it has begun, and returns
// what waits for its end.
func (b *Box) background(cmd sandbox.Command) func() (sandbox.Exit, error) {
	b.t.Helper()
	reader, writer := io.Pipe()
	cmd.Stdout = writer
	type end struct {
		exit sandbox.Exit
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, err := b.Run(ctxOf(b.t), cmd)
		_ = writer.Close()
		ended <- end{exit, err}
	}()
	if _, err := io.ReadFull(reader, make([]byte, 3)); err != nil {
		b.t.Errorf("a command that should say that it is up: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }() // ends with the command
	return func() (sandbox.Exit, error) { e := <-ended; return e.exit, e.err }
}

// merged are the cases of several files in one table; a name twice is a fault
// of the suite.
func merged(all ...map[string]func(*testing.T, Host)) map[string]func(*testing.T, Host) {
	sum := map[string]func(*testing.T, Host){}
	for _, cases := range all {
		for name, run := range cases {
			if sum[name] != nil {
				panic("two cases are called " + name)
			}
			sum[name] = run
		}
	}
	return sum
}
