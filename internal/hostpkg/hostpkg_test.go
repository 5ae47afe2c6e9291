package hostpkg_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostpkg"
)

// debian makes the records of a host with these packages.
func debian(t *testing.T, lists map[string]string, status string) string {
	t.Helper()
	root := t.TempDir()
	info := filepath.Join(root, "var/lib/dpkg/info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range lists {
		if err := os.WriteFile(filepath.Join(info, name+".list"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), []byte(status), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestDebianFilesHaveOwners(t *testing.T) {
	root := debian(t, map[string]string{
		"runc": "/.\n/usr\n/usr/sbin\n/usr/sbin/runc\n", "tools:amd64": "/.\n/bin/crun\n", "other": "/usr/sbin/runc.d\n", "gone": "/usr/bin/gone\n",
	}, "Package: other\nStatus: install ok installed\nVersion: 9\nDescription: x\n Package: runc\n\n"+
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 2\n\n"+
		"Package: runc\nStatus: install ok installed\nVersion: 1.1.5+ds1-1+deb12u1\n\nPackage: tools\nStatus: hold ok installed\nVersion: 1:3-1\n")
	for path, want := range map[string]hostpkg.Owner{
		"/usr/sbin/runc": {"deb", "runc", "1.1.5+ds1-1+deb12u1"},
		"/sbin/runc":     {"deb", "runc", "1.1.5+ds1-1+deb12u1"},
		"/usr/bin/crun":  {"deb", "tools", "1:3-1"},
	} {
		if got, err := hostpkg.Of(t.Context(), root, path); err != nil || got != want {
			t.Errorf("%s belongs to %+v, %v", path, got, err)
		}
	}
	for _, path := range []string{"/usr/sbin/run", "/usr/local/bin/runc", "/usr/bin/gone", "/usr/sbin/runc.d/x"} {
		if got, err := hostpkg.Of(t.Context(), root, path); !errors.Is(err, hostpkg.ErrNone) {
			t.Errorf("%s belongs to %+v, %v", path, got, err)
		}
	}
}

func TestNoRecordsAreNoOwner(t *testing.T) {
	if got, err := hostpkg.Of(t.Context(), t.TempDir(), "/usr/sbin/runc"); !errors.Is(err, hostpkg.ErrNone) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEndlessLinesAreAnError(t *testing.T) {
	root := debian(t, map[string]string{"runc": strings.Repeat("x", 1<<20)}, "")
	if got, err := hostpkg.Of(t.Context(), root, "/usr/sbin/runc"); err == nil || errors.Is(err, hostpkg.ErrNone) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestThisHostsOwnFiles: dpkg's records here, if there are any, know their own
// program.
func TestThisHostsOwnFiles(t *testing.T) {
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		t.Skip("not applicable: this host does not use dpkg")
	}
	if got, err := hostpkg.Of(t.Context(), "/", "/usr/bin/dpkg"); err != nil || got.Name != "dpkg" || got.Version == "" {
		t.Errorf("%+v, %v", got, err)
	}
}
