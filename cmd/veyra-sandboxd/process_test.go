package main_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// daemon is one running daemon. Its log is read as it comes.
type daemon struct {
	t      testing.TB
	cmd    *exec.Cmd
	env    []string
	state  string
	public string
	admin  string
	// serving is the log line of that name, ready once it has come.
	serving map[string]any
	ended   chan struct{}
	err     error

	mu  sync.Mutex
	log bytes.Buffer
	// changed is closed and replaced with each line.
	changed chan struct{}
}

// place is where a daemon lives: what stays the same over restarts.
type place struct {
	state, public, admin string
	env                  []string
	// config is a file of settings, or "".
	config string
	// policy is a name or a file; "": strict.
	policy string
}

// newPlace chooses state, ports and the settings that interface.md names for an
// owner who starts with the environment alone.
func (w *world) newPlace() place {
	w.t.Helper()
	dir := w.t.TempDir()
	keyFile := filepath.Join(dir, "key")
	writeFile(w.t, keyFile, w.key+"\n", 0o600)
	p := place{state: filepath.Join(dir, "state"), config: frugal(w.t), public: freeAddress(w.t), admin: freeAddress(w.t)}
	_, port, _ := net.SplitHostPort(p.public)
	p.env = []string{
		"VEYRA_CONTROL_PLANE=" + w.origin, "VEYRA_GIT_ORIGINS=" + w.origin, "GITHUB_API_URL=" + w.origin + restRoot,
		"AI_BASE_URL=" + w.origin + "/v1", "AI_MODEL=scripted", "AI_API_KEY_FILE=" + keyFile, "AI_PROVIDER=scripted provider",
		"VEYRA_HEARTBEAT_SECONDS=2", "RUNTIME_BIND_HOST=127.0.0.1", "RUNTIME_PORT=" + port, "RUNTIME_PUBLIC_HOST=127.0.0.1",
		"VEYRA_TLS_MODE=off", "VEYRA_ADMIN_ADDR=" + p.admin,
	}
	return p
}

// addresses are those that tests were given.
var addresses sync.Map

// freeAddress is below the ports that the kernel gives to connections: between
// two daemons of one place no test's connection must take the address.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		l.Close()
		if _, given := addresses.LoadOrStore(address, true); !given {
			return address
		}
	}
	t.Fatal("no address is free")
	return ""
}

// frugal writes settings that leave a sandbox about 4 GiB of this host's disk
// instead of half of what is free: tests run beside each other, and all of them
// book. It still does when others have filled 4 GiB meanwhile.
func frugal(t testing.TB) string {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(house.cache, &stat); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "frugal.yaml")
	writeFile(t, path, fmt.Sprintf("keep: {disk_floor: %d}\n", max(0, int64(stat.Bavail)*stat.Bsize-8<<30)), 0o600)
	return path
}

// launch starts a daemon and returns at once.
func (w *world) launch(p place, more ...string) *daemon {
	w.t.Helper()
	needSandboxes(w.t)
	d := &daemon{t: w.t, env: append(p.env, more...), state: p.state, public: p.public, admin: p.admin, ended: make(chan struct{}), changed: make(chan struct{})}
	args := []string{"--policy", cmp.Or(p.policy, "strict"), "--state-dir", p.state}
	if p.config != "" {
		args = append(args, "--config", p.config)
	}
	d.cmd = exec.Command(house.daemon, args...)
	d.cmd.Env = environ(d.env...)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, in, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	d.cmd.Stderr = in
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	in.Close()
	read := make(chan struct{})
	go func() { defer close(read); d.read(out) }()
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
		<-read
		out.Close()
	}()
	w.t.Cleanup(d.cleanUp)
	return d
}

func (d *daemon) read(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		d.mu.Lock()
		d.log.Write(line)
		close(d.changed)
		d.changed = make(chan struct{})
		d.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// start waits until the daemon serves.
func (w *world) start(p place, more ...string) *daemon {
	w.t.Helper()
	d := w.launch(p, more...)
	d.serving = d.line("serving")
	return d
}

// line waits for the first log line with this message.
func (d *daemon) line(message string) map[string]any {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	for {
		d.mu.Lock()
		text, changed := d.log.String(), d.changed
		d.mu.Unlock()
		for _, line := range strings.Split(text, "\n") {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				return fields
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			d.t.Fatalf("no line %q in the log:\n%s", message, text)
		case <-d.ended:
			d.t.Fatalf("the daemon ended (%v) before the line %q:\n%s", d.err, message, d.text())
		}
	}
}

func (d *daemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// cleanUp ends whatever a failed test left, as its owner would: the next daemon
// of a state directory sweeps what the last one could not.
func (d *daemon) cleanUp() {
	d.killAll()
	if d.t.Failed() || testing.Verbose() {
		d.t.Logf("log of daemon %d:\n%s", d.cmd.Process.Pid, d.text())
	}
	if d.serving == nil || len(traces(d.instance(), d.state)) == 0 {
		return
	}
	next := exec.Command(d.cmd.Path, d.cmd.Args[1:]...)
	next.Env = d.cmd.Env
	said, err := next.StderrPipe()
	if err != nil || next.Start() != nil {
		d.t.Errorf("the host could not be swept: %v", err)
		return
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if strings.Contains(lines.Text(), `"serving"`) {
			_ = next.Process.Signal(unix.SIGTERM) // drain
			_ = next.Process.Signal(unix.SIGTERM) // and cancel
		}
	}
	_ = next.Wait()
}

// kill ends the supervisor as a crash does, and waits for that.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// killAll ends every process of the daemon's group at once.
func (d *daemon) killAll() {
	_ = unix.Kill(-d.cmd.Process.Pid, unix.SIGKILL)
	<-d.ended
}

// stop drains the daemon and wants it to end well.
func (d *daemon) stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatal("the daemon did not end after SIGTERM")
	}
	if d.err != nil {
		d.t.Errorf("the daemon ended with %v after SIGTERM", d.err)
	}
}

func (d *daemon) instance() string { return fmt.Sprint(d.serving["instance"]) }

// tell runs an operator's command beside the daemon, or without it.
func (d *daemon) tell(args ...string) said {
	d.t.Helper()
	return command(d.t, d.env, append(args, "--state-dir", d.state)...)
}

// pair makes a link with the command and lets the control plane redeem it.
func (d *daemon) pair(w *world) (agent, link string) {
	d.t.Helper()
	link = strings.TrimSpace(d.tell("link").want(d.t, 0).out)
	agent, err := w.plane.Pair(d.t.Context(), link)
	if err != nil {
		d.t.Fatalf("pairing by %s: %v", link, err)
	}
	return agent, link
}

// status asks the daemon.
func (d *daemon) status() supervisor.Status {
	d.t.Helper()
	var st supervisor.Status
	text := d.tell("status", "--json").want(d.t, 0).out
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		d.t.Fatalf("status %s: %v", text, err)
	}
	return st
}

// statusUntil asks until cond holds.
func (d *daemon) statusUntil(what string, cond func(supervisor.Status) bool) supervisor.Status {
	d.t.Helper()
	var st supervisor.Status
	until(d.t, what, func() bool { st = d.status(); return cond(st) })
	return st
}

// until polls what can't be waited for.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	waittest.Until(t, what, cond)
}

// get reads a page of a listener.
func get(t testing.TB, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// ready starts a daemon that is paired with an agent that needs no
// qualification.
func (w *world) ready(p place) *daemon {
	w.t.Helper()
	d := w.start(p)
	d.pair(w)
	w.wait("the first beat is taken", func(v controlplanetest.View) bool { return v.Counts.Beats > 0 })
	return d
}
