package linux

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestQuickenerMovesNobody(t *testing.T) {
	before, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	q := NewQuickener()
	if q.procs == "" {
		t.Skip("not applicable: no cgroup of ours is to be seen")
	}
	first, second := q.Hold(), q.Hold()
	file, err := q.open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("0"); err != nil {
		t.Errorf("moving to where we are: %v", err)
	}
	first()
	second()
	after, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for key, place := range before {
		if after[key] != place {
			t.Errorf("moved from %q to %q in %q", place, after[key], key)
		}
	}
}

// Somebody has moved us meanwhile: then that stands.
func TestQuickenerLeavesAMoveAlone(t *testing.T) {
	procs := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q := &Quickener{procs: procs, places: map[string]string{"": "/where/we/were"}}
	q.keep(make(chan struct{})) // returns by itself
	if raw, err := os.ReadFile(procs); err != nil || len(raw) != 0 {
		t.Errorf("wrote %q, error %v", raw, err)
	}
}

func TestQuickenerWritesUntilItIsReleased(t *testing.T) {
	places, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	procs := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q := &Quickener{procs: procs, places: places}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		q.keep(stop)
	}()
	for raw := []byte(nil); string(raw[:min(len(raw), 2)]) != "00"; {
		if raw, err = os.ReadFile(procs); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-ended
}

func TestOwnProcsMustBeVisible(t *testing.T) {
	places := map[string]string{"pids": "/unit/a", "": "/other"}
	for name, c := range map[string]struct {
		mount mountinfo.Info
		want  string
	}{
		"whole tree":   {mountinfo.Info{FSType: "cgroup", VFSOptions: "rw,pids", Root: "/", Mountpoint: "/c/pids"}, "/c/pids/unit/a/cgroup.procs"},
		"below it":     {mountinfo.Info{FSType: "cgroup", VFSOptions: "rw,pids", Root: "/unit", Mountpoint: "/c/pids"}, "/c/pids/a/cgroup.procs"},
		"another part": {mountinfo.Info{FSType: "cgroup", VFSOptions: "rw,pids", Root: "/unit/b", Mountpoint: "/c/pids"}, ""},
		"not ours":     {mountinfo.Info{FSType: "cgroup", VFSOptions: "rw,net_cls", Root: "/", Mountpoint: "/c/net"}, ""},
		"version 2":    {mountinfo.Info{FSType: "cgroup2", VFSOptions: "rw", Root: "/", Mountpoint: "/c"}, "/c/other/cgroup.procs"},
	} {
		if got := ownProcs([]*mountinfo.Info{&c.mount}, places); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
