package oci_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// held is what a backend holds at one moment: in its runner, in this process and
// on the host.
type held struct {
	Descriptors, Goroutines, OwnDescriptors int
	Left                                    []string
	Disks, Names                            int // Names are of user namespaces
}

func holds(t *testing.T, c *runner.Client, config runner.Config) held {
	t.Helper()
	runtime.GC() // what earlier tests forgot to close goes now, and not while jobs run
	count := func(pattern string) int {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	disks := 0
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range loops {
		if raw, _ := os.ReadFile(path); strings.HasPrefix(string(raw), config.Disks) {
			disks++
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", c.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return held{
		Names: strings.Count(string(mounts), " "+runner.RunDir+"/u/"), Descriptors: count(fmt.Sprintf("/proc/%d/fd/*", c.Pid())), Goroutines: runtime.NumGoroutine(),
		OwnDescriptors: count("/proc/self/fd/*"), Left: left(t, c.Pid(), config.Instance), Disks: disks,
	}
}

// readyNames is how many user namespaces a runner at rest has ready.
const readyNames = 6

// atRest waits until what a job leaves is taken down, and all that the next one needs
// is made ready. On a busy host each part of that may take long.
func atRest(t *testing.T, c *runner.Client, config runner.Config) (now held) {
	t.Helper()
	waittest.Until(t, "pool and ground are full", func() bool {
		now = waittest.Rest(t, "the runner", func() held { return holds(t, c, config) })
		return now.Disks >= linux.Pooled && now.Names >= readyNames
	})
	return now
}

// resident is what a process has in memory now, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestJ10ManyJobs ends jobs in every way, one after the other; VEYRA_SOAK=1 makes
// it a thousand. What is held does not grow with them.
func TestJ10ManyJobs(t *testing.T) {
	jobs := 24
	if os.Getenv("VEYRA_SOAK") != "" {
		jobs = 1000
	}
	config := config(t, "test-many")
	image := needImage(t)
	c := start(t, config)
	spec := sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}
	for i := range len(endings) { // the first ones fill the pool and the runtime's caches
		endOne(t, c, spec, i)
	}
	before, memory := atRest(t, c, config), resident(t, c.Pid())
	for i := range jobs {
		endOne(t, c, spec, i)
	}
	if diff := cmp.Diff(before, atRest(t, c, config)); diff != "" {
		t.Errorf("held after %d jobs (-before +after):\n%s", jobs, diff)
	}
	if grown := resident(t, c.Pid()) - memory; grown > 10<<20 {
		t.Errorf("the runner has grown by %d MiB", grown>>20)
	}
}

// endings are ways in which a sandbox and its job end.
var endings = []func(context.Context, sandbox.Sandbox) error{
	func(ctx context.Context, box sandbox.Sandbox) error {
		_, err := box.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
		return err
	},
	func(ctx context.Context, box sandbox.Sandbox) error { return box.Collect(ctx, io.Discard) },
	func(context.Context, sandbox.Sandbox) error { return nil }, // the job's Close is left to end it
	func(ctx context.Context, box sandbox.Sandbox) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err := box.Run(ctx, sandbox.Command{Argv: []string{"sleep", "60"}})
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("a cancelled command: %w", err)
	},
	func(ctx context.Context, box sandbox.Sandbox) error {
		_, err := box.Run(ctx, sandbox.Command{Argv: []string{"sh", "-c", "head -c 90000000 /dev/zero > full; setsid sleep 600 &"}})
		return err
	},
	func(ctx context.Context, box sandbox.Sandbox) error {
		exit, err := box.Run(ctx, sandbox.Command{Argv: []string{"cat", "/dev/zero"}, OutputBytes: 1 << 20})
		if err == nil && exit.Ended != sandbox.LimitOutput {
			err = fmt.Errorf("a flood ended with %+v", exit)
		}
		return err
	},
}

func endOne(t *testing.T, c *runner.Client, spec sandbox.Spec, i int) {
	t.Helper()
	ctx := context.Background()
	job, err := c.OpenJob(ctx, sandbox.JobSpec{ID: sandbox.JobID(fmt.Sprintf("many-%d", i)), Limits: spec.Limits})
	if err != nil {
		t.Fatal(err)
	}
	box, err := job.Create(ctx, spec)
	if err == nil {
		err = endings[i%len(endings)](ctx, box)
	}
	if err := errors.Join(err, job.Close(ctx)); err != nil {
		t.Fatalf("job %d: %v", i, err)
	}
}
