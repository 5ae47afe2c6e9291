package oci_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestHostDiskFullIsNoResult: below the sparse image the host's file system is
// full, so writes succeed and are lost. Whatever comes of the sandbox then, a
// command's end, a layer or a change, is none.
func TestHostDiskFullIsNoResult(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		config := configOf(t, "test-full-"+runtime, runtime)
		image := needImage(t)
		config.Disks = smallHostDisk(t)
		c := start(t, config)
		job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "full", Limits: small(t)})
		if err != nil {
			t.Fatal(err)
		}
		var boxes []sandbox.Sandbox
		for range 3 { // their first bytes are written while there is room
			box, err := job.Create(context.Background(), sandbox.Spec{
				Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t),
			})
			if err != nil {
				t.Fatal(err)
			}
			boxes = append(boxes, box)
		}
		fill(t, filepath.Join(config.Disks, "filler"))
		for what, err := range map[string]error{
			"a command": lose(boxes[0], "sync"),
			"a freeze": errors.Join(lose(boxes[1], "true"), func() error {
				_, err := boxes[1].Freeze(context.Background(), []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
				return err
			}()),
			"a collection": errors.Join(ignoring(lose(boxes[2], "sync")), boxes[2].Collect(context.Background(), io.Discard)),
		} {
			if sandbox.KindOf(err) != sandbox.KindCrashed {
				t.Errorf("%s above a full host disk, on %s, gave %v", what, runtime, err)
			}
		}
		if err := job.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// lose writes what the host can't hold.
func lose(box sandbox.Sandbox, then string) error {
	_, err := box.Run(context.Background(), sandbox.Command{Argv: []string{"sh", "-c", "dd if=/dev/zero of=x bs=1M count=50; " + then + "; true"}})
	return err
}

// ignoring is for what is not looked at.
func ignoring(error) error { return nil }

// smallHostDisk mounts a file system just above the floor.
func smallHostDisk(t testing.TB) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	for _, argv := range [][]string{
		{"truncate", "-s", strconv.FormatInt(policies.MinDiskBytes+(1<<30), 10), image},
		{"mkfs.ext4", "-q", "-F", image},
		{"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("not applicable: %s: %v %s", argv[0], err, out)
		}
	}
	t.Cleanup(func() {
		// Loop devices on it detach a moment after their last user.
		waittest.Until(t, "the file system is unmounted", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	return dir
}

// fill takes everything that is free, without writing it.
func fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(0)
	for step := int64(1 << 30); step >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, step); err != nil {
			step /= 2
			continue
		}
		at += step
	}
}

func TestRoomIsBooked(t *testing.T) {
	config := config(t, "test-room")
	c := start(t, config)
	limits := small(t)
	limits.MemoryBytes = 4 << 30
	var jobs []sandbox.Job
	for i := range 64 {
		job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: sandbox.JobID(fmt.Sprintf("room-%d", i)), Limits: limits})
		if err != nil {
			if sandbox.KindOf(err) != sandbox.KindNoRoom {
				t.Fatalf("job %d: %v", i, err)
			}
			break
		}
		jobs = append(jobs, job)
	}
	if len(jobs) == 64 {
		t.Skip("not applicable: this host has more than 256 GiB of memory")
	}
	if len(jobs) == 0 {
		t.Fatal("not one job fits")
	}
	if err := jobs[0].Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "again", Limits: limits})
	if err != nil {
		t.Fatalf("after a job has closed: %v", err)
	}
	for _, j := range append(jobs[1:], job) {
		if err := j.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
