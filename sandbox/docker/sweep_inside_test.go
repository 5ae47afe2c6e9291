package docker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestSweepLeavesTheLivingAlone: containers of runners that live, and those with
// odd labels, stay. A dead one's successor may begin while a removal goes on.
func TestSweepLeavesTheLivingAlone(t *testing.T) {
	run, _ := runDirectory(t)
	for _, name := range []string{"mine", "alive"} {
		if err := run.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := hostlock.Take(run, "alive/runner.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	labels := map[string]string{
		idOf("a"): "mine", idOf("b"): "mine", idOf("c"): "alive", idOf("d"): "dead", idOf("e"): "../alive", idOf("f"): "",
	}
	var mu sync.Mutex // guards removed
	var removed []string
	d := &Driver{config: Config{Instance: "mine", Run: run, Log: slog.New(slog.DiscardHandler)}}
	j := &job{}
	j.boxes.Add("s1", &box{container: idOf("a")})
	d.jobs.Add("one", j)
	d.engine = engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.51")
		switch {
		case r.Method == http.MethodDelete:
			mu.Lock()
			defer mu.Unlock()
			id := path.Base(r.URL.Path)
			if removed = append(removed, id); labels[id] == "dead" {
				// Only with its lock is the directory of a dead instance there.
				if _, err := run.Stat("dead"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the lock of a dead instance is held: %v", err)
				}
			}
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			_ = json.NewEncoder(w).Encode(listOf(labels))
		}
	})
	swept := sandbox.Swept{}
	if err := d.sweepContainers(t.Context(), swept); err != nil || swept["container"] != 2 {
		t.Errorf("%v, %v", swept, err)
	}
	if diff := cmp.Diff([]string{idOf("b"), idOf("d")}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

// TestSweepAsksTheRightLock: where the lock lies elsewhere, a free one here means
// nothing, also for a container of our own name; an earlier boot's runners are dead.
func TestSweepAsksTheRightLock(t *testing.T) {
	run, _ := runDirectory(t)
	here := origin{place: "here", boot: "11111111-1111-1111-1111-111111111111"}
	past := origin{place: "there", boot: "22222222-2222-2222-2222-222222222222"}
	d := &Driver{config: Config{Instance: "mine", Run: run}, origin: here}
	for _, c := range []struct {
		held
		may bool
	}{
		{held{"1", "mine", here}, true},
		{held{"2", "dead", here}, true},
		{held{"3", "dead", origin{"there", here.boot}}, false},
		{held{"4", "mine", origin{"there", here.boot}}, false},
		{held{"5", "dead", past}, true},
		{held{"6", "dead", origin{}}, false},
		{held{"7", "../x", past}, false},
		{held{"8", "dead", origin{"here", "odd"}}, false},
	} {
		if got := d.mayRemove(c.held); got != c.may {
			t.Errorf("%+v: %t", c.held, got)
		}
	}
}

func listOf(labels map[string]string) []map[string]any {
	var all []map[string]any
	for _, id := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, map[string]any{"Id": id, "Labels": map[string]string{labelInstance: labels[id]}})
	}
	return all
}
