package docker

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// TestJ07JobEndsWhileAnImageIsImported: an engine that hangs in an import holds up
// neither the end of the job that waits for it nor that of one that waits for its
// turn.
func TestJ07JobEndsWhileAnImageIsImported(t *testing.T) {
	importing := make(chan struct{}, 1)
	d := importer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.51")
		if strings.HasSuffix(r.URL.Path, "/images/create") {
			importing <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}
		if !strings.HasSuffix(r.URL.Path, "/_ping") {
			http.Error(w, `{"message":"no such image"}`, http.StatusNotFound)
		}
	})
	first, second := create(t, d, "first"), create(t, d, "second")
	<-importing
	for _, made := range []onItsWay{second, first} {
		closed := make(chan error, 1)
		go func() { closed <- made.job.Close(t.Context()) }()
		for what, ended := range map[string]chan error{"closing": closed, "making": made.err} {
			select {
			case err := <-ended:
				if (err == nil) != (what == "closing") {
					t.Errorf("%s: %v", what, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s a sandbox waits for the engine", what)
			}
		}
	}
}

// onItsWay is a sandbox that is on its way.
type onItsWay struct {
	job *job
	err chan error
}

func create(t *testing.T, d *Driver, id sandbox.JobID) onItsWay {
	t.Helper()
	j := newJob(d, sandbox.JobSpec{ID: id}, facts{})
	var err error
	if j.booked, err = hostlock.Take(d.config.Run, string(id)); err != nil {
		t.Fatal(err)
	}
	m := onItsWay{j, make(chan error, 1)}
	go func() {
		_, err := j.Create(t.Context(), sandbox.Spec{Limits: policies.Limits{}})
		m.err <- err
	}()
	return m
}

// importer is a driver whose engine has no image yet.
func importer(t *testing.T, handle http.HandlerFunc) *Driver {
	t.Helper()
	run, dir := runDirectory(t)
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	for _, name := range []string{"b", "o"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &Driver{
		engine: engineOf(t, handle), importing: make(chan struct{}, 1),
		config: Config{Stage: dir, RunDir: dir, Run: run, Log: slog.New(slog.DiscardHandler), Binaries: linux.Binaries{Init: program}},
	}
}
