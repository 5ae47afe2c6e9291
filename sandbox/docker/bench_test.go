package docker_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// settle is the pause between two starts, as in the benchmark of the other backend:
// tearing down one network namespace slows the next start down, whoever makes it.
const settle = 100 * time.Millisecond

// BenchmarkEngine measures what the engine's own client needs for one command, in
// a new container and in a live one, with the files of our image, and in turn with
// it this backend on the same engine. Others compare with these figures.
func BenchmarkEngine(b *testing.B) {
	e := enginetest.Start(b, enginetest.Current, enginetest.Options{})
	h := startHost(b, e, "test-bench", "standard", "runc")
	if h.Image == "" {
		b.Skip("not applicable: no python image")
	}
	importImage(b, e, h.Image)
	dockerCLI(b, e, "run", "--detach", "--name", "live", "--network", "none", "peer", "sleep", "6000")
	defer dockerCLI(b, e, "rm", "--force", "live")
	job := h.Job(b, h.Limits)
	h.Create(b, job, h.Limits).Must("true") // the first start imports the image
	all := map[string][]time.Duration{}
	for b.Loop() {
		time.Sleep(settle)
		all["ms/docker-run"] = append(all["ms/docker-run"], took(func() {
			dockerCLI(b, e, "run", "--rm", "--network", "none", "peer", "/bin/true")
		}))
		time.Sleep(settle)
		all["ms/docker-exec"] = append(all["ms/docker-exec"], took(func() { dockerCLI(b, e, "exec", "live", "/bin/true") }))
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

// importImage gives the engine's client the files of our image.
func importImage(b testing.TB, e *enginetest.Engine, digest images.Digest) {
	b.Helper()
	store, err := images.Open(sandboxtest.ImageStore())
	if err != nil {
		b.Fatal(err)
	}
	root, err := store.Root(digest)
	if err != nil {
		b.Fatal(err)
	}
	archive := filepath.Join(b.TempDir(), "root.tar")
	if out, err := exec.Command("tar", "-C", root, "-cf", archive, ".").CombinedOutput(); err != nil {
		b.Fatalf("archiving the image: %v %s", err, out)
	}
	dockerCLI(b, e, "import", archive, "peer")
}
