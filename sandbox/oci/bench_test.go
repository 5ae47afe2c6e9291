package oci_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/sandboxtest"
)

// settle is the pause between two starts: tearing down one network namespace
// slows the next start down, whoever makes it.
const settle = 100 * time.Millisecond

// BenchmarkStart measures from Create to the exit of the first command, under
// strict limits with a disk from the pool, in turn with the bare runtime
// running the same program from the same image. The ratio of the medians is
// what counts.
func BenchmarkStart(b *testing.B) { benchStart(b, "runc") }

// BenchmarkStartGuest is the same on gVisor.
func BenchmarkStartGuest(b *testing.B) {
	benchStart(b, "runsc", "--network=none", "--overlay2=none", "--gofer-network-namespace=new")
}

func benchStart(b *testing.B, runtime string, flags ...string) {
	config := configOf(b, "test-bench", runtime)
	image := sandboxtest.PythonImage(b)
	if image == "" {
		b.Skip("not applicable: no python image")
	}
	c := start(b, config)
	job, limits := benchJob(b, c)
	bare := newBare(b, config.Runtime, flags, image)
	spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits}
	oneStart(b, job, spec) // the job's first start maps the image
	var ours, theirs, gone []time.Duration
	for b.Loop() {
		time.Sleep(settle)
		first, all := oneStart(b, job, spec)
		ours, gone = append(ours, first), append(gone, all)
		time.Sleep(settle)
		theirs = append(theirs, bare.run(b))
	}
	b.ReportMetric(ms(median(ours)), "ms/start")
	b.ReportMetric(ms(median(gone)), "ms/start+close")
	b.ReportMetric(ms(median(theirs)), "ms/bare")
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "x-bare")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStartBesideEngine is the same in turn with the engine's own client, which
// runs the same program from the same files in a new container without network.
func BenchmarkStartBesideEngine(b *testing.B) {
	config := configOf(b, "test-bench", "runc")
	image := sandboxtest.PythonImage(b)
	if image == "" {
		b.Skip("not applicable: no python image")
	}
	engine := enginetest.Start(b, enginetest.Current, enginetest.Options{})
	engine.Import(b, sandboxtest.ImageRoot(b, image), "peer")
	job, limits := benchJob(b, start(b, config))
	spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits}
	oneStart(b, job, spec) // the job's first start maps the image
	var ours, theirs []time.Duration
	for b.Loop() {
		time.Sleep(settle)
		first, _ := oneStart(b, job, spec)
		ours = append(ours, first)
		time.Sleep(settle)
		began := time.Now()
		engine.Client(b, "run", "--rm", "--network", "none", "peer", "/bin/true")
		theirs = append(theirs, time.Since(began))
	}
	b.ReportMetric(ms(median(ours)), "ms/start")
	b.ReportMetric(ms(median(theirs)), "ms/docker-run")
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "x-docker-run")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkCommand measures one command in a live sandbox.
func BenchmarkCommand(b *testing.B) { benchCommand(b, "runc") }

// BenchmarkCommandGuest is the same on gVisor.
func BenchmarkCommandGuest(b *testing.B) { benchCommand(b, "runsc") }

func benchCommand(b *testing.B, runtime string) {
	config := configOf(b, "test-bench", runtime)
	image := sandboxtest.PythonImage(b)
	if image == "" {
		b.Skip("not applicable: no python image")
	}
	job, limits := benchJob(b, start(b, config))
	box, err := job.Create(context.Background(), sandbox.Spec{
		Image: image, Network: sandbox.NetworkNone,
		Profile: sandbox.ProfileJob, Limits: limits,
	})
	if err != nil {
		b.Fatal(err)
	}
	var all []time.Duration
	for b.Loop() {
		exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"/bin/true"}})
		if err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		all = append(all, exit.Duration)
	}
	b.ReportMetric(ms(median(all)), "ms/command")
}

// BenchmarkCollect collects three changed files out of a tree of 100,000.
func BenchmarkCollect(b *testing.B) {
	config := config(b, "test-bench")
	image := sandboxtest.PythonImage(b)
	if image == "" {
		b.Skip("not applicable: no python image")
	}
	ctx := context.Background()
	job, limits := benchJob(b, start(b, config))
	spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits}
	spec.Layers = []sandbox.LayerID{manyFiles(b, job, spec)}
	var all []time.Duration
	for b.Loop() {
		box, err := job.Create(ctx, spec)
		if err != nil {
			b.Fatal(err)
		}
		script := "echo 1 > d7/f7; echo 2 > d50/f3; echo 3 > d99/f999"
		if exit, err := box.Run(ctx, sandbox.Command{Argv: []string{"sh", "-c", script}}); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		began := time.Now()
		if err := box.Collect(ctx, io.Discard); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(began))
		if err := box.Close(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(ms(median(all)), "ms/collect")
	b.ReportMetric(0, "ns/op")
}

// manyFiles freezes a tree of 100,000 files.
func manyFiles(b *testing.B, job sandbox.Job, spec sandbox.Spec) sandbox.LayerID {
	ctx := context.Background()
	box, err := job.Create(ctx, spec)
	if err != nil {
		b.Fatal(err)
	}
	exit, err := box.Run(ctx, sandbox.Command{Argv: []string{"python3", "-c", `import os
for d in range(100):
    os.mkdir("d%d" % d)
    for f in range(1000): os.close(os.open("d%d/f%d" % (d, f), os.O_CREAT | os.O_WRONLY))`}})
	if err != nil || exit.Code != 0 {
		b.Fatal(exit, err)
	}
	ids, err := box.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	if err != nil {
		b.Fatal(err)
	}
	return ids[0]
}

func benchJob(b *testing.B, c sandbox.Backend) (sandbox.Job, policies.Limits) {
	policy, err := policies.Load("strict")
	if err != nil {
		b.Fatal(err)
	}
	job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "bench", Limits: policy.Limits})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = job.Close(context.Background()) })
	return job, policy.Limits
}

func oneStart(b *testing.B, job sandbox.Job, spec sandbox.Spec) (first, all time.Duration) {
	began := time.Now()
	box, err := job.Create(context.Background(), spec)
	if err != nil {
		b.Fatal(err)
	}
	exit, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"/bin/true"}})
	if err != nil || exit.Code != 0 {
		b.Fatal(exit, err)
	}
	first = time.Since(began)
	if err := box.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	return first, time.Since(began)
}

// bare is the runtime alone: its own default bundle, no quota, no layers.
type bare struct {
	runtime       string
	flags         []string
	bundle, state string
}

func newBare(b *testing.B, runtime string, flags []string, image images.Digest) bare {
	bundle := b.TempDir()
	root := sandboxtest.ImageRoot(b, image)
	if out, err := exec.Command(runtime, "spec", "--bundle", bundle).CombinedOutput(); err != nil {
		b.Fatalf("making a bundle: %v %s", err, out)
	}
	path := filepath.Join(bundle, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		b.Fatal(err)
	}
	spec.Root = &specs.Root{Path: root, Readonly: true}
	spec.Process.Args, spec.Process.Terminal = []string{"/bin/true"}, false
	spec.Process.Rlimits = nil
	if raw, err = json.Marshal(spec); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		b.Fatal(err)
	}
	return bare{runtime, flags, bundle, b.TempDir()}
}

func (r bare) run(b *testing.B) time.Duration {
	began := time.Now()
	out, err := exec.Command(r.runtime, slices.Concat([]string{"--root", r.state}, r.flags, []string{"run", "--bundle", r.bundle, "veyra-bare-bench"})...).CombinedOutput()
	if err != nil {
		b.Fatalf("bare runtime: %v %s", err, out)
	}
	return time.Since(began)
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
