package docker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// settle is the pause between two starts, as in the benchmark of the other backend:
// tearing down one network namespace slows the next start down, whoever makes it.
const settle = 100 * time.Millisecond

// BenchmarkEngine measures what the engine's own client needs for one command in a
// live container, with the files of our image, and in turn with it this backend on the
// same engine. The other backend's benchmark has the engine's starts.
func BenchmarkEngine(b *testing.B) {
	e := enginetest.Start(b, enginetest.Current, enginetest.Options{})
	h := startHost(b, e, "test-bench", "standard", "runc")
	if h.Image == "" {
		b.Skip("not applicable: no python image")
	}
	e.Import(b, sandboxtest.ImageRoot(b, h.Image), "peer")
	e.Client(b, "run", "--detach", "--name", "live", "--network", "none", "peer", "sleep", "6000")
	defer e.Client(b, "rm", "--force", "live")
	job := h.Job(b, h.Limits)
	h.Create(b, job, h.Limits).Must("true") // the first start imports the image
	all := map[string][]time.Duration{}
	for b.Loop() {
		time.Sleep(settle)
		all["ms/docker-exec"] = append(all["ms/docker-exec"], took(func() { e.Client(b, "exec", "live", "/bin/true") }))
		time.Sleep(settle)
		var box *sandboxtest.Box
		all["ms/start"] = append(all["ms/start"], took(func() {
			box = h.Create(b, job, h.Limits)
			box.Must("true")
		}))
		all["ms/command"] = append(all["ms/command"], took(func() { box.Cmd(sandbox.Command{Argv: []string{"/bin/true"}}) }))
		if err := box.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for unit, times := range all {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, unit)
	}
	b.ReportMetric(0, "ns/op")
}

func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}
