package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// beyond is the bound that the caller sets, so that an attack which nothing
// stops ends by itself and says so.
func (a *attacker) beyond() int64 {
	if len(a.args) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(a.args[0], 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// counted reports how far an attack got: what stopped it, and after how many.
func (a *attacker) counted(name string, n int64, err error) {
	result := attack.Done
	if err != nil {
		result = errnoName(err)
	}
	a.report(name, result, strconv.FormatInt(n, 10))
}

// pids forks sleepers (case B01). They are left to whoever ends the sandbox.
func (a *attacker) pids() {
	calls := []call{sleeps()}
	for n := range a.beyond() {
		if _, err := fork(0, calls, false); err != nil {
			a.counted("fork", n, err)
			return
		}
	}
	a.counted("fork", a.beyond(), nil)
}

// memory touches block after block (case B02).
func (a *attacker) memory() {
	const block = 16 << 20
	for n := int64(0); n < a.beyond(); n += block {
		p, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			a.counted("touch", n, err)
			return
		}
		for i := 0; i < block; i += 4096 {
			p[i] = 1
		}
	}
	a.counted("touch", a.beyond(), nil)
}

// noticed is long enough for init, which looks at the disk by samples, on a busy
// host as well.
const noticed = 5 * sampleEvery

// enough bytes show that a place is not on the disk that is full.
const enough = 2 << 20

// disk fills the workspace, then looks whether the other places are full as
// well (case B04).
func (a *attacker) disk() {
	path := "/workspace/.fill"
	a.fill("bytes", path, a.beyond())
	for _, place := range jobPlaces[1:] {
		more := filepath.Join(place, ".more")
		a.fill(attack.Safe("more@"+place), more, min(a.beyond(), enough))
		_ = os.Remove(more)
	}
	time.Sleep(noticed)
	_ = os.Remove(path)
}

// fill writes until something stops it or most bytes are written.
func (a *attacker) fill(name, path string, most int64) {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		a.counted(name, 0, err)
		return
	}
	defer unix.Close(fd)
	block := make([]byte, 256<<10)
	for i := range block {
		block[i] = byte(i*7 + i>>8)
	}
	written := int64(0)
	for written < most {
		n, err := unix.Write(fd, block)
		written += int64(max(n, 0))
		if err != nil {
			a.counted(name, written, err)
			return
		}
	}
	a.counted(name, written, nil)
}

// inodes makes empty files.
func (a *attacker) inodes() {
	a.files("files", "/workspace/.many", a.beyond())
	time.Sleep(noticed)
	_ = os.RemoveAll("/workspace/.many")
}

func (a *attacker) files(name, dir string, most int64) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		a.counted(name, 0, err)
		return
	}
	for n := range most {
		if err := unix.Mknod(filepath.Join(dir, strconv.FormatInt(n, 10)), unix.S_IFREG|0o600, 0); err != nil {
			a.counted(name, n, err)
			return
		}
	}
	a.counted(name, most, nil)
}

// tmpfs fills each file system of memory that takes a file (case B03).
func (a *attacker) tmpfs() {
	for _, m := range mountPoints() {
		if m.kind != "tmpfs" || !isDir(m.point) || unix.Access(m.point, unix.W_OK) != nil {
			continue
		}
		path := filepath.Join(m.point, ".fill")
		a.fill(attack.Safe("bytes@"+m.point), path, a.beyond())
		_ = os.Remove(path)
	}
	a.seen("looked", "")
}

// openFiles opens without closing (case B06).
func (a *attacker) openFiles() {
	for n := range a.beyond() {
		if _, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			a.counted("open", n, err)
			return
		}
	}
	a.counted("open", a.beyond(), nil)
}

// core wants cores, and more of each limit than it has (case B16).
func (a *attacker) core() {
	for name, which := range map[string]int{"core": unix.RLIMIT_CORE, "open_files": unix.RLIMIT_NOFILE} {
		var have unix.Rlimit
		if err := unix.Getrlimit(which, &have); err != nil {
			a.tried("read_"+name, err)
			continue
		}
		a.seen("hard_"+name, strconv.FormatUint(have.Max, 10))
		a.tried("raise_"+name, unix.Setrlimit(which, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
	}
}

// stubborn leaves sessions, stopped, traced and orphaned processes, and ends by
// no signal that can be ignored (case A15).
func (a *attacker) stubborn() {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	session, stop := sys("setsid", unix.SYS_SETSID), sys("stop", unix.SYS_KILL, 0, uintptr(unix.SIGSTOP))
	again := sys("clone", unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0)
	traced := sys("ptrace", unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)
	left := 0
	for _, calls := range [][]call{
		{session, sleeps()}, {session, again, again, sleeps()}, {session, stop, sleeps()}, {session, traced, stop, sleeps()},
	} {
		for range 5 {
			if _, err := fork(0, calls, true); err == nil {
				left++
			}
		}
	}
	a.seen("left", strconv.Itoa(left))
	sleepForEver()
}

// sleepForEver blocks this thread without the runtime's knowledge: it would
// call a select without cases a deadlock.
func sleepForEver() {
	for {
		c := sleeps()
		_ = c.do()
	}
}

// flood writes one line without end (case B10).
func (a *attacker) flood() {
	block := make([]byte, 32<<10)
	for i := range block {
		block[i] = 'x'
	}
	for n := int64(0); n < a.beyond(); n += int64(len(block)) {
		if _, err := unix.Write(1, block); err != nil {
			return
		}
	}
}

// linger leaves a process that writes reports into this command's output for
// ever (case B17).
func (a *attacker) linger() {
	signal.Ignore(unix.SIGPIPE)
	line := "forged done \"\"\n"
	pause := unix.Timespec{Nsec: int64(5 * time.Millisecond)}
	pid, err := fork(0, []call{
		sys("setsid", unix.SYS_SETSID),
		sys("write", unix.SYS_WRITE, 1, text(line), uintptr(len(line))),
		sys("nanosleep", unix.SYS_NANOSLEEP, address(&pause), 0),
	}, true)
	if err != nil {
		a.tried("left", err)
		return
	}
	a.seen("left", fmt.Sprint(pid))
}
