package oci_test

import (
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestRangesComeBack: what jobs have held is free again, but for the one range that a
// runner at rest has ready, and the next job takes that one.
func TestRangesComeBack(t *testing.T) {
	c := start(t, config(t, "test-ranges"))
	for _, name := range []sandbox.JobID{"one", "two", "three"} {
		job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: name, Limits: small(t)})
		if err != nil {
			t.Fatal(err)
		}
		if held := ranges(t, c.Pid()); len(held) < 1 || len(held) > 2 { // one may be on its way to be ready
			t.Errorf("with job %s open: %q", name, held)
		}
		if err := job.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if name == "one" {
			waittest.Until(t, "a range is ready", func() bool { return len(ranges(t, c.Pid())) == 1 })
		}
	}
	waittest.Until(t, "one range is held at rest", func() bool {
		return len(waittest.Rest(t, "the runner", func() []string { return ranges(t, c.Pid()) })) == 1
	})
}
