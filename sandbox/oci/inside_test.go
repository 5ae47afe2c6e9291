package oci

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// TestA06BundleProperties holds for every bundle that limits can make.
func TestA06BundleProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := bundle(plan{
			rootfs: "/stage/b/s1/rootfs", cgroup: "veyra-x/s1", first: firstRange, cpus: rapid.IntRange(1, 64).Draw(t, "cpus"),
			swap: rapid.Bool().Draw(t, "swap"), guest: rapid.Bool().Draw(t, "guest"),
			limits: policies.Limits{
				MemoryBytes: rapid.Int64Range(1, 1<<50).Draw(t, "memory"), PIDs: rapid.Int64Range(1, 1<<20).Draw(t, "pids"),
				ShmBytes: rapid.Int64Range(1, 1<<40).Draw(t, "shm"), OpenFiles: rapid.Int64Range(1, 1<<20).Draw(t, "files"),
			},
		})
		checkBundle(t, spec)
	})
}

func checkBundle(t *rapid.T, spec *specs.Spec) {
	if spec.Process.Terminal || !spec.Root.Readonly || !spec.Process.NoNewPrivileges {
		t.Fatal("terminal, writable root or new privileges")
	}
	if len(spec.Linux.Namespaces) != 7 || len(spec.Linux.Devices) != 0 || spec.Hooks != nil {
		t.Fatal("namespaces, devices or hooks")
	}
	fresh := map[string]string{}
	for _, m := range spec.Mounts {
		fresh[m.Destination] = m.Type
		writable := !slices.Contains(m.Options, "ro")
		if writable && (m.Destination == "/" || m.Destination == "/sys" || m.Destination == "/dev") {
			t.Fatalf("writable mount at %s", m.Destination)
		}
		if m.Type == "bind" && m.Source != spec.Root.Path+m.Destination {
			t.Fatalf("bind from %s", m.Source)
		}
		if !slices.Contains(m.Options, "nosuid") || (writable && m.Destination != "/dev/pts" && !slices.Contains(m.Options, "nodev")) {
			t.Fatalf("mount %s with %v", m.Destination, m.Options)
		}
	}
	if fresh["/dev"] != "tmpfs" || fresh["/proc"] != "proc" || fresh["/sys"] != "sysfs" {
		t.Fatalf("mounts %v", fresh)
	}
	if spec.Linux.UIDMappings[0].HostID != firstRange || strings.HasPrefix(spec.Linux.CgroupsPath, "/") {
		t.Fatal("id range or an absolute cgroup path")
	}
}

func TestRangesSkipWhatOthersHave(t *testing.T) {
	root := hostlocktest.Root(t)
	reserved := []span{{first: firstRange - 10, count: 11}, {first: firstRange + 2*rangeSize + 5, count: 1}}
	space := idSpace{firstRange, rangeCount, reserved}
	first, err := space.take(root)
	if err != nil || first.first != firstRange+rangeSize {
		t.Fatalf("first range %+v, %v", first, err)
	}
	second, err := space.take(root)
	if err != nil || second.first != firstRange+3*rangeSize {
		t.Fatalf("second range %+v, %v", second, err)
	}
	first.lock.Release()
	third, err := space.take(root)
	if err != nil || third.first != first.first {
		t.Errorf("a released range is not given again: %+v, %v", third, err)
	}
	if _, err := (idSpace{firstRange, rangeCount, []span{{first: 0, count: 1 << 32}}}).take(root); !errors.Is(err, errNoRange) {
		t.Errorf("all ids reserved: %v", err)
	}
	if _, err := hostlock.Take(root, second.lockName()); !errors.Is(err, hostlock.ErrHeld) {
		t.Errorf("a held range could be locked: %v", err)
	}
}

// TestMappedIDsAreTheUsers: what an ordinary user's jobs get lies behind the user's
// own id, in whole ranges.
func TestMappedIDsAreTheUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "uid_map")
	for text, want := range map[string]uint32{
		"0 1000 1\n1 100000 65536\n": 1, "         0       1000          1\n         1     300000     200000\n": 3,
		"0 0 4294967295\n": 0, "0 1000 1\n5 100000 65536\n": 0, "0 1000 1\n": 0, "": 0,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := mappedIDs(path)
		if got.count != want || (want == 0) != (err != nil) || err == nil && got.first != 1 {
			t.Errorf("%q gives %+v, %v; want %d ranges", text, got, err, want)
		}
	}
	root := hostlocktest.Root(t)
	one := idSpace{first: 1, count: 1}
	held, err := one.take(root)
	if err != nil || held.first != 1 {
		t.Fatalf("the range %+v, %v", held, err)
	}
	if _, err := one.take(root); !errors.Is(err, errNoRange) {
		t.Errorf("a second job in one range: %v", err)
	}
}

func (r *idRange) lockName() string {
	return "ids/" + sandboxID(r.first)
}

func sandboxID(n uint32) string {
	digits := []byte{}
	for ; n > 0; n /= 10 {
		digits = append(digits, byte('0'+n%10))
	}
	slices.Reverse(digits)
	return string(digits)
}

func TestRuntimeBesideTheExecutableComesFirst(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	dir := t.TempDir()
	for _, path := range []string{"bin/runc", "path/runc", "installed/libexec/veyra-sandboxd/runc"} {
		full := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte("x"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	executable, search := filepath.Join(dir, "daemon"), filepath.Join(dir, "path")
	if got, err := FindRuntime("runc", executable, search); err != nil || got != filepath.Join(dir, "bin", "runc") {
		t.Errorf("found %q, %v", got, err)
	}
	installed := filepath.Join(dir, "installed")
	if got, err := FindRuntime("runc", installed+"/bin/veyra-sandboxd", search); err != nil || got != installed+"/libexec/veyra-sandboxd/runc" {
		t.Errorf("what make install has put there: found %q, %v", got, err)
	}
	if err := os.Chown(filepath.Join(dir, "bin", "runc"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if got, err := FindRuntime("runc", executable, search); !errors.Is(err, ErrRuntime) {
		t.Errorf("a runtime of uid 1000 was taken, or passed over for %q: %v", got, err)
	}
	if _, err := FindRuntime("runc", "/nowhere/daemon", "relative:"); !errors.Is(err, ErrRuntime) {
		t.Errorf("nothing to find: %v", err)
	}
}

// TestImageCopyShiftsIDs is for hosts that can't map the ids of a mount.
func TestImageCopyShiftsIDs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	for _, err := range []error{
		os.Mkdir(filepath.Join(from, "d"), 0o755), os.WriteFile(filepath.Join(from, "d", "f"), []byte("text"), 0o644),
		os.Chown(filepath.Join(from, "d", "f"), 5, 6), os.Chmod(filepath.Join(from, "d", "f"), 0o755|os.ModeSetuid),
		os.Symlink("/etc/passwd", filepath.Join(from, "l")), unix.Mkfifo(filepath.Join(from, "fifo"), 0o644),
		copyShifted(from, to, firstRange),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(to, "d", "f"), &st); err != nil || st.Uid != firstRange+5 || st.Gid != firstRange+6 || st.Mode&0o7777 != 0o4755 {
		t.Errorf("copied file: %+v, %v", st, err)
	}
	if err := unix.Lstat(filepath.Join(to, "l"), &st); err != nil || st.Uid != firstRange || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("copied link: %+v, %v", st, err)
	}
	if err := unix.Lstat(filepath.Join(to, "fifo"), &st); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a FIFO was copied: %v", err)
	}
}

// FuzzReserved reads what administrators write.
func FuzzReserved(f *testing.F) {
	f.Add("root:100000:65536\n# x\n\nveyra:165536:65536\n")
	f.Add("a:b:c")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "subuid")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		spans, err := readReserved(path, "/does/not/exist")
		if err == nil && len(spans) > strings.Count(text, "\n")+1 {
			t.Errorf("%d spans of %q", len(spans), text)
		}
	})
}
