package linux

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMarksAreTrustedInTheHostsNamespaceOnly: in any other the kernel keeps an
// overlay's marks where the user may write.
func TestMarksAreTrustedInTheHostsNamespaceOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "uid_map")
	for text, mapped := range map[string]bool{
		"         0          0 4294967295\n": false, "0 1000 1\n1 100000 65536\n": true, "0 0 65536\n": true, "": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := isMapped(path); got != mapped {
			t.Errorf("%q: mapped %t", text, got)
		}
	}
}
