package oci_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// neighbour is one instance of the host, with a runner of its own.
type neighbour struct {
	*runner.Client
	name string
	jobs []sandbox.Job
}

const neighbours = 4

func startNeighbours(t *testing.T, config runner.Config) []*neighbour {
	t.Helper()
	var all []*neighbour
	for i := range neighbours {
		config.Instance = fmt.Sprint("test-b18-", i)
		c, err := runner.Start(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		all = append(all, &neighbour{Client: c, name: config.Instance})
	}
	return all
}

// fillUp opens jobs in all instances at once until none fits any more.
func fillUp(t *testing.T, all []*neighbour, limits policies.Limits) {
	t.Helper()
	var filling sync.WaitGroup
	for _, n := range all {
		filling.Go(func() {
			for len(n.jobs) < 64 {
				id := sandbox.JobID(fmt.Sprint("job-", len(n.jobs)))
				job, err := n.OpenJob(context.Background(), sandbox.JobSpec{ID: id, Limits: limits})
				if sandbox.KindOf(err) == sandbox.KindNoRoom {
					return
				}
				if err != nil {
					t.Errorf("%s: %v", n.name, err)
					return
				}
				n.jobs = append(n.jobs, job)
			}
		})
	}
	filling.Wait()
}

func opened(all []*neighbour) int {
	sum := 0
	for _, n := range all {
		sum += len(n.jobs)
	}
	return sum
}

// TestB18MemoryIsBookedAcrossInstances: four runners take at once what they can.
// Together they never book more than the host has, and one that is killed gives
// back what it held.
func TestB18MemoryIsBookedAcrossInstances(t *testing.T) {
	config := config(t, "test-b18")
	config.Policy = "relaxed"
	policy, err := policies.Load(config.Policy)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := linux.Memory()
	if err != nil {
		t.Fatal(err)
	}
	limits := shrink(policy.Limits)
	limits.MemoryBytes = min(policy.Limits.MemoryBytes, memory*3/10)
	all := startNeighbours(t, config)
	fillUp(t, all, limits)
	if n := opened(all); n == 0 || int64(n)*limits.MemoryBytes > memory {
		t.Fatalf("%d jobs of %d MiB were opened on a host with %d MiB", n, limits.MemoryBytes>>20, memory>>20)
	}
	victim := all[0]
	for _, n := range all {
		if len(n.jobs) > len(victim.jobs) {
			victim = n
		}
	}
	if err := unix.Kill(victim.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = victim.Close() // waits until its locks are nobody's
	var others []*neighbour
	for _, n := range all {
		if n != victim {
			others = append(others, n)
		}
	}
	before := opened(others)
	fillUp(t, others, limits)
	if got := opened(others) - before; got != len(victim.jobs) {
		t.Errorf("%d jobs fit in the place of the %d that a killed instance held", got, len(victim.jobs))
	}
	if _, err := others[0].Sweep(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(runner.RunDir, victim.name)); !os.IsNotExist(err) {
		t.Errorf("the killed instance is still there: %v", err)
	}
}

// TestB18DisksFilledAcrossInstances: on a small file system each job that was let
// in fills its own disk to the end, all at once; the limit ends them, and none
// sees the host's disk fail. The image store is locked meanwhile, as by a build.
func TestB18DisksFilledAcrossInstances(t *testing.T) {
	config := config(t, "test-b18")
	image := needImage(t)
	config.Disks = smallHostDisk(t)
	lock, err := durable.LockWait(context.Background(), filepath.Join(config.Images, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	all := startNeighbours(t, config)
	limits := small(t)
	limits.DiskBytes = 512 << 20
	fillUp(t, all, limits)
	if n := opened(all); n < 2 || n > 3 {
		t.Fatalf("%d jobs of 1 GiB were opened on a disk with 3 GiB", n)
	}
	var running sync.WaitGroup
	for _, n := range all {
		for _, job := range n.jobs {
			running.Go(func() { fillDisk(t, job, image, limits) })
		}
	}
	running.Wait()
	for _, n := range all {
		for _, job := range n.jobs {
			if err := job.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	if found, err := os.ReadDir(config.Disks); err != nil || len(found) > 1 { // lost+found
		t.Errorf("left on the disk: %v, %v", found, err)
	}
}

// fillDisk writes until the sandbox's own disk is full.
func fillDisk(t *testing.T, job sandbox.Job, image images.Digest, limits policies.Limits) {
	ctx := context.Background()
	box, err := job.Create(ctx, sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits})
	if err != nil {
		t.Error(err)
		return
	}
	exit, err := box.Run(ctx, sandbox.Command{Argv: []string{"dd", "if=/dev/zero", "of=full", "bs=1M"}})
	if err != nil || exit.Code == 0 || !slices.Contains(exit.Limits, sandbox.LimitDisk) {
		t.Errorf("filling a disk ended %+v, %v", exit, err)
	}
	if err := box.Close(ctx); err != nil {
		t.Error(err)
	}
}
