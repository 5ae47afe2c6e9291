package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// heldJob starts a job whose model waits until answer is closed; asked is
// closed once the job has come that far.
func (w *world) heldJob(title string) (id int64, asked, answer chan struct{}) {
	asked, answer = make(chan struct{}), make(chan struct{})
	id = w.job("held", title, project(), nil)
	w.script(title, func(c providertest.Conversation) providertest.Step {
		if c.Turn == 0 {
			close(asked)
			<-answer
			return fix()
		}
		return providertest.Step{Finish: "Fixed add."}
	})
	return id, asked, answer
}

// TestDrain: the first SIGTERM lets the job finish and be delivered, takes no
// other, and goes on beating; then the daemon ends well.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	d := w.ready(w.newPlace())
	id, asked, answer := w.heldJob("Make add add")
	waittest.For(t, "the model is asked", asked)
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	st := d.statusUntil("status tells of draining", func(st supervisor.Status) bool { return st.Draining })
	if st.Running == nil || st.Ready != "draining" {
		t.Errorf("status while draining: %s", pretty(st))
	}
	beats := w.plane.View().Counts.Beats
	w.wait("beats go on, UNHEALTHY", func(v controlplanetest.View) bool {
		return v.Counts.Beats > beats+1 && v.Agents[0].LastBeat["health"] == "UNHEALTHY"
	})
	next := w.job("next", "Another", project(), nil)
	close(answer)
	w.accepted(id)
	d.wantEnd(0)
	if j := jobOf(w.plane.View(), next); j.Status != "QUEUED" {
		t.Errorf("a draining daemon was given a job: %s", pretty(j))
	}
	wantNothingLeft(t, d.instance(), d.state)
}

// TestCancel: the second SIGTERM ends what runs. Nothing of it is published or
// submitted, and the journal says why.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	d := w.ready(p)
	_, asked, answer := w.heldJob("Make add add")
	defer close(answer)
	waittest.For(t, "the model is asked", asked)
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	d.line("draining: no new work; a second signal cancels what runs")
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	d.wantEnd(0)
	wantNothingLeft(t, d.instance(), d.state)
	if pulls, branches := w.pushed("held"); pulls+branches != 0 || len(w.sent(controlplanetest.JobResult)) != 0 {
		t.Errorf("%d pull requests, %d branches and %d results of a cancelled job", pulls, branches, len(w.sent(controlplanetest.JobResult)))
	}
	if list := d.tell("jobs").want(t, 0).out; !strings.Contains(list, "abandoned (CANCELLED)") {
		t.Errorf("jobs says %q", list)
	}
}

// wantEnd waits for an end with this status.
func (d *daemon) wantEnd(code int) {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatal("the daemon did not end")
	}
	var exit *exec.ExitError
	if errors.As(d.err, &exit) && exit.ExitCode() != code || d.err == nil && code != 0 {
		d.t.Errorf("the daemon ended with %v, want exit status %d", d.err, code)
	}
}

// TestKeyInTheEnvironment: a key that comes by the environment stays with the
// supervisor.
func TestKeyInTheEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	for i, setting := range p.env {
		if strings.HasPrefix(setting, "AI_API_KEY_FILE=") {
			p.env[i] = "AI_API_KEY=" + w.key
		}
	}
	d := w.start(p)
	if st := d.status(); st.Ready != "not_paired" {
		t.Errorf("the provider does not know the key: %s", pretty(st))
	}
	for _, process := range []string{"__signer", "__runner"} {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.child(process)))
		if err != nil {
			t.Fatal(err)
		}
		wantAbsent(t, "environment of "+process, string(environ), "provider key", w.key)
	}
	d.stop()
}
