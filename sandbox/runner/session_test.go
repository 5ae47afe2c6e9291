package runner_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire/initwiretest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// inside is a Session with a real init.
type inside struct {
	*runner.Session
	init  *initwiretest.Init
	ready runner.Ready

	mu       sync.Mutex // guards counters
	counters sandbox.Counters
}

func start(t *testing.T, opts initwiretest.Options) *inside {
	t.Helper()
	in := &inside{init: initwiretest.Start(t, opts)}
	var err error
	in.Session, in.ready, err = runner.NewSession(t.Context(), in.init.Stdin, in.init.Stdout,
		policies.Limits{OutputReadBytes: 1 << 30}, in.count)
	if err != nil {
		<-in.init.Ended()
		t.Fatalf("%v; last words: %s", err, in.init.LastWords())
	}
	t.Cleanup(func() { _ = in.Close() })
	return in
}

func (in *inside) count(context.Context) (sandbox.Counters, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.counters, nil
}

func (in *inside) set(c sandbox.Counters) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.counters = c
}

// sh runs a script with merged output and fails the test on an error.
func (in *inside) sh(t *testing.T, script string) (sandbox.Exit, string) {
	t.Helper()
	return in.run(t, sandbox.Command{Argv: []string{"sh", "-c", script}})
}

func (in *inside) run(t *testing.T, cmd sandbox.Command) (sandbox.Exit, string) {
	t.Helper()
	var out bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	exit, err := in.Run(t.Context(), cmd)
	if err != nil {
		t.Fatalf("running %q: %v", cmd.Argv, err)
	}
	return exit, out.String()
}

func TestReadyTellsWhatInitMayDo(t *testing.T) {
	r := start(t, initwiretest.Options{WorkspaceTmpfs: "size=8m"}).ready
	const four = uint64(1<<unix.CAP_KILL | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP)
	got := []uint64{r.Init.Permitted, r.Init.Effective, r.Init.Bounding, r.Init.Inheritable, r.Init.Ambient}
	if diff := cmp.Diff([]uint64{four, four, four, 0, 0}, got); diff != "" {
		t.Errorf("init's capabilities (-want +got):\n%s", diff)
	}
	if r.Forker.Bounding != 0 || r.Forker.Inheritable != 0 || r.Forker.NoNewPrivs != 1 {
		t.Errorf("forker keeps rights: %+v", r.Forker)
	}
	if r.Dumpable != 0 || r.Init.UID != [4]int{} || r.Init.NoNewPrivs != 1 {
		t.Errorf("init: %+v", r)
	}
	if diff := cmp.Diff([]runner.IDMap{{Inside: 0, Outside: 0, Count: 1}, {Inside: 1000, Outside: 1000, Count: 1}}, r.UIDMap); diff != "" {
		t.Errorf("uid map (-want +got):\n%s", diff)
	}
	work := slices.IndexFunc(r.Mounts, func(m runner.Mount) bool { return m.Path == "/workspace" })
	if work < 0 || !r.Mounts[work].Writable() || !r.Mounts[work].Has("nodev") {
		t.Errorf("/workspace is not among the mounts: %+v", r.Mounts)
	}
	proc := slices.IndexFunc(r.Mounts, func(m runner.Mount) bool { return m.Path == "/proc" })
	if proc < 0 || !r.Mounts[proc].Has("nosuid") || r.Mounts[proc].Type != "proc" {
		t.Errorf("/proc is not among the mounts: %+v", r.Mounts)
	}
}

func TestExitCodes(t *testing.T) {
	in := start(t, initwiretest.Options{})
	for _, c := range []struct {
		name         string
		argv         []string
		code, signal int
	}{
		{"success", []string{"true"}, 0, 0},
		{"status", []string{"sh", "-c", "exit 7"}, 7, 0},
		{"signal", []string{"sh", "-c", "kill -TERM $$"}, 128 + 15, 15},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, 128 + 9, 9},
		{"a status that looks like a signal", []string{"sh", "-c", "exit 137"}, 137, 0},
		{"not found", []string{"no-such-program"}, 127, 0},
		{"path not found", []string{"/no/such/program"}, 127, 0},
		{"not executable", []string{"/etc/passwd"}, 126, 0},
		{"directory", []string{"/usr"}, 126, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			exit, out := in.run(t, sandbox.Command{Argv: c.argv})
			if exit.Code != c.code || exit.Signal != c.signal || exit.Ended != "" || exit.Gone {
				t.Errorf("exit %+v, want code %d signal %d; output %q", exit, c.code, c.signal, out)
			}
		})
	}
}

func TestDirectoryOfACommand(t *testing.T) {
	in := start(t, initwiretest.Options{})
	in.sh(t, "mkdir /workspace/sub && ln -s sub /workspace/link")
	for dir, code := range map[string]int{"/workspace/sub": 0, "/workspace/link": 126, "/workspace/none": 126} {
		exit, out := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "pwd"}, Dir: dir})
		if exit.Code != code || code == 0 && out != dir+"\n" {
			t.Errorf("in %s: exit %+v, output %q, want code %d", dir, exit, out, code)
		}
	}
	for _, dir := range []string{"/etc", "workspace", "/workspace/../etc", "/proc/self/fd/3", "/workspace/"} {
		_, err := in.Run(t.Context(), sandbox.Command{Argv: []string{"true"}, Dir: dir})
		if sandbox.KindOf(err) != sandbox.KindRefused {
			t.Errorf("A04: directory %q: error %v, want a refusal", dir, err)
		}
	}
}

func TestA01CommandsHaveNoRights(t *testing.T) {
	in := start(t, initwiretest.Options{})
	_, out := in.sh(t, `exec grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|SigIgn|SigBlk)' /proc/self/status`)
	got := strings.Fields(out)
	zero, ids := "0000000000000000", []string{"1000", "1000", "1000", "1000"}
	want := slices.Concat([]string{"Uid:"}, ids, []string{"Gid:"}, ids, []string{
		"Groups:",
		"SigBlk:", zero, "SigIgn:", zero, "CapInh:", zero, "CapPrm:", zero, "CapEff:", zero, "CapBnd:", zero, "CapAmb:", zero, "NoNewPrivs:", "1",
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestCommandsGetNothingOfInit(t *testing.T) {
	in := start(t, initwiretest.Options{})
	for _, c := range []struct{ name, script, want string }{
		{"descriptors", "i=0; while [ $i -lt 100 ]; do [ -e /proc/self/fd/$i ] && echo $i; i=$((i+1)); done | tr '\n' ' '", "0 1 2"},
		{"umask", "umask", "0022"},
		{"terminal", "(: < /dev/tty) 2>/dev/null || echo none", "none"},
		{"session", "cut -d' ' -f6 /proc/self/stat | grep -qx $$ && echo own", "own"},
		{"oom score", "cat /proc/self/oom_score_adj", "1000"},
		{"input", "cat; readlink /proc/self/fd/0", "/dev/null"},
		{"init's threads", "for t in /proc/1/task/*; do renice -n 19 -p ${t##*/} >/dev/null 2>&1 && echo reniced; taskset -cp 0 ${t##*/} >/dev/null 2>&1 && echo pinned; kill -STOP ${t##*/} 2>/dev/null && echo stopped; done; echo end", "end"},
		{"init's files", "cat /proc/1/environ /proc/1/maps 2>/dev/null; ls /proc/1/fd 2>/dev/null; kill -9 1 2>/dev/null; echo end", "end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, out := in.sh(t, c.script); strings.TrimSpace(out) != c.want {
				t.Errorf("%q, want %q", out, c.want)
			}
		})
	}
	// The child may be faster than init's write after the fork.
	exit, _ := in.sh(t, "i=0; while grep -q 1000 /proc/1/oom_score_adj; do i=$((i+1)); [ $i -gt 500 ] && exit 1; sleep 0.01; done")
	if exit.Code != 0 {
		t.Error("init did not take its own score back")
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	in := start(t, initwiretest.Options{})
	_, out := in.run(t, sandbox.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1", "B=x=y\xff", "EMPTY="}})
	if want := "A=1\nB=x=y\xff\nEMPTY=\n"; out != want {
		t.Errorf("environment %q, want %q", out, want)
	}
	_, out = in.run(t, sandbox.Command{Argv: []string{"env"}})
	if want := strings.Join(sandbox.DefaultEnv(), "\n") + "\n"; out != want {
		t.Errorf("environment %q, want %q", out, want)
	}
}

func TestStreams(t *testing.T) {
	in := start(t, initwiretest.Options{})
	const script = "echo one; echo two >&2; echo three > /dev/stderr; echo four > /dev/stdout"
	if _, out := in.sh(t, script); out != "one\ntwo\nthree\nfour\n" {
		t.Errorf("merged output %q", out)
	}
	var out, errs bytes.Buffer
	in.run(t, sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs})
	if out.String() != "one\nfour\n" || errs.String() != "two\nthree\n" {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
}

func TestB11FramesAreNotForgeable(t *testing.T) {
	in := start(t, initwiretest.Options{})
	// An Exited frame of the next command with status 0, as bytes of output.
	forged := `\000\000\000\010\025\000\000\000\001\000\000\000\000\000\000\000\000`
	exit, out := in.sh(t, "printf '"+forged+"'; printf '"+forged+"' >&2; exit 3")
	if exit.Code != 3 || len(out) != 34 {
		t.Errorf("exit %+v, %d bytes of output", exit, len(out))
	}
}

func TestB17LeftoverDoesNotHoldTheCommand(t *testing.T) {
	in := start(t, initwiretest.Options{})
	exit, out := in.sh(t, "setsid sh -c 'sleep 1000; echo late' & echo done")
	if exit.Code != 0 || out != "done\n" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	// It is still there (and may not have come to its sleep yet).
	exit, _ = in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "until pgrep -f '^sleep 1000'; do sleep 0.01; done"}, Timeout: 20 * time.Second})
	if exit.Code != 0 {
		t.Errorf("the left-over is gone: %+v", exit)
	}
	// Alone ends it, and whatever else tries to survive.
	in.sh(t, "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP INT; (sleep 1000 & sleep 1000 & wait) & kill -STOP $$' & done; sleep 0.1")
	_, out = in.run(t, sandbox.Command{Alone: true, Argv: []string{"sh", "-c", "cd /proc && echo [0-9]*; echo $$"}})
	lines := strings.Split(out, "\n")
	if want := "1 " + lines[1]; lines[0] != want {
		t.Errorf("processes %q, want %q", lines[0], want)
	}
}

func TestAloneEndsEveryKindOfLeftover(t *testing.T) {
	in := start(t, initwiretest.Options{})
	if exit, _ := in.sh(t, "command -v perl"); exit.Code != 0 {
		t.Skip("not applicable: needs perl")
	}
	for name, left := range map[string]string{
		// prctl(PR_SET_CHILD_SUBREAPER): orphans go to it and not to init.
		"subreaper": `perl -e 'syscall(157,36,1,0,0,0); for(1..5){ if(!fork){ if(!fork){sleep 1000} exit } } print "up\n"; close STDOUT; sleep 1000'`,
		// PTRACE_TRACEME, then a stop that only the tracer can end.
		"traced":                            `perl -e 'if(!fork){ syscall(101,0,0,0,0); kill "STOP",$$; sleep 1000 } wait; print "up\n"; close STDOUT; sleep 1000'`,
		"fork loop":                         `sh -c 'echo up; exec >/dev/null; while :; do (true; sleep 0.01 &) ; done'`,
		"chain":                             `perl -e 'print "up\n"; close STDOUT; while(1){ exit if fork; }'`,
		"vfork":                             `perl -e 'print "up\n"; close STDOUT; system("sleep 1000")'`,
		"orphan that makes init its tracer": `perl -e 'exit if fork; sleep 1 while getppid() != 1; syscall(101,0,0,0,0); print "up\n"; close STDOUT; kill "USR1",$$; sleep 1000'`,
	} {
		t.Run(name, func(t *testing.T) {
			// The mark tells that it has got where it wants to be.
			in.sh(t, "mkfifo /tmp/mark; setsid "+left+" > /tmp/mark & head -n1 /tmp/mark; rm /tmp/mark")
			exit, out := in.run(t, sandbox.Command{Alone: true, Timeout: 30 * time.Second, Argv: []string{"sh", "-c", "cd /proc && echo [0-9]*; echo $$"}})
			lines := strings.Split(out, "\n")
			if exit.Code != 0 || len(lines) < 2 || lines[0] != "1 "+lines[1] {
				t.Errorf("exit %+v, processes %q", exit, out)
			}
		})
	}
}

func TestI15LeftoverCannotWriteToTheNextCommand(t *testing.T) {
	in := start(t, initwiretest.Options{})
	in.sh(t, "setsid sh -c 'while :; do echo FORGED; echo FORGED > /proc/$PPID/fd/1; done' 2>/dev/null & exit 0")
	exit, out := in.run(t, sandbox.Command{Alone: true, Argv: []string{"sh", "-c", "sleep 0.1; echo honest; exit 5"}})
	if exit.Code != 5 || out != "honest\n" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
}

func TestInput(t *testing.T) {
	in := start(t, initwiretest.Options{})
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB, many windows
	var out bytes.Buffer
	in.run(t, sandbox.Command{Argv: []string{"cat"}, Stdin: bytes.NewReader(big), Stdout: &out})
	if !bytes.Equal(out.Bytes(), big) {
		t.Errorf("%d of %d bytes came back", out.Len(), len(big))
	}
	// A child that never reads holds up nothing but its own input.
	exit, _ := in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "sleep 0.2; exit 4"}, Stdin: endless{}})
	if exit.Code != 4 {
		t.Errorf("exit %+v of a child that does not read", exit)
	}
	// Nor does one that stops reading, or an input that never comes.
	exit, _ = in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "head -c 10 >/dev/null; exec <&-; sleep 0.1; exit 6"}, Stdin: endless{}})
	if exit.Code != 6 {
		t.Errorf("exit %+v of a child that stopped reading", exit)
	}
	silent, hold := io.Pipe()
	defer hold.Close()
	if exit, _ = in.run(t, sandbox.Command{Argv: []string{"sh", "-c", "exit 8"}, Stdin: silent}); exit.Code != 8 {
		t.Errorf("exit %+v beside a silent input", exit)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestBrokenInputIsNoEndOfInput(t *testing.T) {
	in := start(t, initwiretest.Options{})
	broken := io.MultiReader(strings.NewReader("half"), brokenReader{})
	_, err := in.Run(t.Context(), sandbox.Command{Argv: []string{"cat"}, Stdin: broken})
	if sandbox.KindOf(err) != sandbox.KindRefused {
		t.Errorf("error %v, want a refusal", err)
	}
	if exit, _ := in.sh(t, "exit 2"); exit.Code != 2 {
		t.Errorf("the sandbox is not usable afterwards: %+v", exit)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func BenchmarkCommand(b *testing.B) {
	init := initwiretest.Start(b, initwiretest.Options{})
	s, _, err := runner.NewSession(b.Context(), init.Stdin, init.Stdout, policies.Limits{}, func(context.Context) (sandbox.Counters, error) {
		return sandbox.Counters{}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		if _, err := s.Run(b.Context(), sandbox.Command{Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}
