package docker

import (
	"archive/tar"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// TestJ07EngineReplaced: an engine is spoken to in its own version, also when it took
// the place of an older or a newer one.
func TestJ07EngineReplaced(t *testing.T) {
	var api, asked atomic.Value
	e := engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", api.Load().(string))
		if !strings.HasSuffix(r.URL.Path, "/_ping") {
			asked.Store(r.URL.Path)
			_, _ = io.WriteString(w, "[]")
		}
	})
	for _, version := range []string{"1.51", "1.41", "1.44"} {
		api.Store(version)
		if _, err := e.ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := e.list(t.Context()); err != nil || asked.Load() != "/v"+version+"/containers/json" {
			t.Errorf("%s was asked for %v, %v", version, asked.Load(), err)
		}
	}
}

// TestAnswersHaveAnEnd: an engine that never stops talking is cut off, and what it
// says of a failure is one short line.
func TestAnswersHaveAnEnd(t *testing.T) {
	endless := engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			return
		}
		_, _ = io.WriteString(w, `[{"Image":"`)
		for text := strings.Repeat("x", 1<<16); ; {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	})
	if _, err := endless.list(t.Context()); !errors.Is(err, errTooLong) {
		t.Errorf("an answer without an end: %v", err)
	}
	loud := engineOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		http.Error(w, "\x1b[2J\n"+strings.Repeat("x", 1<<19), http.StatusInternalServerError)
	})
	err := loud.start(t.Context(), idOf("a"))
	if err == nil || len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("a loud failure: %.200q", err)
	}
}

// TestHalfAnArchiveHasNoEnd: an engine would take one with an end for a whole image.
func TestHalfAnArchiveHasNoEnd(t *testing.T) {
	got := make(chan []byte, 1)
	d := &Driver{config: Config{Log: slog.New(slog.DiscardHandler)}}
	d.engine = engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			raw, _ := io.ReadAll(r.Body)
			got <- raw
		}
	})
	broken := errors.New("the disk")
	err := d.stream(t.Context(), copied{digest: bareImage}, func(w *tar.Writer) error {
		return errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o755}), w.Flush(), broken)
	})
	if err == nil {
		t.Error("no error")
	}
	if raw := <-got; len(raw) > 512 {
		t.Errorf("%d bytes, want one header and no end", len(raw))
	}
}

// TestMountsThatNobodyAskedFor: what is not hidden, has no end or can be written is
// found in the kernel's list.
func TestMountsThatNobodyAskedFor(t *testing.T) {
	there := func(path string) bool { return path == "/proc/keys" || path == "/sys/kernel" || path == "/proc/sys" }
	hidden := []*mountinfo.Info{
		{Mountpoint: "/proc/keys", Root: "/null", FSType: "devtmpfs"},
		{Mountpoint: "/sys/kernel", Root: "/", FSType: "tmpfs", VFSOptions: "ro"},
		{Mountpoint: "/proc/sys", Root: "/sys", FSType: "proc", Options: "ro,nosuid"},
	}
	if err := checkHidden(hidden, there); err != nil {
		t.Error(err)
	}
	for i := range hidden {
		less := append(append([]*mountinfo.Info{}, hidden[:i]...), hidden[i+1:]...)
		if err := checkHidden(less, there); !errors.Is(err, errApplied) {
			t.Errorf("without %s: %v", hidden[i].Mountpoint, err)
		}
	}
	for at, strange := range map[string]bool{linux.Writable[0]: false, "/data": true, "/etc": true} {
		m := &mountinfo.Info{Mountpoint: at, Root: at, FSType: "ext4", Options: "rw", VFSOptions: "rw"}
		if err := checkStrange([]*mountinfo.Info{m}); (err != nil) != strange {
			t.Errorf("%s: %v", at, err)
		}
	}
	memory := &mountinfo.Info{Mountpoint: "/var/lib", Root: "/", FSType: "tmpfs", Options: "rw", VFSOptions: "rw"}
	if err := checkStrange([]*mountinfo.Info{memory}); err == nil {
		t.Error("a file system in memory that nobody asked for passes")
	}
}
