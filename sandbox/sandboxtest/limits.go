package sandboxtest

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func limits(t *testing.T, h Host) {
	cases(t, h, merged(taskCases(), memoryCases(), storageCases(), map[string]func(*testing.T, Host){
		"B02ChildIsOOM":           childOOM,
		"B02InitDiesIsOOM":        initOOM,
		"B02PageCacheIsNoOOM":     pageCache,
		"B03Tmpfs":                tmpfsFull,
		"B04DiskFull":             diskFull,
		"B04InodesFull":           inodesFull,
		"B06Descriptors":          openFiles,
		"B10Output":               outputLimit,
		"B15Timeout":              timeout,
		"A15StubbornProcessesDie": stubborn,
		"B16NoCore":               noCore,
		"B17LeftoverKeepsStdout":  leftover,
	}))
}

// childOOM: what is killed is the command that asks too much, not the one that
// started it; gVisor may end as a whole.
func childOOM(t *testing.T, h Host) {
	b := h.One(t)
	exit, out, err := b.try(sandbox.Command{Argv: []string{"sh", "-c", "python3 -c 'x = bytearray(2 << 30)'; echo child $?; exit 0"}})
	wantOOM(t, h, "a child's", h.Small().MemoryBytes, exit, err)
	if h.Class == Kernel && (exit.Code != 0 || exit.Gone || !strings.Contains(out, "child 137")) {
		t.Errorf("an honest parent: %+v %s", exit, out)
	}
	if exit.Gone {
		b = h.One(t)
	}
	exit, _, err = b.try(sandbox.Command{Argv: []string{"python3", "-c", "x = bytearray(2 << 30)"}})
	wantOOM(t, h, "the command's own", h.Small().MemoryBytes, exit, err)
	if exit.Ended != sandbox.LimitOOM || h.Class == Kernel && exit.Code != 137 {
		t.Errorf("the command itself: %+v", exit)
	}
	if exit.Gone {
		return
	}
	if exit, _ := b.Sh("true"); exit.Code != 0 || len(exit.Limits) != 0 {
		t.Errorf("the command after it: %+v", exit)
	}
}

// initOOM has many small processes that lower their own score, so that PID 1 is
// the largest and the kernel may choose it; whichever it takes, the outcome is
// oom.
func initOOM(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(96 << 20)
	b := h.Create(t, h.Job(t, l), l)
	exit, out, err := b.try(sandbox.Command{Argv: []string{"sh", "-c", `for i in $(seq 130); do
(echo 0 > /proc/self/oom_score_adj; x=xxxxxxxx; for d in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do x=$x$x; done; exec 2>/dev/null; sleep 30) &
done
wait`}, Timeout: patience})
	wantOOM(t, h, "small processes'", l.MemoryBytes, exit, err)
	t.Logf("exit %+v %.200s", exit, out)
}

func pageCache(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.MemoryBytes = 128 << 20
	b := h.Create(t, h.Job(t, l), l)
	exit, out := b.Sh("dd if=/dev/zero of=big bs=1M count=300 2>&1 && cat big > /dev/null")
	if exit.Code != 0 || len(exit.Limits) != 0 {
		t.Errorf("page cache beyond the limit: %+v %s", exit, out)
	}
}

func tmpfsFull(t *testing.T, h Host) {
	b := h.One(t)
	exit, _ := b.Sh("dd if=/dev/zero of=/dev/shm/x bs=1M count=64 2>/dev/null")
	if exit.Code == 0 {
		t.Error("/dev/shm has no size")
	}
	if out := b.Must("stat -c %s /dev/shm/x; rm /dev/shm/x"); out != fmt.Sprintf("%d\n", h.Small().ShmBytes) {
		t.Errorf("/dev/shm held %s", out)
	}
	if exit, _ := b.Sh("echo x > /run/x"); exit.Code == 0 {
		t.Error("/run can be written by a command")
	}
	out := b.Python(`import os
n = 0
try:
    for i in range(100000): os.close(os.open("/dev/shm/%d" % i, os.O_CREAT)); n = i
except OSError as e: print("errno", e.errno, n)`)
	// gVisor's tmpfs counts no inodes; their memory is the job's.
	if h.Class == Kernel && !strings.HasPrefix(out, "errno 28") {
		t.Errorf("files in one tmpfs: %q", out)
	}
}

func diskFull(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.DiskBytes, l.Inodes = 64<<20, 4096
	b := h.Create(t, h.Job(t, l), l)
	before := hostFree(t)
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp", "/var/tmp"} {
		exit, out := b.Sh("dd if=/dev/zero of=" + dir + "/big bs=1M count=200 2>&1")
		wantLimit(t, exit, sandbox.LimitDisk)
		if exit.Code == 0 || !strings.Contains(out, "No space left") {
			t.Errorf("%s: %+v %s", dir, exit, out)
		}
		b.Must("rm " + dir + "/big")
	}
	exit, _ := noticed(t, sandbox.LimitDisk, func(seconds string) (sandbox.Exit, string) {
		return b.Sh("dd if=/dev/zero of=big bs=1M count=200 2>/dev/null; sleep " + seconds + "; rm big; exit 0")
	})
	if exit.Code != 0 {
		t.Errorf("a command that ends 0: %+v", exit)
	}
	if used := before - hostFree(t); used > 256<<20 {
		t.Errorf("the host's disk lost %d bytes to a 64 MiB sandbox", used)
	}
	if exit, _ := b.Sh("echo ok > small && cat small"); exit.Code != 0 || len(exit.Limits) != 0 {
		t.Errorf("the command after it: %+v", exit)
	}
}

func hostFree(t testing.TB) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

func inodesFull(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	l.DiskBytes, l.Inodes = 64<<20, 2048
	b := h.Create(t, h.Job(t, l), l)
	exit, out := b.Py(`import os
for i in range(100000): os.close(os.open("f%d" % i, os.O_CREAT))`)
	wantLimit(t, exit, sandbox.LimitInodes)
	if exit.Code == 0 || !strings.Contains(out, "No space left") {
		t.Errorf("files without end: %+v %s", exit, out)
	}
}

func openFiles(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import os
fds = []
try:
    while True: fds.append(os.open("/", os.O_RDONLY))
except OSError as e: print(e.errno, len(fds))`)
	var errno, n int64
	if _, err := fmt.Sscan(out, &errno, &n); err != nil || errno != int64(unix.EMFILE) || n > h.Small().OpenFiles {
		t.Errorf("open files: %q, limit %d", out, h.Small().OpenFiles)
	}
}

func outputLimit(t *testing.T, h Host) {
	b := h.One(t)
	for name, script := range map[string]string{
		"stdout":      "yes",
		"stderr":      "yes >&2",
		"one line":    "tr '\\0' x < /dev/zero",
		"alternating": "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; echo bbbbbbbbbbbbbbbbbbbbbbbbb >&2; done",
	} {
		exit, _ := b.Cmd(sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: io.Discard, OutputBytes: 1 << 20})
		if exit.Ended != sandbox.LimitOutput || exit.Gone || exit.OutputBytes < 1<<20 {
			t.Errorf("%s: %+v", name, exit)
		}
	}
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{"yes"}, Stdout: io.Discard})
	if exit.Ended != sandbox.LimitOutput {
		t.Errorf("the sandbox's own limit: %+v", exit)
	}
	b.Must("true")
}

func timeout(t *testing.T, h Host) {
	b := h.One(t)
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{"sleep", "600"}, Timeout: 200 * time.Millisecond})
	if exit.Ended != sandbox.LimitTimeout || exit.Gone {
		t.Errorf("a sleeper: %+v", exit)
	}
	if exit, _ := b.Sh("date -s 2001-01-01 2>/dev/null"); exit.Code == 0 {
		t.Error("the clock was set")
	}
	b.Must("true")
}

func stubborn(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{"python3", "-c", `import os, signal, time, ctypes
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for i in range(50):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if i % 3 == 0: os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        os._exit(0)
time.sleep(600)`}, Timeout: 500 * time.Millisecond})
	if exit.Ended != sandbox.LimitTimeout {
		t.Errorf("a stubborn tree: %+v", exit)
	}
	if h.Class == Kernel {
		if n, err := alive(pid); err != nil || n != 1 {
			t.Errorf("%d processes of the sandbox live after the command's end, %v", n, err)
		}
	}
	if out := b.Python("import os; print([p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))])"); out != "[]\n" {
		t.Errorf("processes are left: %s", out)
	}
}

func noCore(t *testing.T, h Host) {
	b := h.One(t)
	exit, _ := b.Py("import os; os.abort()")
	if exit.Signal != int(unix.SIGABRT) {
		t.Errorf("abort gave %+v", exit)
	}
	if out := b.Must("ulimit -Hc; ls -A"); out != "0\n" {
		t.Errorf("core limit and workspace: %q", out)
	}
	if exit, _ := b.Sh("ulimit -c unlimited"); exit.Code == 0 {
		t.Error("the core limit could be raised")
	}
}

func leftover(t *testing.T, h Host) {
	b := h.One(t)
	exit, _ := b.Sh("setsid sh -c 'while :; do echo forged; sleep 0.01; done' & echo $! > /tmp/pid; exit 3")
	if exit.Code != 3 || exit.Ended != "" {
		t.Errorf("the main process: %+v", exit)
	}
	exit, out := b.Cmd(sandbox.Command{Argv: []string{"sh", "-c", "ps -e -o pid= | wc -l 2>/dev/null; ls -d /proc/[0-9]* | wc -l"}, Alone: true})
	if exit.Code != 0 || strings.Contains(out, "forged") {
		t.Errorf("the next counted command: %+v %s", exit, out)
	}
	out = b.Python("import os; print([p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))])")
	if out != "[]\n" {
		t.Errorf("processes are left: %s", out)
	}
}
