package main

import (
	"golang.org/x/sys/unix"
)

// tasks is how many processes and threads there may be. In gVisor a fork above
// RLIMIT_NPROC is refused and no counter of the host tells of it, so they are
// counted while a command runs. On the host's kernel the count is the host's:
// the other end knows where to believe it.
type tasks struct {
	own, limit uint64
}

// countTasks begins with init's own, before anything else runs.
func countTasks() tasks {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &limit) != nil {
		return tasks{limit: unix.RLIM_INFINITY}
	}
	return tasks{own: running(), limit: limit.Max}
}

// full says that the next fork is refused, or would have been.
func (t tasks) full() bool { return running() >= t.own+min(t.limit, 1<<32) }

// running counts the tasks of this kernel (sysinfo(2)).
func running() uint64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return uint64(s.Procs)
}
