package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// BenchmarkJob does the small Python job again and again, through the built
// daemon against HTTP servers, and prints where the time from the lease to the
// accepted result goes. Steps overlap: each has its begin after the lease and
// its length, both as medians over the jobs. In turn with it the job's commands run
// alone, on the bare host. It asserts nothing about time.
func BenchmarkJob(b *testing.B) { benchJob(b, "runc") }

// BenchmarkJobGuest is the same on gVisor.
func BenchmarkJobGuest(b *testing.B) { benchJob(b, "runsc") }

func benchJob(b *testing.B, runtime string) {
	w := newWorld(b, true)
	p := w.newPlace()
	p.env = append(p.env, "VEYRA_SANDBOX_RUNTIME="+runtime)
	d := w.ready(p)
	w.once(b, d, 0) // the first job maps the image and fills the pool of disks
	var all []spans
	var bare []float64
	python := hostPython(b)
	for i := 1; b.Loop(); i++ {
		all = append(all, w.once(b, d, i))
		bare = append(bare, w.bare(b, python, i))
	}
	b.StopTimer()
	d.stop()
	slices.Sort(bare)
	b.ReportMetric(bare[len(bare)/2], "ms/bare")
	rows := tabulate(all)
	fmt.Fprintf(os.Stderr, "%-24s %9s %9s %9s %9s   of %d jobs, in ms\n", "step", "begins", "median", "least", "most", len(all))
	for _, r := range rows {
		fmt.Fprintf(os.Stderr, "%-24s %9.1f %9.1f %9.1f %9.1f\n", r.name, r.at, r.median, r.least, r.most)
		if r.name == wholeJob {
			b.ReportMetric(r.median, "ms/job")
			b.ReportMetric(r.least, "ms/job-least")
			b.ReportMetric(r.most, "ms/job-most")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// wholeJob is the span from the lease to the accepted result.
const wholeJob = "lease to accepted"

// span is one part of a job in milliseconds after the lease.
type span struct{ at, took float64 }

type spans map[string]span

// once does one job and reads its parts from the daemon's log.
func (w *world) once(b *testing.B, d *daemon, number int) spans {
	b.Helper()
	j := w.accepted(w.job(fmt.Sprintf("bench%d", number), fmt.Sprintf("Make add add %d.", number), project(), nil,
		fix(), providertest.Step{Finish: "Fixed add."}))
	d.lineOf("delivered", j.AssignmentID)
	at := func(message string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, fmt.Sprint(d.lineOf(message, j.AssignmentID)["time"]))
		if err != nil {
			b.Fatal(err)
		}
		return when
	}
	lease, ended, sealed, accepted := at("accepted"), at("the run ended"), at("sealed"), at("delivered")
	between := func(from, to time.Time) span {
		return span{from.Sub(lease).Seconds() * 1000, to.Sub(from).Seconds() * 1000}
	}
	parts := spans{wholeJob: between(lease, accepted), "seal": between(ended, sealed), "delivery": between(sealed, accepted)}
	line := d.lineOf("steps", j.AssignmentID)
	took, _ := line["took_ms"].(map[string]any)
	began, _ := line["at_ms"].(map[string]any)
	for name := range took {
		begin, _ := began[name].(float64)
		length, _ := took[name].(float64)
		parts[name] = span{begin, length}
	}
	// What the evidence waits for once the pull request was read back.
	read := parts["pull_request_read"].at + parts["pull_request_read"].took
	parts["outcome"] = span{read, parts["seal"].at - read}
	return parts
}

// bareJob is what the job needs at the very least, without sandboxes, evidence or a
// control plane: git fetches, the tests run before and after the change, git pushes.
const bareJob = `git clone -q --depth 1 "$1" work && cd work
! "$2" -m unittest discover -s tests
sed -i 's/a - b/a + b/' calc.py
"$2" -m unittest discover -s tests
git checkout -q -b change
git -c user.name=bench -c user.email=bench@example.invalid commit -qam "Make add add."
git push -q origin change`

// bare runs those commands on a repository of their own and returns milliseconds.
func (w *world) bare(b *testing.B, python string, number int) float64 {
	b.Helper()
	name := fmt.Sprintf("bare%d", number)
	if _, err := w.git.CreateRepo("acme", name, project()); err != nil {
		b.Fatal(err)
	}
	token, _ := w.token(githosttest.Write)("acme/" + name)
	address := strings.Replace(w.origin, "://", "://x-access-token:"+token+"@", 1) + "/acme/" + name + ".git"
	cmd := exec.Command("sh", "-ec", bareJob, "sh", address, python)
	cmd.Dir, cmd.Env = b.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "PYTHONDONTWRITEBYTECODE=1"}
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("the job's commands on the bare host: %v %s", err, out)
	}
	return time.Since(began).Seconds() * 1000
}

// hostPython is the interpreter itself: what the search path names may be a script
// that chooses one.
func hostPython(b *testing.B) string {
	b.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// lineOf waits for the log line with this message of an assignment.
func (d *daemon) lineOf(message, assignment string) (found map[string]any) {
	d.t.Helper()
	until(d.t, fmt.Sprintf("the log says %q of %s", message, assignment), func() bool {
		for line := range strings.Lines(d.text()) {
			var fields map[string]any
			if strings.Contains(line, assignment) && json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				found = fields
			}
		}
		return found != nil
	})
	return found
}

// row is a step over all jobs, in milliseconds.
type row struct {
	name                    string
	at, median, least, most float64
}

// tabulate orders the steps by when they begin, the whole last.
func tabulate(all []spans) []row {
	begins, lengths := map[string][]float64{}, map[string][]float64{}
	for _, parts := range all {
		for name, s := range parts {
			begins[name], lengths[name] = append(begins[name], s.at), append(lengths[name], s.took)
		}
	}
	var rows []row
	for name, took := range lengths {
		slices.Sort(took)
		slices.Sort(begins[name])
		middle := len(took) / 2
		rows = append(rows, row{name, begins[name][middle], took[middle], took[0], took[len(took)-1]})
	}
	slices.SortFunc(rows, func(a, b row) int {
		switch {
		case a.name == wholeJob:
			return 1
		case b.name == wholeJob || a.at < b.at:
			return -1
		}
		return 1
	})
	return rows
}
