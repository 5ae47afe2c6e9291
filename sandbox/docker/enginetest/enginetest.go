// Package enginetest starts Docker Engines for tests: each with directories,
// socket, mounts and network of its own, so that nothing of the machine's own
// engine is touched and nothing stays behind. It is for tests only. Start reading
// at Start; tools/engines.sh puts the programs where it looks.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is an engine that tools/engines.sh knows.
type Kind string

// The kinds: what Debian stable has, and the newest release.
const (
	Debian  Kind = "debian"
	Current Kind = "current"
)

// firstID is where the remapped ids of an engine begin.
const firstID = 400_000

// Options change how an engine is started.
type Options struct {
	// Remap gives the engine's containers a user namespace.
	Remap bool
}

// Engine is a running engine. It ends with its test.
type Engine struct {
	Kind   Kind
	Dir    string // everything it writes; 0711
	Socket string

	t      testing.TB
	argv   []string
	cgroup string
	cmd    *exec.Cmd
	exited chan struct{}
}

// Programs returns the directory of a kind's programs, or skips the test.
func Programs(t testing.TB, kind Kind) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	dir := filepath.Join(repository(), "bin", "engines", string(kind))
	if _, err := os.Stat(filepath.Join(dir, "dockerd")); err != nil {
		t.Skipf("not applicable: no Docker Engine %q (`make engines` gets it)", string(kind))
	}
	return dir
}

// repository is the directory of go.mod, by where this file was compiled.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath: tests run in their package's directory
		at, _ := os.Getwd()
		for at != "/" && !exists(filepath.Join(at, "go.mod")) {
			at = filepath.Dir(at)
		}
		return at
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var engines atomic.Int64

// Start starts an engine and waits until it answers.
func Start(t testing.TB, kind Kind, o Options) *Engine {
	t.Helper()
	programs := Programs(t, kind)
	dir, err := os.MkdirTemp("", "veyra-engine-")
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{
		Kind: kind, Dir: dir, Socket: filepath.Join(dir, "s"), t: t,
		cgroup: fmt.Sprintf("veyra-engine-%d-%d", os.Getpid(), engines.Add(1)),
	}
	t.Cleanup(e.clean)
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(filepath.Join(dir, "home"), 0o700)); err != nil {
		t.Fatal(err)
	}
	e.argv = e.arguments(programs, o)
	e.Run()
	return e
}

// arguments is a script that ends as dockerd. Its /run is its own, since shims put
// sockets there; with remapping an overlay over /etc names the ids.
func (e *Engine) arguments(programs string, o Options) []string {
	script := "mount -t tmpfs -o mode=755 run /run && "
	flags := []string{
		"--data-root", e.Dir + "/d", "--exec-root", e.Dir + "/x", "--pidfile", e.Dir + "/p", "-H", "unix://" + e.Socket,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false", "--cgroup-parent=/" + e.cgroup,
	}
	if o.Remap {
		script += fmt.Sprintf("mkdir -p %[1]s/etc %[1]s/work && mount -t overlay engine -o lowerdir=/etc,upperdir=%[1]s/etc,workdir=%[1]s/work /etc &&"+
			" echo veyraremap:x:%[2]d:%[2]d::/:/bin/false >> /etc/passwd && echo veyraremap:x:%[2]d: >> /etc/group &&"+
			" echo veyraremap:%[2]d:65536 > /etc/subuid && cp /etc/subuid /etc/subgid && ", e.Dir, firstID)
		flags = append(flags, "--userns-remap=veyraremap")
	}
	if runsc := filepath.Join(repository(), "bin", "runsc"); exists(runsc) {
		flags = append(flags, "--add-runtime", "runsc="+runsc)
	}
	path := programs + ":" + filepath.Join(repository(), "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"
	script += fmt.Sprintf("export PATH=%s LD_LIBRARY_PATH=%s HOME=%s/home; exec %s/dockerd \"$@\"", path, programs, e.Dir, programs)
	return append([]string{"/bin/sh", "-c", script, "dockerd"}, flags...)
}

// Run starts the engine again after Stop or Kill.
func (e *Engine) Run() {
	e.t.Helper()
	log, err := os.OpenFile(filepath.Join(e.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.t.Fatal(err)
	}
	defer log.Close()
	_ = os.Remove(filepath.Join(e.Dir, "p")) // a killed engine's; its number may be somebody else's by now
	e.cmd = exec.Command(e.argv[0], e.argv[1:]...)
	e.cmd.Env, e.cmd.Dir, e.cmd.Stdout, e.cmd.Stderr = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/", log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { // ends with the process
		_ = cmd.Wait()
		close(exited)
	}(e.cmd, e.exited)
	e.await()
}

func (e *Engine) await() {
	e.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		if _, err := e.ask("/_ping"); err == nil {
			return
		} else if e.ended() || time.Now().After(deadline) {
			e.t.Fatalf("the engine %s does not answer: %v\n%s", e.Kind, err, e.Log())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Ask gets a path of the engine's interface, past everything of ours.
func (e *Engine) Ask(path string) string {
	e.t.Helper()
	text, err := e.ask(path)
	if err != nil {
		e.t.Fatalf("asking the engine for %s: %v", path, err)
	}
	return text
}

func (e *Engine) ask(path string) (string, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", e.Socket) },
	}
	client := http.Client{Timeout: time.Minute, Transport: transport}
	answer, err := client.Get("http://engine" + path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return string(text), err
}

func (e *Engine) ended() bool {
	select {
	case <-e.exited:
		return true
	default:
		return false
	}
}

// Pid is the engine's.
func (e *Engine) Pid() int { return e.cmd.Process.Pid }

// Log is the end of what the engine wrote.
func (e *Engine) Log() string {
	raw, _ := os.ReadFile(filepath.Join(e.Dir, "log"))
	return string(raw[max(0, len(raw)-4000):])
}

// Signal sends a signal to the engine alone.
func (e *Engine) Signal(s syscall.Signal) { _ = e.cmd.Process.Signal(s) }

// Stop ends the engine, which ends its containers, and waits for it.
func (e *Engine) Stop() {
	e.Signal(unix.SIGCONT)
	e.Signal(unix.SIGTERM)
	select {
	case <-e.exited:
	case <-time.After(time.Minute):
		e.Kill()
	}
}

// Kill ends the engine like a crash: containers may live on.
func (e *Engine) Kill() {
	e.Signal(unix.SIGKILL)
	<-e.exited
}

// Groups are the control groups of the engine's containers.
func (e *Engine) Groups() []string {
	parents, _ := filepath.Glob("/sys/fs/cgroup/*/" + e.cgroup)
	if pure := "/sys/fs/cgroup/" + e.cgroup; exists(pure) {
		parents = append(parents, pure)
	}
	var found []string
	for _, parent := range parents {
		entries, _ := os.ReadDir(parent)
		for _, entry := range entries {
			if entry.IsDir() {
				found = append(found, filepath.Join(parent, entry.Name()))
			}
		}
	}
	return found
}

// clean ends everything that the engine started and removes what it wrote.
func (e *Engine) clean() {
	if e.cmd != nil && e.exited != nil {
		if e.t.Failed() {
			e.t.Logf("the engine's log ends:\n%s", e.Log())
		}
		e.Stop()
	}
	e.killLeft()
	// What was killed holds mounts and control groups until it is all gone.
	for deadline := time.Now().Add(time.Minute); !e.removed(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Errorf("the engine %s left %s or control groups", e.Kind, e.Dir)
			return
		}
	}
}

// removed takes away what is left as far as it can be.
func (e *Engine) removed() bool {
	err := os.RemoveAll(e.Dir)
	for _, parent := range e.parents() {
		var groups []string
		_ = filepath.WalkDir(parent, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return nil // one may go meanwhile
		})
		for _, group := range slices.Backward(groups) { // the deepest first
			_ = unix.Rmdir(group)
		}
	}
	return err == nil && !slices.ContainsFunc(e.parents(), exists)
}

func (e *Engine) parents() []string {
	parents, _ := filepath.Glob("/sys/fs/cgroup/*/" + e.cgroup)
	return append(parents, "/sys/fs/cgroup/"+e.cgroup)
}

// killLeft ends shims and containers of an engine that was killed: all of them
// name its directory or lie in its control groups.
func (e *Engine) killLeft() {
	for range 50 {
		pids := e.left()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (e *Engine) left() []int {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(entry), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(entry, "cmdline"))
		group, _ := os.ReadFile(filepath.Join(entry, "cgroup"))
		if strings.Contains(string(line), e.Dir+"/") || strings.Contains(string(group), e.cgroup+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}
