package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// unreadiness is one way for a paired host to be not ready.
type unreadiness struct {
	reason, sentence string
	// agent is the role of the agent that it is paired with.
	agent string
	// place changes what the first start finds, if there is anything to.
	place func(t *testing.T, p *place)
	// before changes what the second start finds; nil: there is one start.
	before func(t *testing.T, p *place)
	// spoil makes a running daemon not ready.
	spoil func(t *testing.T, w *world, d *daemon)
	// mend ends that without a restart, where that is possible.
	mend func(t *testing.T, d *daemon)
}

// unreadinesses are the reasons of ready{reason} that a running daemon can have,
// besides ok and not_paired, which the test sees on the way to each. A policy
// that this host can't enforce at the start ends it with 4; budget and panic
// have no way to hold yet.
var unreadinesses = []unreadiness{
	{reason: "role", sentence: "The agent's role is VERIFIER but this host is set up as WORKER", agent: "VERIFIER"},
	{reason: "provider", sentence: "The model provider refuses the key", before: func(t *testing.T, p *place) {
		writeFile(t, p.keyFile(), "sk-of-somebody-else\n", 0o600)
	}},
	{reason: "image", sentence: "No toolchain image is there", before: func(t *testing.T, p *place) {
		p.env = append(p.env, "VEYRA_CACHE_DIR="+t.TempDir())
	}},
	{reason: "runner", sentence: "The runner process is gone", spoil: func(_ *testing.T, _ *world, d *daemon) {
		_ = unix.Kill(d.child("__runner"), unix.SIGKILL)
	}},
	{reason: "signer", sentence: "The signer process is gone", spoil: func(_ *testing.T, _ *world, d *daemon) {
		_ = unix.Kill(d.child("__signer"), unix.SIGKILL)
	}},
	{reason: "policy", sentence: "The policy strict can't be enforced any more", place: ownRuntime, spoil: func(t *testing.T, _ *world, d *daemon) {
		sandboxtest.WriteProgram(t, d.runtimeFile(), "#!/bin/sh\nexit 1\n", 0o755)
	}, mend: func(t *testing.T, d *daemon) {
		sandboxtest.WriteProgram(t, d.runtimeFile(), readFile(t, runtimePath()), 0o755)
	}},
	{
		reason: "disk", sentence: "The disk is under the floor", place: ownDisk, spoil: func(t *testing.T, _ *world, d *daemon) {
			resize(t, filepath.Dir(d.state), "512m")
			t.Cleanup(func() { resize(t, filepath.Dir(d.state), "8g") }) // or nobody could sweep
		},
		mend: func(t *testing.T, d *daemon) { resize(t, filepath.Dir(d.state), "8g") },
	},
	{reason: "draining", sentence: "The host is draining", spoil: func(t *testing.T, w *world, d *daemon) {
		_, asked, answer := w.heldJob("Make add add")
		t.Cleanup(func() { close(answer) })
		waittest.For(t, "the model is asked", asked)
		_ = d.cmd.Process.Signal(unix.SIGTERM)
	}},
}

// keyFile is where the place's provider key lies.
func (p place) keyFile() string {
	for _, setting := range p.env {
		if path, found := strings.CutPrefix(setting, "AI_API_KEY_FILE="); found {
			return path
		}
	}
	return ""
}

// ownDisk mounts a file system that only this test's daemon fills: its size is
// a number that costs nothing until it is used.
func ownDisk(t *testing.T, p *place) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8g,mode=0755"); err != nil {
		t.Skip("not applicable: no file system can be mounted: " + err.Error())
	}
	t.Cleanup(func() {
		// The runner of a daemon that was killed ends by itself.
		until(t, "the file system is unmounted", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	p.state, p.config = filepath.Join(dir, "state"), filepath.Join(t.TempDir(), "floor.yaml")
	writeFile(t, p.config, fmt.Sprintf("keep: {disk_floor: %d}\n", 1<<30), 0o600)
}

// ownRuntime gives a daemon an OCI runtime that nobody else uses.
func ownRuntime(t *testing.T, p *place) {
	t.Helper()
	dir := t.TempDir()
	if _, err := os.Stat(runtimePath()); err != nil {
		t.Skip("not applicable: no runc to copy (`make setup` builds it)")
	}
	sandboxtest.WriteProgram(t, filepath.Join(dir, "runc"), readFile(t, runtimePath()), 0o755)
	p.env = append(p.env, "PATH="+dir+":"+os.Getenv("PATH"))
}

// runtimeFile is the OCI runtime that the daemon said it uses.
func (d *daemon) runtimeFile() string {
	for _, setting := range slices.Backward(d.env) {
		if path, found := strings.CutPrefix(setting, "PATH="); found {
			return filepath.Join(strings.Split(path, ":")[0], "runc")
		}
	}
	return ""
}

func resize(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size="+size); err != nil {
		t.Fatal(err)
	}
}

// TestNotReady makes the daemon not ready for each reason that it can have: the
// control plane hears UNHEALTHY with a sentence, and so do the owner, who asks
// for the status, and whatever scrapes the admin listener.
func TestNotReady(t *testing.T) {
	t.Parallel()
	for _, u := range unreadinesses {
		t.Run(u.reason, func(t *testing.T) {
			t.Parallel()
			needSandboxes(t)
			w := newWorld(t, true)
			p := w.newPlace()
			if u.place != nil {
				u.place(t, &p)
			}
			d := w.start(p)
			d.wantReason("not_paired", "Not paired")
			d.pairAs(w, u.agent)
			if u.agent == "" {
				d.wantReason("ok", "Ready: waiting")
			}
			if u.before != nil {
				d.stop()
				u.before(t, &p)
				d = w.start(p)
			}
			if u.spoil != nil {
				u.spoil(t, w, d)
			}
			d.wantReason(u.reason, u.sentence)
			w.wantUnhealthy(u)
			if u.mend != nil {
				u.mend(t, d)
				d.wantReason("ok", "Ready: waiting")
			}
		})
	}
}

// pairAs pairs with an agent of a role; "" is WORKER.
func (d *daemon) pairAs(w *world, role string) {
	d.t.Helper()
	agent := w.plane.AddAgent(controlplanetest.AgentSpec{Role: role})
	link := strings.TrimSpace(d.tell("link").want(d.t, 0).out)
	if _, err := w.plane.PairWith(d.t.Context(), link, controlplanetest.PairOptions{AgentID: agent}); err != nil {
		d.t.Fatal(err)
	}
}

// wantUnhealthy wants beats that say so, with the sentence.
func (w *world) wantUnhealthy(u unreadiness) {
	w.t.Helper()
	until(w.t, "a beat says UNHEALTHY and why", func() bool {
		sent := w.sent(controlplanetest.Heartbeat)
		if len(sent) == 0 {
			return false // the first one is on its way
		}
		var beat protocol.HeartbeatRequest
		if err := json.Unmarshal([]byte(sent[len(sent)-1]), &beat); err != nil {
			w.t.Fatal(err)
		}
		return beat.Health == protocol.Unhealthy && strings.Contains(beat.Message, u.sentence) &&
			beat.ProviderReady == (u.reason != "provider")
	})
}

// wantReason wants one reason everywhere that the owner looks.
func (d *daemon) wantReason(reason, sentence string) {
	d.t.Helper()
	var st supervisor.Status
	until(d.t, "status tells "+reason, func() bool { st = d.status(); return st.Ready == reason && strings.Contains(st.Why, sentence) })
	if text := d.tell("status").want(d.t, 0).out; !strings.Contains(strings.SplitN(text, "\n", 2)[0], sentence) {
		d.t.Errorf("status says %q, want %q", text, sentence)
	}
	status := http.StatusServiceUnavailable
	if reason == "ok" {
		status = http.StatusOK
	}
	if code, body := get(d.t, "http://"+d.admin+"/readyz"); code != status || body != reason+"\n" {
		d.t.Errorf("readyz: %d %q, want %d %s", code, body, status, reason)
	}
	var held []string
	until(d.t, "ready{reason} is "+reason, func() bool {
		held = nil
		_, text := get(d.t, "http://"+d.admin+"/metrics")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "veyra_sandboxd_ready{") && strings.HasSuffix(line, " 1\n") {
				held = append(held, strings.Split(line, `"`)[1])
			}
		}
		return slices.Equal(held, []string{reason})
	})
}

// rosy is a world whose control plane takes every beat for a HEALTHY one and
// assigns work to hosts that said that they can't do any, and whose model
// provider knows nobody for a while.
type rosy struct{ healthy, nobody atomic.Bool }

func (o *rosy) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case o.nobody.Load() && strings.HasPrefix(r.URL.Path, "/v1/"):
			w.WriteHeader(http.StatusUnauthorized)
			return
		case o.healthy.Load() && r.URL.Path == controlplanetest.Prefix+string(controlplanetest.Heartbeat)+"/":
			var beat map[string]any
			_ = json.NewDecoder(r.Body).Decode(&beat)
			beat["health"], beat["provider_ready"] = protocol.Healthy, true
			text, _ := json.Marshal(beat)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
		next.ServeHTTP(w, r)
	})
}

// startRefused starts a paired daemon anew, which its provider now refuses.
func (o *rosy) startRefused(t *testing.T) (*world, *daemon) {
	t.Helper()
	w := newWorldBehind(t, true, o.wrap)
	p := w.newPlace()
	w.ready(p).stop()
	o.nobody.Store(true)
	d := w.start(p)
	d.wantReason("provider", "The model provider refuses the key")
	o.healthy.Store(true)
	return w, d
}

// TestTaskWhileNotReady: a job that arrives all the same is left unanswered while
// this host may become ready in time, and done once it is.
func TestTaskWhileNotReady(t *testing.T) {
	t.Parallel()
	var o rosy
	w, d := o.startRefused(t)
	id := w.job("waits", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."})
	beats := w.wait("the job is given out", func(v controlplanetest.View) bool { return jobOf(v, id).Status == "LEASED" }).Counts.Beats
	w.wait("three more beats brought it", func(v controlplanetest.View) bool { return v.Counts.Beats >= beats+3 })
	if st := d.status(); st.Running != nil || len(w.sent(controlplanetest.JobResult)) != 0 {
		t.Errorf("a host without a provider began a job: %s", pretty(st))
	}
	o.nobody.Store(false)
	if j := w.accepted(id); j.Attempt != 1 || w.plane.View().Counts.Leases != 1 {
		t.Errorf("the job took %d leases: %s", w.plane.View().Counts.Leases, pretty(j))
	}
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}

// TestTaskWhileNotReadyToTheEnd: when too little of the lease is left to begin,
// the job is given back as a failure of this host.
func TestTaskWhileNotReadyToTheEnd(t *testing.T) {
	t.Parallel()
	var o rosy
	w, d := o.startRefused(t)
	const minutes = 20
	id := w.job("waits", "Make add add", project(), func(s *controlplanetest.JobSpec) {
		// A quarter of the minutes must be left to begin: this is little more.
		s.Minutes, s.MaximumLeaseSeconds = minutes, minutes*60/4+10
	})
	w.wait("the job is given out", func(v controlplanetest.View) bool { return jobOf(v, id).Status == "LEASED" })
	j := w.ended(id)
	if want := protocol.Lookup(protocol.CodeHostNotReady); j.Status != "FAILED" || j.Evidence[protocol.KeyFailureCode] != string(protocol.CodeHostNotReady) ||
		j.Evidence[protocol.KeyFailureStage] != string(want.Stage) || j.Evidence[protocol.KeyFailureMessage] != want.Sentence {
		t.Errorf("the job ended %s", pretty(j))
	}
	if pulls, branches := w.pushed("waits"); pulls+branches != 0 {
		t.Errorf("%d pull requests and %d branches", pulls, branches)
	}
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}

// TestNoRoomAtTheStart: a disk without room for a sandbox does not keep the
// daemon from starting, since a finished result may wait for delivery. It says
// so and takes no work; a single sandbox of the operator's is refused.
func TestNoRoomAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	p := w.newPlace()
	p.config = filepath.Join(t.TempDir(), "floor.yaml")
	writeFile(t, p.config, fmt.Sprintf("keep: {disk_floor: %d}\n", int64(1)<<60), 0o600)
	d := w.start(p)
	if st := d.status(); !strings.Contains(st.Why, "Not paired") && !strings.Contains(st.Why, "under the floor") {
		t.Errorf("status says %q", st.Why)
	}
	got := command(t, nil, "sandbox", "run", "--policy", "strict", "--config", p.config, "--", "true").want(t, 125)
	if !strings.Contains(got.err, "too small for the policy strict") {
		t.Errorf("stderr %q", got.err)
	}
	d.stop()
}
