package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestNamespaceWaitsForItsProgram: a process that was forked while the program
// was copied may have it open for a moment.
func TestNamespaceWaitsForItsProgram(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	base := t.TempDir()
	program := filepath.Join(base, sandbox.InitPath)
	text := "#!/bin/sh\necho bounded\nexec cat\n"
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755), os.WriteFile(program, []byte(text), 0o755),
		os.Chmod(filepath.Dir(base), 0o755)); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(base, "userns")
	if _, err := startBound(firstRange, program, []string{"init"}, at); !errors.Is(err, unix.ETXTBSY) {
		t.Fatalf("a program that is open for writing gave %v: the check is blind", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = writer.Close() })
	cmd, err := boundedNamespace(firstRange, base, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(namespace(at).Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
