package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// identity tells both what /proc says of this process and what the system calls
// say.
func (a *attacker) identity() {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		a.tried("status", err)
		return
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			a.seen(name, strings.Join(strings.Fields(value), " "))
		}
	}
	a.seen("capget", capabilities())
	groups, err := unix.Getgroups()
	a.seen("getgroups", fmt.Sprint(groups, err))
}

// capabilities are the effective, permitted and inheritable sets by capget(2).
func capabilities() string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return errnoName(err)
	}
	return fmt.Sprintf("%x%08x %x%08x %x%08x", sets[1].Effective, sets[0].Effective,
		sets[1].Permitted, sets[0].Permitted, sets[1].Inheritable, sets[0].Inheritable)
}

// plain ends 0 if this process is an ordinary one of uid 1000: it is what a
// set-id program of the job runs to find out what it gained.
func (a *attacker) plain() {
	ruid, euid, suid := unix.Getresuid()
	rgid, egid, sgid := unix.Getresgid()
	groups, err := unix.Getgroups()
	for _, id := range []int{ruid, euid, suid, rgid, egid, sgid} {
		if id != jobUID {
			a.exit = 1
		}
	}
	if err != nil || len(groups) > 0 || capabilities() != "000000000 000000000 000000000" {
		a.exit = 1
	}
}

// descriptors asks the kernel, not /proc: for each number whether it is open.
func (a *attacker) descriptors() {
	open := 0
	for fd := 3; fd < 4096; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		open++
		to, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		a.report(fmt.Sprintf("fd_%d", fd), "done", to)
	}
	a.seen("open", strconv.Itoa(open))
	for fd := range 3 {
		a.seen(fmt.Sprintf("standard_%d", fd), kindOf(fd))
	}
}

// kindOf tells pipes and /dev/null from what a job must not be given.
func kindOf(fd int) string {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errnoName(err)
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFIFO:
		return "pipe"
	case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3):
		return "null"
	}
	return fmt.Sprintf("mode %o", st.Mode)
}

func (a *attacker) environment() {
	for i, pair := range os.Environ() {
		a.seen(fmt.Sprintf("variable_%d", i), pair)
	}
	a.seen("arguments", strings.Join(os.Args, " "))
}

// alone lists every process but PID 1 and this one.
func (a *attacker) alone() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		a.tried("list", err)
		return
	}
	others := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		others++
		name, _ := os.ReadFile("/proc/" + e.Name() + "/comm")
		a.report("pid_"+e.Name(), "done", strings.TrimSpace(string(name)))
	}
	a.seen("others", strconv.Itoa(others))
}

// init is after PID 1: its memory, files, limits, signals and program.
func (a *attacker) init() {
	for _, name := range []string{
		"exe", "mem", "environ", "fd", "fdinfo", "maps", "smaps", "pagemap", "auxv", "stack", "syscall", "io", "root", "cwd",
		"ns/mnt", "ns/net", "ns/pid", "ns/user", "map_files", "personality",
	} {
		a.tried("read_"+name, readAny("/proc/1/"+name))
	}
	for _, name := range []string{"exe", "mem", "oom_score_adj", "uid_map", "clear_refs", "coredump_filter", "comm", "sessionid"} {
		a.tried("write_"+name, openWrite("/proc/1/"+name))
	}
	a.tried("write_attr", os.WriteFile("/proc/1/attr/current", []byte("x"), 0))
	a.program()
	a.signals()
	limit := [2]uint64{1, 1}
	a.all([]call{
		sys("prlimit", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, address(&limit), 0),
		sys("renice", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 1, 19),
		sys("ptrace_attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1, 0, 0),
		sys("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, 1, vector(scratchAddr()), 1, vector(0x400000), 1, 0),
	})
}

// readAny reads a byte of a file, a name of a directory, or the target of a
// link. Nothing to read is reported as ENODATA.
func readAny(path string) error {
	if target, err := os.Readlink(path); err == nil && target != "" {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, scratch[:16])
	if err == unix.EISDIR {
		if n, err = unix.Getdents(fd, scratch[:]); err == nil && onlyDots(scratch[:n]) {
			n = 0
		}
	}
	if err == nil && n == 0 {
		return unix.ENODATA
	}
	return err
}

// onlyDots reports whether directory entries are "." and ".." only.
func onlyDots(entries []byte) bool {
	names := make([]string, 0, 8)
	_, _, names = unix.ParseDirent(entries, -1, names) // leaves out the dots
	return len(names) == 0
}

// openWrite only opens: what could be opened could be written.
func openWrite(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// program is after PID 1's file, by its name and by what runs of it.
func (a *attacker) program() {
	const file = "/.veyra/init"
	a.tried("program_write", openWrite(file))
	a.tried("program_remove", unix.Unlink(file))
	a.tried("program_rename", unix.Rename(file, "/workspace/init"))
	a.tried("program_chmod", unix.Chmod(file, 0o777))
	a.tried("program_truncate", unix.Truncate(file, 0))
	a.tried("program_link", unix.Link(file, "/workspace/linked"))
	a.tried("program_own_exe", openWrite("/proc/self/exe"))
}

func (a *attacker) signals() {
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGSEGV, unix.SIGCHLD, 34, 64} {
		a.tried(fmt.Sprintf("kill_%d", s), unix.Kill(1, s))
	}
	a.tried("tgkill", unix.Tgkill(1, 1, unix.SIGKILL))
	fd, err := unix.PidfdOpen(1, 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	a.tried("pidfd_kill", err)
}
