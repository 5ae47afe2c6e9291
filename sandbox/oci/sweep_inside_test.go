package oci

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock/hostlocktest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// TestSweepFinishesWhatCloseCouldNot: a sandbox whose processes can't be ended
// keeps its job's ids and booking, so that nobody else gets them, until a sweep
// has ended it.
func TestSweepFinishesWhatCloseCouldNot(t *testing.T) {
	d := bareDriver(t)
	j := &job{driver: d, spec: sandbox.JobSpec{ID: "stuck"}, ground: bareGround(t, d), booked: lockFile(t, d, "booking")}
	d.jobs.Add(j.spec.ID, j)
	b := &box{job: j, id: "s1", view: linux.View{Dir: t.TempDir()}, group: linux.Group{All: d.cgroups, Path: filepath.Join(d.label(), "s1")}}
	j.boxes.Add(b.id, b)
	// What can't be read as a list of processes can't be ended.
	procs := filepath.Join(d.cgroups.Trees[0].Own, b.group.Path, "cgroup.procs")
	if err := os.MkdirAll(procs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(context.Background()); err == nil {
		t.Fatal("a sandbox that can't be ended was closed")
	}
	if swept, err := d.Sweep(context.Background()); err == nil || len(swept) != 0 {
		t.Errorf("it was swept: %v, %v", swept, err)
	}
	for _, name := range []string{"range", "booking"} {
		if _, err := hostlock.Take(d.config.Run, name); err == nil {
			t.Errorf("the %s is free while the sandbox may live", name)
		}
	}
	if err := os.Remove(procs); err != nil {
		t.Fatal(err)
	}
	if swept, err := d.Sweep(context.Background()); err != nil || swept["container"] != 1 {
		t.Errorf("a sweep took %v, %v", swept, err)
	}
	for _, name := range []string{"range", "booking"} {
		lock, err := hostlock.Take(d.config.Run, name)
		if err != nil {
			t.Fatalf("the %s: %v", name, err)
		}
		lock.Release()
	}
	if swept, err := d.Sweep(context.Background()); err != nil || len(swept) != 0 {
		t.Errorf("another sweep took %v, %v", swept, err)
	}
}

// TestCloseGoesOnWhereItFailed: a sandbox that could not be removed to the end is
// not forgotten, and its job keeps what it booked.
func TestCloseGoesOnWhereItFailed(t *testing.T) {
	d := bareDriver(t)
	j := &job{driver: d, spec: sandbox.JobSpec{ID: "kept"}, ground: bareGround(t, d), booked: lockFile(t, d, "booking")}
	d.jobs.Add(j.spec.ID, j)
	b := &box{job: j, id: "s1", view: linux.View{Dir: t.TempDir()}, group: linux.Group{All: d.cgroups, Path: filepath.Join(d.label(), "s1")}}
	j.boxes.Add(b.id, b)
	inTheWay := filepath.Join(d.cgroups.Trees[0].Own, b.group.Path, "in the way")
	if err := os.MkdirAll(inTheWay, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := j.Close(context.Background()); err == nil {
			t.Fatal("a sandbox whose control group stays was closed")
		}
		if _, err := hostlock.Take(d.config.Run, "booking"); err == nil {
			t.Fatal("the booking is free")
		}
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if swept, err := d.Sweep(context.Background()); err != nil || swept["container"] != 1 || len(d.jobs.All()) != 0 {
		t.Errorf("a sweep took %v, %v; %d jobs are left", swept, err, len(d.jobs.All()))
	}
}

// TestA19NoJobThatThePolicyRefuses: whoever asks.
func TestA19NoJobThatThePolicyRefuses(t *testing.T) {
	d := bareDriver(t)
	d.config.Policy.Name, d.unable = "mine", d.cgroups.Unable()
	_, err := d.OpenJob(context.Background(), sandbox.JobSpec{ID: "one"})
	if err == nil || !strings.Contains(err.Error(), "memory: ") || len(d.jobs.All()) > 0 {
		t.Errorf("a host without controllers: %v, %d jobs", err, len(d.jobs.All()))
	}
}

// bareDriver has directories for trees and starts nothing.
func bareDriver(t *testing.T) *Driver {
	t.Helper()
	root := hostlocktest.Root(t)
	if err := root.Mkdir("inside", 0o755); err != nil {
		t.Fatal(err)
	}
	d := &Driver{
		config:  Config{Instance: "inside", Run: root, Disks: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		runtime: ociRuntime{state: t.TempDir()},
		cgroups: &linux.Cgroups{Trees: []linux.Hierarchy{{Own: t.TempDir()}}},
	}
	d.traces = linux.Traces{Instance: "inside", Run: root, Cgroups: d.cgroups, Log: d.config.Log}
	return d
}

func lockFile(t *testing.T, d *Driver, name string) *hostlock.Lock {
	t.Helper()
	lock, err := hostlock.Take(d.config.Run, name)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// bareGround has a range that nobody else can take, and nothing else.
func bareGround(t *testing.T, d *Driver) *ground {
	t.Helper()
	return &ground{
		driver: d, ids: &idRange{lock: lockFile(t, d, "range")},
		namespaces: newNamespaces(0, d.pathIn("u")),
	}
}
