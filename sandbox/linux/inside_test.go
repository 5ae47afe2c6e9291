package linux

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
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// foreign is an id of a job's range.
const foreign = 1_879_048_192 + 1000

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
			err := Collect(context.Background(), dir, treestream.Limits{}, io.Discard)
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
	if err := os.Chown(filepath.Join(dir, "a-forged"), foreign, foreign); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Collect(context.Background(), dir, treestream.Limits{}, &out); err != nil {
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
		"narrowed to our own place": {
			[]*mountinfo.Info{v1("memory"), {FSType: "cgroup", Root: "/a/b", Mountpoint: "/sys/fs/cgroup/memory", VFSOptions: "rw,memory"}},
			"3:memory:/a/b\n",
			map[string]string{"memory": "/sys/fs/cgroup/memory"},
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
			got := found.Trees[0].Own
			if controller != "" {
				h, _ := found.With(controller)
				got = h.Own
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
