package docker

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// TestPlaceThatIsNotOurs: an engine binds what it finds under a name, which may be
// the directory below our mount, or something that was mounted over it.
func TestPlaceThatIsNotOurs(t *testing.T) {
	dev := unix.Mkdev(0, 40)
	good := mountinfo.Info{Mountpoint: "/workspace", Root: "/workspace", Major: 0, Minor: 40, Options: "rw,nosuid,nodev,relatime"}
	for name, change := range map[string]func(*mountinfo.Info){
		"ours":             func(*mountinfo.Info) {},
		"another device":   func(m *mountinfo.Info) { m.Minor = 41 },
		"set-id":           func(m *mountinfo.Info) { m.Options = "rw,nodev" },
		"devices":          func(m *mountinfo.Info) { m.Options = "rw,nosuid" },
		"another part":     func(m *mountinfo.Info) { m.Root = "/" },
		"another place":    func(m *mountinfo.Info) { m.Mountpoint = "/workspace2" },
		"words of a whole": func(m *mountinfo.Info) { m.Options = "rw,nosuid2,xnodev" },
	} {
		m := good
		change(&m)
		if got := ours([]*mountinfo.Info{&m}, "/workspace", dev, "nosuid", "nodev"); got != (name == "ours") {
			t.Errorf("%s: %t", name, got)
		}
	}
	over := good
	over.Minor = 41
	if ours([]*mountinfo.Info{&good, &over}, "/workspace", dev) || !ours([]*mountinfo.Info{&over, &good}, "/workspace", dev) {
		t.Error("not the last mount at a place counts")
	}
}

// TestSharesOfTheEngine: what the kernel counts for the host's root as well is
// never all of the engine's.
func TestSharesOfTheEngine(t *testing.T) {
	got, err := engineOf(t, http.NotFound).ulimits(policies.Limits{OpenFiles: 64}) // this process is the engine's
	if err != nil {
		t.Fatal(err)
	}
	var queues, signals unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_MSGQUEUE, &queues), unix.Getrlimit(unix.RLIMIT_SIGPENDING, &signals)); err != nil {
		t.Fatal(err)
	}
	want := []*container.Ulimit{
		{Name: "core"},
		{Name: "msgqueue", Soft: int64(queues.Max / 4), Hard: int64(queues.Max / 4)},
		{Name: "nofile", Soft: 64, Hard: 64},
		{Name: "sigpending", Soft: int64(signals.Max / 8), Hard: int64(signals.Max / 8)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestProcessThatOpensFiles: a guest's kernel sees no place, its file server all
// of them; one that sees other ones, or some only, is none of ours.
func TestProcessThatOpensFiles(t *testing.T) {
	dev := unix.Mkdev(0, 40)
	all := []*mountinfo.Info{{Mountpoint: "/", Minor: 7}}
	for _, place := range linux.Writable {
		all = append(all, &mountinfo.Info{Mountpoint: place, Root: place, Minor: 40, Options: "rw,nosuid,nodev"})
	}
	elsewhere := append(slices.Clone(all), &mountinfo.Info{Mountpoint: linux.Writable[0], Root: "/data", Minor: 41, Options: "rw,nosuid,nodev"})
	for name, c := range map[string]struct {
		mounts []*mountinfo.Info
		some   bool
		fails  bool
	}{
		"kernel":      {all[:1], false, false},
		"file server": {all, true, false},
		"elsewhere":   {elsewhere, true, true},
		"some only":   {all[:2], true, true},
		"gone":        {nil, false, false},
	} {
		some, err := checkMounts(c.mounts, dev)
		if some != c.some || (err != nil) != c.fails || err != nil && !errors.Is(err, errApplied) {
			t.Errorf("%s: %t, %v", name, some, err)
		}
	}
}
