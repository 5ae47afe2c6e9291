package linux

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
)

// Quickener keeps moves of processes between cgroups quick while sandboxes start.
// The kernel's lock for such a move (cgroup_threadgroup_rwsem) first waits for an
// RCU grace period, ten milliseconds or so, unless it was taken a moment ago. An
// OCI runtime moves a sandbox's first process in the middle of its work; with the
// lock taken at the begin of that work, the wait runs beside it. What is asked
// for is a move of ourselves to where we are, which changes nothing.
//
// Hold may be called at once by many.
type Quickener struct {
	procs  string            // cgroup.procs of our own cgroup in some tree, or ""
	places map[string]string // where procs was found to be ours

	mu    sync.Mutex // guards what follows
	holds int
	stop  chan struct{} // ends the loop of the present holds
}

// quickenEvery is shorter than a grace period: one after the last move the lock
// is slow again.
const quickenEvery = 5 * time.Millisecond

// NewQuickener looks for a cgroup of ours. Where there is none to be seen, holds
// do nothing and starts take their time.
func NewQuickener() *Quickener {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return &Quickener{}
	}
	places, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		return &Quickener{}
	}
	return &Quickener{procs: ownProcs(mounts, places), places: places}
}

// ownProcs takes the first tree in which our cgroup lies below the mount point.
func ownProcs(mounts []*mountinfo.Info, places map[string]string) string {
	for _, m := range mounts {
		key, found := keyOf(m, places)
		rel, err := filepath.Rel(m.Root, places[key])
		if found && err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return filepath.Join(m.Mountpoint, rel, "cgroup.procs")
		}
	}
	return ""
}

// keyOf names the mount's line of /proc/self/cgroup.
func keyOf(m *mountinfo.Info, places map[string]string) (string, bool) {
	if m.FSType == "cgroup2" {
		_, found := places[""]
		return "", found
	}
	for option := range strings.SplitSeq(m.VFSOptions, ",") {
		if _, found := places[option]; found && option != "" {
			return option, true
		}
	}
	return "", false
}

// Hold begins to keep moves quick until release, which may be called once.
func (q *Quickener) Hold() (release func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.holds++
	if q.holds == 1 {
		q.stop = make(chan struct{})
		go q.keep(q.stop) // ends with the last release, or within a grace period of it
	}
	return q.release
}

func (q *Quickener) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.holds--
	if q.holds == 0 {
		close(q.stop)
	}
}

// keep takes the lock again and again. An error changes nothing but the time that
// starts take.
func (q *Quickener) keep(stop <-chan struct{}) {
	file, err := q.open()
	if err != nil {
		return
	}
	defer file.Close()
	tick := time.NewTicker(quickenEvery)
	defer tick.Stop()
	for {
		if _, err := file.WriteString("0"); err != nil { // 0 is who writes
			return
		}
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

// open wants us to be where we were: whoever moved us since must not find us back.
func (q *Quickener) open() (*os.File, error) {
	now, err := ownPlaces("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	if q.procs == "" || !maps.Equal(now, q.places) {
		return nil, ErrMissing
	}
	return os.OpenFile(q.procs, os.O_WRONLY, 0)
}
