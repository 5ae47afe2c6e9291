package main_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// gate holds the answer of a fetch back in the middle of its pack, so that the
// git worker stands in its sandbox while the test looks around.
type gate struct {
	once    sync.Once
	reached chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

// heldBody lets a few bytes of a body out and then waits.
type heldBody struct {
	http.ResponseWriter
	gate *gate
	left int
}

func (h *heldBody) Write(p []byte) (int, error) {
	if h.left -= len(p); h.left < 0 {
		h.gate.once.Do(func() { close(h.gate.reached) })
		<-h.gate.open
	}
	n, err := h.ResponseWriter.Write(p)
	_ = http.NewResponseController(h.ResponseWriter).Flush()
	return n, err
}

// holdFetch serves a world whose pack answers stop at the gate.
func (g *gate) holdFetch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") && !strings.Contains(string(body), "command=ls-refs") {
			w = &heldBody{w, g, 1}
		}
		next.ServeHTTP(w, r)
	})
}

// TestWallsOfTheProcesses looks at the four processes from the host while a job
// runs: each has its one power and nothing else.
func TestWallsOfTheProcesses(t *testing.T) {
	t.Parallel()
	hold := newGate()
	w := newWorldBehind(t, true, hold.holdFetch)
	d := w.ready(w.newPlace())
	id := w.job("held", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."})
	select {
	case <-hold.reached:
	case <-d.ended:
		t.Fatalf("the daemon ended: %v", d.err)
	case <-time.After(waittest.Patience):
		t.Fatal("nothing was fetched")
	}
	git := 0
	until(t, "veyra-git runs in its sandbox", func() bool {
		for _, p := range inSandboxes(d.instance()) {
			if strings.Contains(p.command[0], "/git") {
				git = p.pid
			}
		}
		return git != 0
	})
	supervisor, signer, runner := d.cmd.Process.Pid, d.child("__signer"), d.child("__runner")
	for name, pid := range map[string]int{"supervisor": supervisor, "signer": signer, "veyra-git": git} {
		wantCapabilities(t, name, pid, 0)
	}
	wantCapabilities(t, "runner", runner, mask(unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE, unix.CAP_SETUID,
		unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID))
	for name, pid := range map[string]int{"supervisor": supervisor, "signer": signer, "veyra-git": git} {
		if got := field(pid, "Seccomp"); got != "2" {
			t.Errorf("%s: Seccomp %s", name, got)
		}
		if uids := strings.Fields(field(pid, "Uid")); slices.Contains(uids, "0") {
			t.Errorf("%s has uids %v", name, uids)
		}
	}
	for name, pid := range map[string]int{"supervisor": supervisor, "signer": signer, "runner": runner, "veyra-git": git} {
		if got := field(pid, "NoNewPrivs"); got != "1" && name != "runner" {
			t.Errorf("%s: NoNewPrivs %s", name, got)
		}
	}
	wantSignerDescriptors(t, signer)
	wantNoInternet(t, "runner", runner)
	wantNoInternet(t, "signer", signer)
	close(hold.open)
	w.accepted(id)
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}

func mask(capabilities ...int) (all uint64) {
	for _, c := range capabilities {
		all |= 1 << c
	}
	return all
}

// wantCapabilities reads all five sets of all threads.
func wantCapabilities(t *testing.T, name string, pid int, most uint64) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if len(tasks) == 0 {
		t.Errorf("%s (%d) has no threads", name, pid)
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for line := range strings.Lines(string(text)) {
			var set string
			var bits uint64
			if n, _ := fmt.Sscanf(line, "Cap%3s: %x", &set, &bits); n != 2 {
				continue
			}
			if bits&^most != 0 || most != 0 && bits != most && (set == "Prm" || set == "Bnd") {
				t.Errorf("%s: Cap%s is %#x, want %#x", name, set, bits, most)
			}
		}
	}
}

// descriptors are what a process has open.
func descriptors(t *testing.T, pid int) map[string]string {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Fatalf("descriptors of %d: %v", pid, err)
	}
	open := map[string]string{}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			open[filepath.Base(link)] = target
		}
	}
	return open
}

func wantSignerDescriptors(t *testing.T, pid int) {
	t.Helper()
	sockets, logs := 0, 0
	for fd, target := range descriptors(t, pid) {
		switch {
		case target == "/dev/null", fd == "2" && strings.HasPrefix(target, "pipe:"), strings.HasPrefix(target, "anon_inode:"):
		case strings.HasPrefix(target, "socket:"):
			sockets++
		case strings.HasSuffix(target, "/signing.log"):
			logs++
		default:
			t.Errorf("the signer has descriptor %s: %s", fd, target)
		}
	}
	if sockets != 1 || logs != 1 {
		t.Errorf("the signer has %d sockets and %d logs", sockets, logs)
	}
}

// wantNoInternet looks for the process's sockets among the inet sockets of its
// network namespace.
func wantNoInternet(t *testing.T, name string, pid int) {
	t.Helper()
	for fd, target := range descriptors(t, pid) {
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if !isSocket {
			continue
		}
		for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet", "netlink"} {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
			if slices.Contains(strings.Fields(string(text)), strings.TrimSuffix(inode, "]")) {
				t.Errorf("%s: descriptor %s is a %s socket", name, fd, table)
			}
		}
	}
}

// TestDeadSignerOrRunner kills one process while a job runs: the daemon stays,
// says so, beats UNHEALTHY so that no work comes, and the running sandboxes end.
// The next daemon does the job.
func TestDeadSignerOrRunner(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"signer", "runner"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			p := w.newPlace()
			d := w.ready(p)
			asked, answer := make(chan struct{}), make(chan struct{})
			var once sync.Once
			id := w.job("stuck", "Make add add", project(), nil)
			w.script("Make add add", func(c providertest.Conversation) providertest.Step {
				if c.Turn == 0 {
					return providertest.Step{Shell: "sleep 1000 & true"}
				}
				once.Do(func() { close(asked) })
				<-answer
				if c.Turn == 1 {
					return fix()
				}
				return providertest.Step{Finish: "Fixed add."}
			})
			waittest.For(t, "the model is asked", asked)
			results := len(w.sent(controlplanetest.JobResult))
			log := readFile(t, filepath.Join(p.state, "signing.log"))
			_ = unix.Kill(d.child("__"+who), unix.SIGKILL)
			defer func() {
				if t.Failed() {
					t.Logf("in sandboxes: %v", inSandboxes(d.instance()))
				}
			}()
			until(t, "no sandbox of the job runs", func() bool { return len(inSandboxes(d.instance())) == 0 })
			close(answer)
			st := d.statusUntil("status tells of the dead process", func(st supervisor.Status) bool { return st.Ready == who })
			if !strings.Contains(st.Why, "The "+who+" process is gone") {
				t.Errorf("status says %q", st.Why)
			}
			w.wait("beats say UNHEALTHY", func(v controlplanetest.View) bool {
				return v.Agents[0].LastBeat["health"] == string(protocol.Unhealthy)
			})
			beats := w.plane.View().Counts.Beats
			w.wait("three more beats", func(v controlplanetest.View) bool { return v.Counts.Beats >= beats+3 })
			if who == "signer" {
				if diff := cmp.Diff(log, readFile(t, filepath.Join(p.state, "signing.log"))); diff != "" {
					t.Errorf("something was signed:\n%s", diff)
				}
				if n := len(w.sent(controlplanetest.JobResult)); n != results {
					t.Errorf("%d results were sent without a signer", n-results)
				}
			}
			d.kill()
			again := w.start(p)
			w.accepted(id)
			again.stop()
			wantNothingLeft(t, again.instance(), again.state)
		})
	}
}
