package sandboxtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// taskCases are about processes, threads, what the kernel keeps for each of
// them, and processor time.
func taskCases() map[string]func(*testing.T, Host) {
	return map[string]func(*testing.T, Host){
		"B01TasksWithoutEnd":        tasksWithoutEnd,
		"B01FewTasks":               fewTasks,
		"B06ObjectsWithoutEnd":      objectsWithoutEnd,
		"B06OneJobIsNotAnothers":    objectsOfTwoJobs,
		"B13CPUByTheHostsAccount":   cpuByHost,
		"B13PrioritiesGiveNothing":  priorities,
		"B15ClockIsNotTheJobs":      clockRefused,
		"B01HostGoesOnMeanwhile":    hostForks,
		"B01TreeEndsThatStillGrows": bombEnds,
	}
}

// endless are programs that make tasks until they are refused, and say how
// often they were not: "refused ERRNO COUNT".
var endless = map[string]string{
	"processes": `while True:
    pid = os.fork()
    if pid == 0: time.sleep(600); os._exit(0)
    n += 1`,
	"threads": `import _thread, threading
wait = threading.Lock(); wait.acquire()
while True: _thread.start_new_thread(wait.acquire, ()); n += 1`,
	"zombies": `while True:
    if os.fork() == 0: os._exit(0)
    n += 1`,
	"vfork": `import subprocess
keep = []
while True: keep.append(subprocess.Popen(["sleep", "600"])); n += 1`,
}

func endlessProgram(body string) string {
	return "import os, time, errno\nn = 0\ntry:\n    " + strings.ReplaceAll(body, "\n", "\n    ") + `
except OSError as e: print("refused", e.errno, n, flush=True)
except RuntimeError: print("refused", errno.EAGAIN, n, flush=True)
os._exit(0)`
}

// tasksWithoutEnd: a kernel refuses and the sandbox goes on; gVisor's kernel
// refuses, or gives up as a whole, which is named.
func tasksWithoutEnd(t *testing.T, h Host) {
	h.needImage(t)
	l := h.Small()
	if h.Class == GVisor {
		// A guest process costs the host 4 MiB of the job's memory, which must
		// not be what ends first.
		l.MemoryBytes = min(h.Limits.MemoryBytes, 2<<30)
	}
	for name, body := range endless {
		b := h.Create(t, h.Job(t, l), l)
		exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", endlessProgram(body)}, Timeout: patience})
		if h.Class == GVisor && endedByPIDs(exit, err) {
			continue
		}
		var errno unix.Errno
		var made int64
		if _, scanErr := fmt.Sscanf(out, "refused %d %d", &errno, &made); scanErr != nil || err != nil ||
			errno != unix.EAGAIN || made < 100 || made > h.Small().PIDs {
			t.Errorf("%s without end: %+v %.200q, %v", name, exit, out, err)
			continue
		}
		if h.Class == Kernel && (exit.Code != 0 || exit.Gone || !h.onlyPIDs(exit)) {
			t.Errorf("%s without end gave %+v", name, exit)
		}
		if exit, _ := b.Cmd(sandbox.Command{Argv: []string{"true"}, Alone: true}); exit.Code != 0 || len(exit.Limits) != 0 {
			t.Errorf("the command after %s without end: %+v", name, exit)
		}
	}
}

// endedByPIDs says that a sandbox ended as a whole for its tasks, by the name of
// what they used up first.
func endedByPIDs(exit sandbox.Exit, err error) bool {
	byName := exit.Ended == sandbox.LimitPIDs || exit.Ended == sandbox.LimitOOM
	return sandbox.KindOf(err) == sandbox.KindCrashed || err == nil && exit.Gone && byName
}

// hostForks: while a bomb goes off the host still starts processes.
func hostForks(t *testing.T, h Host) {
	b := h.One(t)
	// The shell itself forks before the table is full: refused, it would end.
	bomb := b.background(sandbox.Command{
		Argv: []string{"sh", "-c", "bomb() { bomb | bomb & }; echo up; sleep 60 & bomb & wait"}, Timeout: 2 * time.Second,
	})
	for range 20 {
		if out, err := exec.Command("true").CombinedOutput(); err != nil {
			t.Fatalf("the host can't start a process: %v %s", err, out)
		}
	}
	exit, err := bomb()
	if h.Class == GVisor && endedByPIDs(exit, err) {
		return
	}
	if err != nil || exit.Ended != sandbox.LimitTimeout {
		t.Errorf("a bomb ended with %+v, %v", exit, err)
	}
}

// bombEnds: the end of a command takes a tree that grows while it is killed.
func bombEnds(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	exit, _, err := b.try(sandbox.Command{
		Argv: []string{"python3", "-c", "import os\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: pass"}, Timeout: 500 * time.Millisecond,
	})
	if h.Class == GVisor && endedByPIDs(exit, err) {
		return
	}
	if err != nil || exit.Ended != sandbox.LimitTimeout {
		t.Fatalf("a bomb ended with %+v, %v", exit, err)
	}
	if h.Class == Kernel {
		if n, err := alive(pid); err != nil || n != 1 {
			t.Errorf("%d processes of the sandbox live after the command's end, %v", n, err)
		}
	}
	b.Must("true")
}

// objects are programs that make kernel objects until they are refused.
var objects = map[string]string{
	"descriptors": `while True: keep.append(os.open("/", os.O_RDONLY)); n += 1`,
	"epoll":       `import select` + "\n" + `while True: keep.append(select.epoll()); n += 1`,
	"eventfd":     `while True: keep.append(os.eventfd(0)) if hasattr(os, "eventfd") else keep.append(check(c.eventfd(0, 0))); n += 1`,
	"timerfd":     `while True: keep.append(check(c.timerfd_create(1, 0))); n += 1`,
	"inotify":     `while True: keep.append(check(c.inotify_init1(0))); n += 1`,
	"timers":      `while True: check(c.timer_create(1, None, ctypes.byref(ctypes.c_void_p()))); n += 1`,
	"memfd":       `while True: keep.append(os.memfd_create("x")); n += 1`,
	"pipes":       `while True: keep.append(os.pipe()); n += 1`,
	"sockets":     `import socket` + "\n" + `while True: keep.append(socket.socketpair()); n += 1`,
	"mqueue":      `while n < most: keep.append(check(c.mq_open(b"/q%d" % n, os.O_CREAT | os.O_RDWR, 0o600, None))); n += 1`,
	"shm":         `while n < most: check(c.shmget(0, 4096, 0o1600)); n += 1`,
	"semaphores":  `while n < most: check(c.semget(0, 8, 0o1600)); n += 1`,
	"messages":    `while n < most: check(c.msgget(0, 0o1600)); n += 1`,
}

const objectsHead = `import ctypes, os
c = ctypes.CDLL("libc.so.6", use_errno=True)
n, keep, most = 0, [], 100000
def check(r):
    if r < 0: raise OSError(ctypes.get_errno(), "refused")
    return r
try:
    `

// objectsWithoutEnd: each sort is refused in the job's own range, and the host
// has them back when the sandbox ends.
func objectsWithoutEnd(t *testing.T, h Host) {
	before := hostFiles(t)
	b := h.One(t)
	head, enough := objectsHead, "refused"
	if h.Class == GVisor && !soaking() {
		head, enough = strings.Replace(head, "100000", "5000", 1), "all" // of the guest's own, slowly
	}
	for name, body := range objects {
		program := head + strings.ReplaceAll(body, "\n", "\n    ") + `
except OSError as e: print("refused", e.errno, n)
else: print("all", 0, n)`
		exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", program}, Timeout: patience})
		if h.Class == GVisor && err == nil && exit.Gone && exit.Ended == sandbox.LimitOOM {
			b = h.One(t) // a guest keeps what it doesn't count in the job's memory
			continue
		}
		var word string
		var errno unix.Errno
		var made int
		if _, scanErr := fmt.Sscan(out, &word, &errno, &made); scanErr != nil || err != nil || exit.Code != 0 || word != "refused" && word != enough || errno != 0 && !refusal[errno] {
			t.Errorf("%s without end: %+v %.300q, %v", name, exit, out, err)
		}
		t.Logf("%s: %d, then %v", name, made, errno)
	}
	b.Must("true")
	if err := b.Close(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the host's open files are as before", func() bool { return hostFiles(t) < before+2000 })
}

// refusal are the errors by which a kernel says that there is no more, or that
// there was none to begin with.
var refusal = map[unix.Errno]bool{
	unix.EMFILE: true, unix.ENFILE: true, unix.ENOSPC: true, unix.ENOMEM: true, unix.EAGAIN: true, unix.ENOSYS: true, unix.EPERM: true,
}

// hostFiles counts the open files of the host.
func hostFiles(t testing.TB) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/sys/fs/file-nr")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(raw))[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// objectsOfTwoJobs: what is counted by user is counted for each job alone, since
// no two have the same ids; and what is counted for the user above them, who owns
// their namespaces, is bounded for each.
func objectsOfTwoJobs(t *testing.T, h Host) {
	if h.Class != Kernel || h.OneRange {
		return // the guest's own objects; or all jobs are one user, which is told
	}
	for name, once := range map[string]string{
		"inotify": "check(c.inotify_init1(0))",
		"mqueue":  `check(c.mq_open(b"/other", os.O_CREAT | os.O_RDWR, 0o600, None))`,
		"timers":  "check(c.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))",
	} {
		greedy, other := h.One(t), h.One(t)
		held, release := io.Pipe()
		hold := greedy.background(sandbox.Command{Argv: []string{"python3", "-c", objectsHead + objects[name] + `
except OSError as e: print("up", flush=True)
import sys; sys.stdin.read()`}, Stdin: held, Timeout: bounded})
		if out := other.Python(objectsHead + once + `; print("ok")
except OSError as e: print("refused", e)`); out != "ok\n" {
			t.Errorf("%s of another job: %s", name, out)
		}
		_ = release.Close()
		if exit, err := hold(); err != nil || exit.Code != 0 {
			t.Errorf("the greedy job, %s: %+v, %v", name, exit, err)
		}
	}
}

// cpuByHost: 64 threads of two kinds of spinning for two seconds, by what the
// host counted against the sandbox.
func cpuByHost(t *testing.T, h Host) {
	b := h.One(t)
	pid := h.newest(t)
	spin := `import os, time
for i in range(64):
    if os.fork() == 0:
        end = time.monotonic() + 2
        if i % 2: 
            while time.monotonic() < end: pass
        while time.monotonic() < end: time.sleep(0.001)
        os._exit(0)
for i in range(64): os.wait()`
	begun, before := time.Now(), hostCPU(t, pid)
	b.Python(spin)
	used, wall := hostCPU(t, pid)-before, time.Since(begun)
	if used == 0 {
		t.Fatal("the host counted nothing: the check is blind")
	}
	// A period's quota may be left over at the begin, and one used up at the end.
	if most := time.Duration(1.1*float64(wall)) + 200*time.Millisecond; used > most {
		t.Errorf("a sandbox of one core used %s in %s", used, wall)
	}
}

// hostCPU reads what the cgroup of a host process has used.
func hostCPU(t testing.TB, pid int) time.Duration {
	t.Helper()
	places, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(places)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && strings.Contains(","+f[1]+",", ",cpuacct,") {
			return time.Duration(readNumber(t, "/sys/fs/cgroup/"+f[1]+f[2]+"/cpuacct.usage", ""))
		}
	}
	for line := range strings.Lines(string(places)) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return time.Duration(readNumber(t, "/sys/fs/cgroup"+rest+"/cpu.stat", "usage_usec ")) * time.Microsecond
		}
	}
	t.Fatalf("process %d is in no cgroup that counts: %s", pid, places)
	return 0
}

// readNumber reads the number behind a key, or the first of the file.
func readNumber(t testing.TB, path, key string) int64 {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(raw), key)
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		t.Fatalf("%s has no %q", path, key)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// priorities: a job can't take more than its share by any of them. gVisor
// answers well and does nothing; cpuByHost has the account.
func priorities(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import os
def tries(name, f):
    try: f()
    except OSError as e: print(name, e.errno)
    else: print(name, "ok")
tries("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
tries("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
tries("rr", lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))
tries("init", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
tries("affinity", lambda: os.sched_setaffinity(0, {0}))`)
	if h.Class == GVisor {
		return
	}
	if want := "nice 13\nfifo 1\nrr 1\ninit 1\naffinity ok\n"; out != want {
		t.Errorf("priorities: %q, want %q", out, want)
	}
}

// clockRefused: deadlines are the supervisor's; the host's clocks are nobody's
// to set.
func clockRefused(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import ctypes, os, time
c = ctypes.CDLL("libc.so.6", use_errno=True)
def tries(f):
    try: f()
    except OSError as e: print(e.errno)
    else: print("set")
def adjust():
    buf = ctypes.create_string_buffer(256); buf[0] = 1
    if c.adjtimex(buf) < 0: raise OSError(ctypes.get_errno(), "adjtimex")
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC): tries(lambda: time.clock_settime(clock, 0))
tries(adjust)
def stime():
    now = (ctypes.c_long * 2)(0, 0)
    if c.settimeofday(now, None) < 0: raise OSError(ctypes.get_errno(), "settimeofday")
tries(stime)`)
	if strings.Contains(out, "set") {
		t.Errorf("a clock was set: %q", out)
	}
	exit, _ := b.Cmd(sandbox.Command{Argv: []string{"env", "FAKETIME=-10y", "LD_PRELOAD=/workspace/none.so", "sleep", "600"}, Timeout: 200 * time.Millisecond})
	if exit.Ended != sandbox.LimitTimeout {
		t.Errorf("a sleeper with a clock of its own: %+v", exit)
	}
}
