package linux

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Reap waits for the end of a process, if it is our child.
func Reap(pid int) {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ReapStrays takes away dead children that nobody waits for: what a runtime had
// started becomes ours when the runtime dies in the middle. Programs that this
// process starts itself are in its own session and are left to whoever waits for
// them; a PID 1 that is reaped here and waited for elsewhere has ended all the
// same.
func ReapStrays() {
	session, err := unix.Getsid(0)
	if err != nil {
		return
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	for _, path := range stats {
		if raw, err := os.ReadFile(path); err == nil && isStray(string(raw), os.Getpid(), session) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// isStray reads a line of proc_pid_stat(5): behind the name, which may hold
// anything, come state, parent, process group and session.
func isStray(stat string, parent, session int) bool {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	return len(f) > 3 && f[0] == "Z" && f[1] == strconv.Itoa(parent) && f[3] != strconv.Itoa(session)
}
