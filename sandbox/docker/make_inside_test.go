package docker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// script answers the requests of a container's making, each kind by a function,
// and keeps what was asked.
type script struct {
	mu     sync.Mutex // guards asked
	asked  []string
	create []http.HandlerFunc // in turn; the last one stays
	owner  string             // instance of the container that has the name
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	if strings.HasSuffix(r.URL.Path, "/_ping") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1.41/containers/"))
	switch {
	case strings.HasSuffix(r.URL.Path, "/create"):
		s.create[0](w, r)
		if len(s.create) > 1 {
			s.create = s.create[1:]
		}
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		fmt.Fprintf(w, `{"Id":"old","State":{},"HostConfig":{},"Config":{"Labels":{%q:%q}}}`, labelInstance, s.owner)
	}
}

func taken(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, `{"message":"the name is in use"}`, http.StatusConflict)
}

func made(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"Id":"new"}`)
}

// cut makes the container and loses the answer.
func cut(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// requests are what was asked so far, one that was repeated once.
func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Clone(s.asked))
}

// TestLostAnswersAreFoundByName: what may exist is removed under the name that it
// must have; a container of somebody else is not.
func TestLostAnswersAreFoundByName(t *testing.T) {
	p := planFor(policies.Limits{MemoryBytes: 1, PIDs: 1, ShmBytes: 1}, false)
	for name, c := range map[string]struct {
		create []http.HandlerFunc
		owner  string
		id     string
		fails  bool
		asked  []string
	}{
		"nothing odd":       {[]http.HandlerFunc{made}, "", "new", false, []string{"POST create"}},
		"left by ourselves": {[]http.HandlerFunc{taken, made}, "x", "new", false, []string{"POST create", "GET veyra-x-s1/json", "DELETE old", "POST create"}},
		"somebody else's":   {[]http.HandlerFunc{taken}, "y", "", true, []string{"POST create", "GET veyra-x-s1/json"}},
		"not one of ours":   {[]http.HandlerFunc{taken}, "", "", true, []string{"POST create", "GET veyra-x-s1/json"}},
		"the answer is cut": {[]http.HandlerFunc{cut}, "", "veyra-x-s1", true, []string{"POST create"}},
	} {
		s := &script{create: c.create, owner: c.owner}
		b := &box{job: &job{driver: &Driver{engine: engineOf(t, s.ServeHTTP)}}}
		id, err := b.make(t.Context(), p)
		if id != c.id || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v", name, id, err)
		}
		if diff := cmp.Diff(c.asked, s.requests()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

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
		if got := ours([]*mountinfo.Info{&m}, "/workspace", dev); got != (name == "ours") {
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
		{Name: "nofile", Soft: 64, Hard: 64},
		{Name: "core"},
		{Name: "msgqueue", Soft: int64(queues.Max / 4), Hard: int64(queues.Max / 4)},
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
