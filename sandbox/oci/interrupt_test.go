package oci_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// moments returns random delays within the time that a start takes; the seed is
// printed.
func moments(t testing.TB, n int) []time.Duration {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration(random.Int64N(int64(60 * time.Millisecond)))
	}
	return all
}

// TestJ02RunnerKilledInEveryState kills it somewhere between the first byte of
// a request and a running command.
func TestJ02RunnerKilledInEveryState(t *testing.T) {
	onEach(t, "states", runnerKilledInEveryState)
}

func runnerKilledInEveryState(t *testing.T, config runner.Config) {
	image := needImage(t)
	for _, moment := range moments(t, 8) {
		killed(t, config, sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)}, moment)
	}
	next := start(t, config)
	if found := left(t, next.Pid(), config.Instance); len(found) != 0 {
		t.Errorf("left after the sweep: %v", found)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	wantClean(t, config)
}

// startSome starts sandboxes until something fails.
func startSome(c *runner.Client, spec sandbox.Spec) error {
	ctx := context.Background()
	job, err := c.OpenJob(ctx, sandbox.JobSpec{ID: "states", Limits: spec.Limits})
	for err == nil {
		var box sandbox.Sandbox
		if box, err = job.Create(ctx, spec); err == nil {
			_, err = box.Run(ctx, sandbox.Command{Argv: []string{"sh", "-c", "echo x > file"}})
		}
		if err == nil {
			_, err = box.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
		}
	}
	return err
}

// TestCancelledStartLeavesNothing cancels Create at random moments.
func TestCancelledStartLeavesNothing(t *testing.T) {
	config := config(t, "test-cancel")
	image := needImage(t)
	c := start(t, config)
	job, err := c.OpenJob(context.Background(), sandbox.JobSpec{ID: "cancel", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range moments(t, 12) {
		ctx, cancel := context.WithTimeout(context.Background(), moment)
		box, err := job.Create(ctx, sandbox.Spec{Image: image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t)})
		cancel()
		if err == nil {
			err = box.Close(context.Background())
			if err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %s: %v", moment, err)
		}
	}
	waittest.Until(t, "late answers are given back", func() bool { return len(children(t, c.Pid())) == 0 })
	if err := job.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "nothing is left", func() bool { return len(left(t, c.Pid(), config.Instance)) == 0 })
}
