// Package hostlocktest gives tests a directory for locks, in place of the one that all
// instances of the host share. It is for tests only. Start reading at Root.
package hostlocktest

import (
	"os"
	"testing"
)

// Root opens an empty directory that goes with the test. Its Name is the path.
func Root(t testing.TB) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}
