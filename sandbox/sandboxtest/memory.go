package sandboxtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// memoryCases are about memory that a kernel holds for a job in other ways than
// as a program's own.
func memoryCases() map[string]func(*testing.T, Host) {
	return map[string]func(*testing.T, Host){
		"B02MemoryOfTheKernel":   kernelMemory,
		"B02LockedMemory":        lockedMemory,
		"B02CommandThatEndsWell": oomEndsWell,
		"B02ManyChildren":        manyChildren,
		"B03TmpfsIsMemory":       tmpfsIsMemory,
		"B03EveryTmpfsHasAnEnd":  everyTmpfs,
		"B12BombsEndInside":      bombsInside,
	}
}

// cramped are limits with little memory: what is to be filled is filled soon.
func (h Host) cramped(bytes int64) policies.Limits {
	l := h.Small()
	l.MemoryBytes = min(l.MemoryBytes, bytes)
	return l
}

// wantOOM wants the outcome by its name, with the peak at the limit. gVisor's
// sandbox may end with it, as one whose PID 1 was chosen by the kernel.
func wantOOM(t *testing.T, h Host, what string, limit int64, exit sandbox.Exit, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	wantLimit(t, exit, sandbox.LimitOOM)
	if exit.Gone && (exit.Ended != sandbox.LimitOOM || exit.Code != -1) {
		t.Errorf("%s: %+v", what, exit)
	}
	if exit.MemoryPeak < limit*3/4 || exit.MemoryPeak > limit+limit/8 {
		t.Errorf("%s: the peak is %d, the limit %d", what, exit.MemoryPeak, limit)
	}
}

// kernelMemory: memory files, and what waits in sockets, count as the job's.
func kernelMemory(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(128 << 20)
	for name, program := range map[string]string{
		"memory file": `import os
f = os.memfd_create("x")
while True: os.write(f, bytes(1 << 20))`,
		"shared mapping": `import mmap
keep = []
while True: m = mmap.mmap(-1, 16 << 20); m.write(b"x" * (16 << 20)); keep.append(m)`,
		"sockets": `import os, socket
for i in range(8):
    if os.fork() == 0: break
keep = []
while True:
    try: a, b = socket.socketpair()
    except OSError: os.wait()
    a.setblocking(False); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    try:
        while True: a.send(bytes(65536))
    except OSError: keep.append((a, b))`,
	} {
		b := h.Create(t, h.Job(t, l), l)
		exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", program}, Timeout: patience})
		wantOOM(t, h, name, l.MemoryBytes, exit, err)
		t.Logf("%s: %+v %.100q", name, exit, out)
	}
}

// lockedMemory: a job may lock the little that the host allows anybody.
func lockedMemory(t *testing.T, h Host) {
	b := h.One(t)
	exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", `import ctypes, mmap
c = ctypes.CDLL("libc.so.6", use_errno=True)
m = mmap.mmap(-1, 256 << 20)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
print("refused" if c.mlock(ctypes.c_void_p(at), ctypes.c_size_t(256 << 20)) else "locked")
print("refused" if c.mlockall(3) else "all")`}})
	if err != nil || exit.Code != 0 || h.Class == Kernel && !strings.HasPrefix(out, "refused\n") {
		t.Errorf("locking 256 MiB: %+v %q, %v", exit, out, err)
	}
}

// oomEndsWell: the limit is told also where nobody noticed it.
func oomEndsWell(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(128 << 20)
	b := h.Create(t, h.Job(t, l), l)
	exit, out, err := b.try(sandbox.Command{Argv: []string{"sh", "-c", "python3 -c 'keep = []\nwhile True: keep.append(b\"x\" * (16 << 20))' 2> /dev/null; echo went on; exit 0"}})
	wantOOM(t, h, "a child's", l.MemoryBytes, exit, err)
	if h.Class == Kernel && (exit.Code != 0 || exit.Ended != "" || out != "went on\n") {
		t.Errorf("a command that ends well: %+v %q", exit, out)
	}
}

// manyChildren: 50 times 20 MB, none of which is too much.
func manyChildren(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(256 << 20)
	b := h.Create(t, h.Job(t, l), l)
	exit, _, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", `import os, time
kids = []
for i in range(50):
    pid = os.fork()
    if pid == 0: x = b"x" * (20 << 20); time.sleep(60); os._exit(0)
    kids.append(pid)
for k in kids:
    if os.wait()[1] == 9: break
for k in kids:
    try: os.kill(k, 9)
    except OSError: pass`}, Timeout: patience})
	wantOOM(t, h, "children's", l.MemoryBytes, exit, err)
	if h.Class == Kernel && exit.Gone {
		t.Errorf("honest children's memory has ended the sandbox: %+v", exit)
	}
}

// tmpfsIsMemory: what fits beside an empty /dev/shm does not beside a full one.
func tmpfsIsMemory(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(160 << 20)
	l.ShmBytes = min(h.Limits.ShmBytes, 64<<20)
	const program = "x = b'x' * (96 << 20)"
	b := h.Create(t, h.Job(t, l), l)
	if exit, out := b.Py(program); exit.Code != 0 || len(exit.Limits) != 0 {
		t.Fatalf("memory that fits: %+v %s", exit, out)
	}
	b.Must(fmt.Sprintf("head -c %d /dev/zero > /dev/shm/x", l.ShmBytes-1<<20))
	exit, _, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", program}})
	wantOOM(t, h, "beside a full /dev/shm", l.MemoryBytes, exit, err)
}

// everyTmpfs fills each that a job may write to, wherever it is mounted.
func everyTmpfs(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import os
for line in open("/proc/self/mounts"):
    at, kind = line.split()[1:3]
    if kind != "tmpfs" or not os.path.isdir(at): continue
    path, n = os.path.join(at, "fill"), 0
    try:
        f = os.open(path, os.O_CREAT | os.O_WRONLY)
        while n < 256 << 20: n += os.write(f, bytes(1 << 20))
    except OSError as e: print(at, n, e.errno)
    else: print(at, n, 0)
    try: os.remove(path)
    except OSError: pass`)
	for line := range strings.Lines(out) {
		var at string
		var held, errno int64
		if _, err := fmt.Sscan(line, &at, &held, &errno); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if errno == 0 || held > h.Small().ShmBytes {
			t.Errorf("the tmpfs at %s took %d bytes, errno %d", at, held, errno)
		}
	}
	if !strings.Contains(out, "/dev/shm ") {
		t.Errorf("no tmpfs at /dev/shm: %q", out)
	}
}

// bombsInside: what unfolds does so in the sandbox, at its limits.
func bombsInside(t *testing.T, h Host) {
	h.needImage(t)
	l := h.cramped(128 << 20)
	l.DiskBytes, l.Inodes = 64<<20, 4096
	const bomb = `import bz2, io, lzma, os, tarfile, zipfile, zlib
z = zipfile.ZipFile("z.zip", "w", zipfile.ZIP_DEFLATED)
with z.open("big", "w", force_zip64=True) as f:
    for i in range(300): f.write(bytes(1 << 20))
z.close()
`
	b := h.Create(t, h.Job(t, l), l)
	exit, out, err := b.try(sandbox.Command{Argv: []string{"python3", "-c", bomb + `zipfile.ZipFile("z.zip").extractall("out")`}, Timeout: patience})
	if err != nil || exit.Code == 0 || !strings.Contains(out, "No space left") {
		t.Errorf("unfolding to files: %+v %.300q, %v", exit, out, err)
	}
	wantLimit(t, exit, sandbox.LimitDisk)
	b.Must("rm -r out")
	exit, _, err = b.try(sandbox.Command{Argv: []string{"python3", "-c", `import zipfile; zipfile.ZipFile("z.zip").read("big")`}, Timeout: patience})
	wantOOM(t, h, "unfolding in memory", l.MemoryBytes, exit, err)
}
