package docker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// small are limits under which a start is cheap.
func small(t testing.TB) policies.Limits {
	t.Helper()
	policy, err := policies.Load("strict")
	if err != nil {
		t.Fatal(err)
	}
	l := policy.Limits
	l.MemoryBytes, l.DiskBytes, l.Inodes, l.CPUs = 256<<20, 64<<20, 4096, 1
	return l
}

// bare starts a sandbox of init alone: it needs no image.
func bare(t testing.TB, c sandbox.Backend, id string) (sandbox.Job, sandbox.Sandbox) {
	t.Helper()
	job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: sandbox.JobID(id), Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	box, err := job.Create(t.Context(), sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	return job, box
}

// waiting is a command that ends with its input only.
func waiting(ctx context.Context, box sandbox.Sandbox, out io.Writer) <-chan error {
	reader, _ := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := box.Run(ctx, sandbox.Command{Argv: []string{sandbox.InitPath, "write", "/workspace/file"}, Stdin: reader, Stdout: out})
		ended <- err
	}()
	return ended
}

// patience is more than a slow and busy machine needs for anything.
const patience = 2 * time.Minute

// dead says whether a process is gone or a zombie: where the host's PID 1 reaps
// slowly, what an engine left stays that way for a while.
func dead(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(raw), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}

// wantNothing fails unless the engine forgets the sandboxes, and the host does, as
// soon as the engine's helpers are through: it answers a removal that it has begun
// before as if it were over.
func wantNothing(t testing.TB, e *enginetest.Engine) {
	t.Helper()
	waittest.Until(t, "the engine lists no container", func() bool {
		return strings.TrimSpace(e.Ask("/containers/json?all=1")) == "[]"
	})
	waittest.Until(t, "control groups are gone", func() bool { return len(e.Groups()) == 0 })
}

// TestJ07EngineKilled: the engine dies below a running sandbox. The command has no
// result, nothing starts meanwhile, nothing is left, and the engine that comes
// back is used again.
func TestJ07EngineKilled(t *testing.T) {
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	c := start(t, config(t, e.Socket, "test-killed", "strict", "runc"))
	job, box := bare(t, c, "killed")
	command := waiting(t.Context(), box, nil)
	first := firsts(e)[0]
	e.Kill()
	if err := <-command; sandbox.KindOf(err) != sandbox.KindCrashed {
		t.Errorf("a command below a dead engine: %v", err)
	}
	if _, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "meanwhile", Limits: small(t)}); sandbox.KindOf(err) != sandbox.KindStart {
		t.Errorf("a job without an engine: %v", err)
	}
	if err := job.Close(t.Context()); err != nil {
		t.Errorf("closing without an engine: %v", err)
	}
	waittest.Until(t, "PID 1 has ended", func() bool { return dead(first) })
	e.Run()
	job, _ = bare(t, c, "after")
	if err := job.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wantNothing(t, e)
}

// TestJ07EngineStopped: an orderly stop ends the sandbox as well.
func TestJ07EngineStopped(t *testing.T) {
	e := enginetest.Start(t, enginetest.Debian, enginetest.Options{Remap: true})
	c := start(t, config(t, e.Socket, "test-stopped", "strict", "runc"))
	job, box := bare(t, c, "stopped")
	command := waiting(t.Context(), box, nil)
	e.Stop()
	if err := <-command; sandbox.KindOf(err) != sandbox.KindCrashed {
		t.Errorf("a command below a stopped engine: %v", err)
	}
	if err := job.Close(t.Context()); err != nil {
		t.Errorf("closing without an engine: %v", err)
	}
	e.Run()
	if _, err := c.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	wantNothing(t, e)
}

// TestJ07EngineHangs: a frozen engine carries no frames. Its sandbox ends, closing
// doesn't wait for it, and what it keeps is removed once it goes on.
func TestJ07EngineHangs(t *testing.T) {
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	c := start(t, config(t, e.Socket, "test-hangs", "strict", "runc"))
	job, box := bare(t, c, "hangs")
	first := firsts(e)[0]
	e.Signal(unix.SIGSTOP)
	defer e.Signal(unix.SIGCONT)
	if _, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "meanwhile", Limits: small(t)}); sandbox.KindOf(err) != sandbox.KindStart {
		t.Errorf("a job on a frozen engine: %v", err)
	}
	if os.Getenv("VEYRA_SOAK") != "" {
		if err := <-waiting(t.Context(), box, nil); sandbox.KindOf(err) != sandbox.KindCrashed {
			t.Errorf("a command below a frozen engine: %v", err)
		}
	}
	if err := job.Close(t.Context()); err != nil {
		t.Errorf("closing on a frozen engine: %v", err)
	}
	waittest.Until(t, "PID 1 has ended", func() bool { return dead(first) })
	e.Signal(unix.SIGCONT)
	if _, err := c.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	wantNothing(t, e)
}

// TestJ07ImageGone: an image that was removed from the engine is imported again;
// one that took its name is refused by name.
func TestJ07ImageGone(t *testing.T) {
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	c := start(t, config(t, e.Socket, "test-image", "strict", "runc"))
	job, _ := bare(t, c, "first")
	if err := job.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Client(t, "image", "rm", "--force", "veyra-image:none")
	job, _ = bare(t, c, "again")
	if err := job.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Client(t, "image", "rm", "--force", "veyra-image:none")
	e.Client(t, "import", "--change", "ENV LD_PRELOAD=/evil.so", "--change", "VOLUME /v", "--change", "LABEL surf.veyra.image=none",
		emptyArchive(t), "veyra-image:none")
	job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "forged", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = job.Create(t.Context(), sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: small(t)})
	if sandbox.KindOf(err) != sandbox.KindStart || !strings.Contains(err.Error(), "veyra-image:none") {
		t.Errorf("an image that brings settings: %v", err)
	}
}

// emptyArchive is a tar archive with nothing in it.
func emptyArchive(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "empty.tar")
	if err := os.WriteFile(path, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nobodyReads: a job floods while nobody takes its output. Closing is not held up,
// the engine goes on answering, and its logs got nothing.
func nobodyReads(t *testing.T, e *enginetest.Engine, policy string) {
	h := startHost(t, e, "test-flood", policy, "runc")
	box := h.One(t)
	_, writer := io.Pipe() // never read
	go func() {
		_, _ = box.Run(t.Context(), sandbox.Command{Argv: []string{"yes"}, Stdout: writer})
	}()
	awaitPiled(t, firsts(e)[0])
	inspect := e.Ask("/containers/" + containerOf(t, e) + "/json")
	if !strings.Contains(inspect, `"LogPath":""`) || !strings.Contains(inspect, `"Type":"none"`) {
		t.Errorf("the engine logs: %.300s", inspect)
	}
	if err := box.Close(t.Context()); err != nil {
		t.Errorf("closing below a flood: %v", err)
	}
	wantNothing(t, e)
}

// awaitPiled waits until every pipe on the way is full: PID 1 writes no more.
func awaitPiled(t testing.TB, pid int) {
	t.Helper()
	written := func() string {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	before := ""
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		now := written()
		if now == before {
			return
		}
		if before = now; time.Now().After(deadline) {
			t.Fatal("output goes on though nobody reads it")
		}
	}
}

func containerOf(t testing.TB, e *enginetest.Engine) string {
	t.Helper()
	found := containerID.FindStringSubmatch(e.Ask("/containers/json"))
	if found == nil {
		t.Fatal("the engine lists no container")
	}
	return found[1]
}

// TestKilledRunnerLeavesNothing: kill -9 of the runner ends its sandboxes by their
// closed pipes; the next runner removes what the engine kept.
func TestKilledRunnerLeavesNothing(t *testing.T) {
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	settings := config(t, e.Socket, "test-crash", "strict", "runc")
	c, err := runner.Start(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	bare(t, c, "crash")
	first := firsts(e)[0]
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // waits until its lock is nobody's
	waittest.Until(t, "PID 1 has ended", func() bool { return dead(first) })
	start(t, settings)
	wantNothing(t, e)
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", e.Pid()))
	if err != nil || strings.Contains(string(mounts), "/test-crash/") {
		t.Errorf("mounts are left in the engine's namespace: %v", err)
	}
}

// recordedLife records every request of a sandbox's whole life and of a sweep: the
// interfaces that open files of a container, or run something in it, are none of
// them.
func recordedLife(t *testing.T, e *enginetest.Engine, policy string) {
	socket, requests := record(t, e)
	h := hostOn(t, e, start(t, config(t, socket, "test-recorded", policy, "runc")), policy, "runc")
	job := h.Job(t, h.Small())
	one := h.Create(t, job, h.Small())
	one.Must("mkdir d && echo 1 > d/f && mv d e && ln -s /etc d && ln -s / root")
	two := h.Create(t, job, h.Small(), one.FreezePaths(sandbox.Workspace)...)
	two.Must("rm -rf e && ln -s /proc/1 e")
	if err := two.Collect(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := job.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Backend.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DELETE /containers/ID", "GET /containers/ID/json", "GET /containers/json", "GET /images/ID/json", "GET /info",
		"GET /version", "HEAD /_ping", "POST /containers/ID/attach", "POST /containers/ID/start", "POST /containers/create",
	}
	imports := func(request string) bool { // of an engine without the image
		return request == "POST /images/create" || request == "GET /images/json"
	}
	if got := slices.DeleteFunc(requests(), imports); !slices.Equal(got, want) {
		t.Errorf("requests:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// recorderArg makes the test program a recorder. It runs in the engine's mount
// namespace, as the engine would: the runner looks there for whoever listens.
const recorderArg = "__recorder"

func record(t testing.TB, e *enginetest.Engine) (socket string, requests func() []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket, list := filepath.Join(e.Dir, "recorder"), filepath.Join(e.Dir, "requests")
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(e.Pid()), "--mount", "--", self, recorderArg, socket, e.Socket, list)
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		t.Fatalf("starting the recorder: %v", err)
	}
	return socket, func() []string { return kinds(t, list) }
}

var (
	version = regexp.MustCompile(`^/v[0-9.]+`)
	names   = regexp.MustCompile(`/(containers|images)/[^/?]+(/|$)`)
)

// kinds are the requests of a list, each once, without versions, ids and queries.
func kinds(t testing.TB, list string) []string {
	raw, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(raw)) {
		method, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		path, _, _ = strings.Cut(version.ReplaceAllString(path, ""), "?")
		if path != "/containers/create" && path != "/containers/json" && path != "/images/create" && path != "/images/json" {
			path = names.ReplaceAllString(path, "/$1/ID$2")
		}
		found = append(found, method+" "+path)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// recordMain passes connections on and writes down the first line of every
// request.
func recordMain(socket, engine, list string) error {
	out, err := os.OpenFile(list, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	fmt.Print("+")
	var mu sync.Mutex // guards out
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go recordOne(conn, engine, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(out, line)
		})
	}
}

// recordOne reads requests as HTTP, so that a later one of the same connection is
// seen too; after an upgrade it passes bytes.
func recordOne(conn net.Conn, engine string, note func(string)) {
	defer conn.Close()
	to, err := net.Dial("unix", engine)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(conn, to)
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	from := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(from)
		if err != nil {
			return
		}
		note(request.Method + " " + request.RequestURI)
		upgrade := request.Header.Get("Upgrade") != ""
		if request.Write(to) != nil {
			return
		}
		if upgrade {
			_, _ = io.Copy(to, from)
			_ = to.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			return
		}
	}
}
