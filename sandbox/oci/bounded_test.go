package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755), os.WriteFile(program, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := startBound(firstRange, program, []string{"init"}); err == nil {
		t.Fatal("a program was executed that is open for writing: the check is blind")
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = writer.Close() })
	n, err := boundedNamespace(firstRange, base)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
