package main_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// maxResident is what a supervisor may have in memory while its job floods.
const maxResident = 150 << 20

// flood is a test module that writes size bytes to its output in each of the
// ways that a reader could choke on, between two marks, while spinners burn the
// processor.
func flood(size, spinners int) string {
	return fmt.Sprintf(`import os, signal, unittest

SIZE, SPINNERS = %d, %d


def everything(fd, data):
    view = memoryview(data)
    while view: view = view[os.write(fd, view):]


class T(unittest.TestCase):
    def setUp(self):
        self.kids = []
        for _ in range(SPINNERS):
            pid = os.fork()
            if pid == 0:
                while True: pass
            self.kids.append(pid)

    def tearDown(self):
        for pid in self.kids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)

    def test_flood(self):
        everything(1, b"THE FLOOD BEGINS\n")
        third = SIZE // 3
        lines, block = b"y\n" * 32768, b"x" * 65536
        for _ in range(third // len(lines)): everything(2, lines)
        for _ in range(third // len(block)): everything(1, block)
        for i in range(third // 128): everything(1 + i %% 2, b"z" * 127 + b"\n")
        everything(1, b"THE FLOOD ENDS\n")
`, size, spinners)
}

// floodJob funds a job whose tests flood in as many commands as there are
// modules, and then fail or pass by the change alone.
func (w *world) floodJob(commands, size, spinners int) int64 {
	files := project()
	var required []string
	for i := range commands {
		name := fmt.Sprintf("test_flood%d.py", i)
		files["tests/"+name] = githosttest.Text(flood(size, spinners))
		required = append(required, "python -m unittest discover -s tests -p "+name)
	}
	return w.job("flood", "Make add add", files, func(s *controlplanetest.JobSpec) {
		s.RequiredCommands = required
	}, fix(), providertest.Step{Finish: "Fixed add."})
}

// TestB10FloodOfOutput: head and tail of a flood are kept and marked, in the
// evidence and in the record, which has room for what is said after it; the
// supervisor's memory does not grow with it, nor does its log.
func TestB10FloodOfOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	d := w.ready(w.newPlace())
	j := w.accepted(w.floodJob(2, 48<<20, 1))
	wantHeadAndTail(t, "the evidence", j.Evidence["test_output"].(string))
	log := d.tell("jobs", "logs", j.AssignmentID).want(t, 0).out
	wantHeadAndTail(t, "the record", log)
	if n := strings.Count(log, "exit status 0"); n != 4 || !strings.Contains(log, "phase SUBMITTING") {
		t.Errorf("the record shows %d of 4 ends of commands, and has %d bytes", n, len(log))
	}
	if most := peak(t, d.cmd.Process.Pid); most > maxResident {
		t.Errorf("the supervisor had %d MiB in memory", most>>20)
	}
	if n := len(d.text()); n > 256<<10 {
		t.Errorf("the daemon's own log has %d bytes", n)
	}
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}

func wantHeadAndTail(t *testing.T, what, text string) {
	t.Helper()
	for _, want := range []string{"THE FLOOD BEGINS", "THE FLOOD ENDS", "\nOK"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q: %.300q … %.300q", what, want, text, text[max(len(text)-300, 0):])
		}
	}
	if !strings.Contains(text, "left out]") && !strings.Contains(text, "characters left out") {
		t.Errorf("%s does not say that something is missing", what)
	}
}

// peak is the most that a process had in memory, in bytes.
func peak(t testing.TB, pid int) int64 {
	t.Helper()
	kib, err := strconv.ParseInt(strings.TrimSuffix(field(pid, "VmHWM"), " kB"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// beats notes when beats arrive at a control plane.
type beats struct {
	mu sync.Mutex
	at []time.Time
}

func (b *beats) note(_ http.ResponseWriter, r *http.Request) {
	if r.URL.Path == controlplanetest.Prefix+string(controlplanetest.Heartbeat)+"/" {
		b.mu.Lock()
		b.at = append(b.at, time.Now())
		b.mu.Unlock()
	}
}

// late returns, sorted, by how much each beat came later than interval after
// the one before it. One that was asked for early is on time.
func (b *beats) late(interval time.Duration) []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []time.Duration
	for i := 1; i < len(b.at); i++ {
		all = append(all, max(b.at[i].Sub(b.at[i-1])-interval, 0))
	}
	slices.Sort(all)
	return all
}

// acceptedLate is accepted with the patience of a host under load.
func (w *world) acceptedLate(id int64) controlplanetest.JobView {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 8*time.Minute)
	defer cancel()
	view, err := w.plane.Wait(ctx, func(v controlplanetest.View) bool {
		status := jobOf(v, id).Status
		return status == "ACCEPTED" || status == "FAILED"
	})
	if j := jobOf(view, id); err != nil || j.Status != "ACCEPTED" {
		w.t.Errorf("job %d: %v\n%s", id, err, pretty(view))
	}
	return jobOf(view, id)
}

// TestHeartbeatsUnderLoad: four instances whose jobs flood a gigabyte each and
// burn every core beat on time, by the clock of the control plane.
func TestHeartbeatsUnderLoad(t *testing.T) {
	underLoad(t, func(t *testing.T, w *world, d *daemon) {
		j := w.acceptedLate(w.floodJob(4, 250<<20, 4))
		output, _ := j.Evidence["test_output"].(string)
		wantHeadAndTail(t, "the evidence", output)
		if got := peak(t, d.cmd.Process.Pid); got > maxResident {
			t.Errorf("the supervisor had %d MiB in memory", got>>20)
		}
	})
}

// diskLoad is a test module that asks everything of its disk for seconds.
func diskLoad(seconds int) string {
	return fmt.Sprintf(`import mmap, os, random, time, unittest

SECONDS, SIZE = %d, 64 << 20


def syncs(end):
    fd = os.open("syncs", os.O_CREAT | os.O_WRONLY)
    while time.monotonic() < end: os.pwrite(fd, b"x" * 4096, 0); os.fsync(fd)


def direct(end):
    fd = os.open("direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    block = mmap.mmap(-1, 1 << 20)
    while time.monotonic() < end:
        for at in range(0, SIZE, 1 << 20): os.pwritev(fd, [block], at)


def scattered(end):
    fd = os.open("scattered", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    os.ftruncate(fd, SIZE)
    block = mmap.mmap(-1, 4096)
    while time.monotonic() < end: os.pwritev(fd, [block], random.randrange(SIZE // 4096) * 4096)


class T(unittest.TestCase):
    def test_load(self):
        end, kids = time.monotonic() + SECONDS, []
        for load in (syncs, syncs, direct, scattered):
            pid = os.fork()
            if pid == 0:
                load(end)
                os._exit(0)
            kids.append(pid)
        self.assertEqual([os.waitpid(pid, 0)[1] for pid in kids], [0] * 4)
`, seconds)
}

// TestB14HeartbeatsBesideDiskLoad: the same beside jobs that sync, write past the
// cache and write all over their disks. What that does to the journal is shown,
// not judged: it is the disk's.
func TestB14HeartbeatsBesideDiskLoad(t *testing.T) {
	underLoad(t, func(t *testing.T, w *world, d *daemon) {
		w.acceptedLate(w.job("disk", "Make add add", with(map[string]string{"tests/test_load.py": diskLoad(20)}), nil,
			fix(), providertest.Step{Finish: "Fixed add."}))
		_, metrics := get(t, "http://"+d.admin+"/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "veyra_sandboxd_journal_commit_duration_seconds") {
				t.Log(strings.TrimSpace(line))
			}
		}
	})
}

// underLoad runs a job in each of four instances at once, under VEYRA_SOAK=1,
// and judges their beats by the clock of the control plane.
func underLoad(t *testing.T, job func(*testing.T, *world, *daemon)) {
	t.Helper()
	if os.Getenv("VEYRA_SOAK") == "" {
		return // TestB10FloodOfOutput is the short form
	}
	const instances, interval = 4, 2 * time.Second
	var all sync.WaitGroup
	for i := range instances {
		w := newWorld(t, true)
		d := w.ready(w.newPlace())
		var seen beats
		w.onRequest(seen.note)
		all.Go(func() {
			job(t, w, d)
			late := seen.late(interval)
			if len(late) == 0 {
				t.Errorf("instance %d never beat", i)
				return
			}
			p99, most := late[len(late)*99/100], late[len(late)-1]
			t.Logf("instance %d: %d beats, late by %v at the 99th percentile, %v at most; supervisor %d MiB, runner %d MiB",
				i, len(late), p99, most, peak(t, d.cmd.Process.Pid)>>20, peak(t, d.child("__runner"))>>20)
			if p99 > 2*time.Second || most > 10*time.Second {
				t.Errorf("instance %d: beats were late by %v at the 99th percentile, %v at most", i, p99, most)
			}
		})
	}
	all.Wait()
}
