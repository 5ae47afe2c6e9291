package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// smallDisk puts a place's state on a file system of its own, with little more
// than what a job books above the floor.
func smallDisk(t *testing.T, p *place) (dir string) {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	for _, argv := range [][]string{
		{"truncate", "-s", "8G", image}, {"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("not applicable: %s: %v %s", argv[0], err, out)
		}
	}
	t.Cleanup(func() {
		// The runner of a daemon that was killed ends by itself.
		until(t, "the file system is unmounted", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	p.state, p.config = filepath.Join(dir, "state"), filepath.Join(t.TempDir(), "floor.yaml")
	writeFile(t, p.config, fmt.Sprintf("keep: {disk_floor: %d}\n", 1<<30), 0o600)
	return dir
}

// fillUp takes every block that is free, and returns the file that holds them.
func fillUp(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(0)
	for step := int64(1 << 30); step >= 4096; {
		if unix.Fallocate(int(f.Fd()), 0, at, step) != nil {
			step /= 2
			continue
		}
		at += step
	}
	return f.Name()
}

// TestJ04DiskFullDuringAJob: the disk becomes full in the middle of a job. It still
// gets a result, sealed and delivered; no other is taken until there is room again,
// and then the daemon works on as if nothing had been.
func TestJ04DiskFullDuringAJob(t *testing.T) {
	t.Parallel()
	needSandboxes(t)
	w := newWorld(t, true)
	p := w.newPlace()
	dir := smallDisk(t, &p)
	d := w.ready(p)
	id, asked, answer := w.heldJob("Make add add")
	waittest.For(t, "the model is asked", asked)
	filler := fillUp(t, dir)
	d.wantReason("disk", "The disk is under the floor")
	close(answer)
	j := w.ended(id)
	code := j.Evidence[protocol.KeyFailureCode]
	if j.Status != "FAILED" || j.Signature == "" || protocol.Lookup(protocol.Code(fmt.Sprint(code))).Stage == protocol.StageExecution {
		t.Errorf("the job ended %s", pretty(j))
	}
	next := w.job("next", "Make it add, too", project(), nil, fix(), providertest.Step{Finish: "Fixed add."})
	beats := w.plane.View().Counts.Beats
	w.wait("beats go on", func(v controlplanetest.View) bool { return v.Counts.Beats > beats+2 })
	if got := jobOf(w.plane.View(), next); got.Status != "QUEUED" {
		t.Errorf("a host without room was given a job: %s", pretty(got))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	w.accepted(next)
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}
