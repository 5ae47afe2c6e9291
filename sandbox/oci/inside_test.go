package oci

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestE02SwappedDirectoryIsNotFollowed exchanges a directory with a link to one
// outside while it is collected, over and over.
func TestE02SwappedDirectoryIsNotFollowed(t *testing.T) {
	outside, upper := t.TempDir(), t.TempDir()
	for _, step := range []error{
		os.WriteFile(filepath.Join(outside, "secret"), []byte("CANARY"), 0o600),
		os.Symlink(outside, filepath.Join(upper, "link")),
		os.Mkdir(filepath.Join(upper, "d"), 0o755),
		os.WriteFile(filepath.Join(upper, "d", "secret"), []byte("inner!"), 0o600),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		swaps := 0
		for {
			select {
			case <-stop:
				stopped <- swaps
				return
			default:
			}
			if unix.Renameat2(unix.AT_FDCWD, filepath.Join(upper, "d"), unix.AT_FDCWD, filepath.Join(upper, "link"), unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
		}
	}()
	whole := 0
	for range 20_000 {
		var out bytes.Buffer
		err := collect(context.Background(), upper, treestream.Limits{Entries: 100, Bytes: 1 << 20}, &out)
		if bytes.Contains(out.Bytes(), []byte("CANARY")) {
			t.Fatal("a byte from outside was collected")
		}
		if err == nil {
			whole++
		}
	}
	close(stop)
	if swaps := <-stopped; swaps < 1000 || whole == 0 {
		t.Errorf("%d swaps, %d whole collections: the check is blind", swaps, whole)
	}
}

func TestForeignOverlayAttributesAreRefused(t *testing.T) {
	for _, name := range []string{"trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.whiteout", "user.overlay.opaque"} {
		for _, entry := range []string{".", "file", "dir"} {
			dir := t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), nil, 0o644), os.Mkdir(filepath.Join(dir, "dir"), 0o755)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Setxattr(filepath.Join(dir, entry), name, []byte("/etc"), 0); err != nil {
				t.Skipf("not applicable: extended attributes: %v", err)
			}
			err := collect(context.Background(), dir, treestream.Limits{}, io.Discard)
			if sandbox.KindOf(err) != sandbox.KindRefused {
				t.Errorf("%s on %s gave %v", name, entry, err)
			}
		}
	}
}

// TestForgedWhiteoutIsNoDeletion: a 0/0 node counts only when the mounter of
// the overlay made it.
func TestForgedWhiteoutIsNoDeletion(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	dir := t.TempDir()
	for _, name := range []string{"a-forged", "b-kernel"} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "a-forged"), firstRange+1000, firstRange+1000); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := collect(context.Background(), dir, treestream.Limits{}, &out); err != nil {
		t.Fatal(err)
	}
	r, err := treestream.NewReader(&out, treestream.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []treestream.Kind{treestream.Special, treestream.Delete} {
		if e, err := r.Next(); err != nil || e.Kind != want {
			t.Errorf("entry %+v, %v, want kind %d", e, err, want)
		}
	}
}

// TestA06BundleProperties holds for every bundle that limits can make.
func TestA06BundleProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := bundle(plan{
			rootfs: "/stage/b/s1/rootfs", cgroup: "veyra-x/s1", first: firstRange, cpus: rapid.IntRange(1, 64).Draw(t, "cpus"),
			swap: rapid.Bool().Draw(t, "swap"),
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
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	reserved := []span{{first: firstRange - 10, count: 11}, {first: firstRange + 2*rangeSize + 5, count: 1}}
	first, err := takeRange(root, reserved)
	if err != nil || first.first != firstRange+rangeSize {
		t.Fatalf("first range %+v, %v", first, err)
	}
	second, err := takeRange(root, reserved)
	if err != nil || second.first != firstRange+3*rangeSize {
		t.Fatalf("second range %+v, %v", second, err)
	}
	first.lock.Release()
	third, err := takeRange(root, reserved)
	if err != nil || third.first != first.first {
		t.Errorf("a released range is not given again: %+v, %v", third, err)
	}
	if _, err := takeRange(root, []span{{first: 0, count: 1 << 32}}); !errors.Is(err, errNoRange) {
		t.Errorf("all ids reserved: %v", err)
	}
	if _, err := hostlock.Take(root, second.lockName()); !errors.Is(err, hostlock.ErrHeld) {
		t.Errorf("a held range could be locked: %v", err)
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

func TestOverlayOptionsShowNoHostPath(t *testing.T) {
	data, err := overlayData("/run/stage", []string{"/run/stage/o/1", "/run/stage/d/2/l0"}, "/run/stage/d/3/up", "/run/stage/d/3/wk")
	want := "lowerdir=o/1:d/2/l0,upperdir=d/3/up,workdir=d/3/wk,metacopy=off,index=off,xino=off,redirect_dir=nofollow"
	if err != nil || data != want {
		t.Errorf("options %q, %v", data, err)
	}
	for _, bad := range []string{"/etc", "/run/stage/../etc", "/run/stage/a:b", "/run/stage/a,upperdir=x", "/run/stage/a\\b"} {
		if data, err := overlayData("/run/stage", []string{bad}, "/run/stage/u", "/run/stage/w"); err == nil {
			t.Errorf("lower %q gave %q", bad, data)
		}
	}
	if _, err := overlayData("/s", slices.Repeat([]string{"/s/" + strings.Repeat("x", 200)}, 64), "/s/u", "/s/w"); !errors.Is(err, unix.E2BIG) {
		t.Errorf("too many layers: %v", err)
	}
}

// TestOurPlaceInEachTree has the three kinds of hosts, and a container whose
// cgroup namespace shows it as the root.
func TestOurPlaceInEachTree(t *testing.T) {
	v1 := func(controllers string) *mountinfo.Info {
		return &mountinfo.Info{FSType: "cgroup", Root: "/", Mountpoint: "/sys/fs/cgroup/" + controllers, VFSOptions: "rw," + controllers}
	}
	v2 := func(point, root string) *mountinfo.Info {
		return &mountinfo.Info{FSType: "cgroup2", Root: root, Mountpoint: point, VFSOptions: "rw"}
	}
	for name, c := range map[string]struct {
		mounts []*mountinfo.Info
		own    string // /proc/self/cgroup
		want   map[string]string
	}{
		"version 1": {
			[]*mountinfo.Info{v1("memory"), v1("cpu,cpuacct"), v1("freezer")},
			"3:memory:/unit\n2:cpu,cpuacct:/\n",
			map[string]string{"memory": "/sys/fs/cgroup/memory/unit", "cpu": "/sys/fs/cgroup/cpu,cpuacct"},
		},
		"hybrid": {
			[]*mountinfo.Info{v1("memory"), v2("/sys/fs/cgroup/unified", "/")},
			"3:memory:/a/b\n0::/x\n",
			map[string]string{"memory": "/sys/fs/cgroup/memory/a/b"},
		},
		"outside of what is mounted": {
			[]*mountinfo.Info{{FSType: "cgroup", Root: "/docker/1", Mountpoint: "/cg", VFSOptions: "memory"}},
			"3:memory:/docker/1/in\n",
			map[string]string{"memory": "/cg/in"},
		},
		"version 2":                {[]*mountinfo.Info{v2("/sys/fs/cgroup", "/")}, "0::/system.slice/unit/supervisor\n", map[string]string{"": "/sys/fs/cgroup/system.slice/unit"}},
		"version 2 in a container": {[]*mountinfo.Info{v2("/sys/fs/cgroup", "/")}, "0::/\n", map[string]string{"": "/sys/fs/cgroup"}},
	} {
		path := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(path, []byte(c.own), 0o600); err != nil {
			t.Fatal(err)
		}
		places, err := ownPlaces(path)
		if err != nil {
			t.Fatal(err)
		}
		found := arrange(c.mounts, places)
		if found.pure != strings.HasPrefix(name, "version 2") {
			t.Errorf("%s: taken for pure version 2: %t", name, found.pure)
		}
		for controller, want := range c.want {
			got := found.trees[0].own
			if controller != "" {
				h, _ := found.with(controller)
				got = h.own
			}
			if got != want {
				t.Errorf("%s: %q lies in %q, want %q", name, controller, got, want)
			}
		}
	}
}

func TestCgroupNumbers(t *testing.T) {
	for raw, want := range map[string]int64{"max 100000\n": -1, "200000 100000\n": 2000, "30000 100000": 300} {
		if got, err := parseCPUMax(raw); err != nil || got != want {
			t.Errorf("cpu.max %q gave %d, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"", "1", "a b", "1 0", "1 2 3"} {
		if got, err := parseCPUMax(raw); err == nil {
			t.Errorf("cpu.max %q gave %d", raw, got)
		}
	}
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
	if got, err := FindRuntime(executable, search); err != nil || got != filepath.Join(dir, "bin", "runc") {
		t.Errorf("found %q, %v", got, err)
	}
	installed := filepath.Join(dir, "installed")
	if got, err := FindRuntime(installed+"/bin/veyra-sandboxd", search); err != nil || got != installed+"/libexec/veyra-sandboxd/runc" {
		t.Errorf("what make install has put there: found %q, %v", got, err)
	}
	if err := os.Chown(filepath.Join(dir, "bin", "runc"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if got, err := FindRuntime(executable, search); !errors.Is(err, ErrRuntime) {
		t.Errorf("a runtime of uid 1000 was taken, or passed over for %q: %v", got, err)
	}
	if _, err := FindRuntime("/nowhere/daemon", "relative:"); !errors.Is(err, ErrRuntime) {
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
