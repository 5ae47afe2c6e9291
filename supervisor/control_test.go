package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func TestControlSocketAnswersTheOwner(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{Qualified: true})
	h.boot()
	ctl := supervisor.NewControl(h.control)
	ctx := h.context()
	link, err := ctl.Link(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	if rotated, err := ctl.Link(ctx, true); err != nil || rotated == link {
		t.Errorf("rotated %v, %v", rotated == link, err)
	}
	h.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
		if err := os.WriteFile(filepath.Join(run.Dir, "log"), []byte("what happened\n"), 0o600); err != nil {
			t.Error(err)
		}
		return success(ctx, run)
	}
	h.reboot()
	ctl = supervisor.NewControl(h.control)
	h.pair()
	h.until("it is paired", func(s supervisor.Status) bool { return s.Pairing == supervisor.Paired })
	if _, err := ctl.Link(ctx, false); !errors.Is(err, supervisor.ErrPaired) {
		t.Errorf("link while paired: %v", err)
	}
	h.plane.AddJob(job())
	id := h.wait("a result is accepted", accepted(1)).Jobs[0].AssignmentID
	h.until("the outbox is empty", func(s supervisor.Status) bool { return len(s.Outbox) == 0 && s.Running == nil })
	checkArchive(t, ctx, ctl, id)
}

func checkArchive(t *testing.T, ctx context.Context, ctl *supervisor.Control, id string) {
	t.Helper()
	listed, err := ctl.Jobs(ctx)
	if err != nil || len(listed) != 1 || listed[0].State != "delivered" {
		t.Errorf("jobs %+v, %v", listed, err)
	}
	shown, err := ctl.Job(ctx, id)
	if err != nil || len(shown) != 1 || !bytes.Contains(shown[0].Evidence, []byte(`"outcome":"SUCCEEDED"`)) {
		t.Errorf("job %+v, %v", shown, err)
	}
	var log bytes.Buffer
	if err := ctl.CopyLog(ctx, id, &log); err != nil || log.String() != "what happened\n" {
		t.Errorf("log %q, %v", &log, err)
	}
	if err := ctl.DeleteJob(ctx, id); err != nil {
		t.Error(err)
	}
	log.Reset()
	if err := ctl.CopyLog(ctx, id, &log); !errors.Is(err, supervisor.ErrDeleted) || log.Len() != 0 {
		t.Errorf("log after delete %q, %v", &log, err)
	}
	for _, bad := range []string{someID, "../../etc", "x"} {
		if _, err := ctl.Job(ctx, bad); err == nil {
			t.Errorf("job %q is shown", bad)
		}
		if err := ctl.DeleteJob(ctx, bad); err == nil {
			t.Errorf("job %q is deleted", bad)
		}
	}
	status, err := ctl.Status(ctx)
	if err != nil || status.Ready != "ok" || status.Why == "" {
		t.Errorf("status %+v, %v", status, err)
	}
}

func TestControlWithoutADaemon(t *testing.T) {
	ctl := supervisor.NewControl(filepath.Join(t.TempDir(), "s"))
	if _, err := ctl.Status(t.Context()); !errors.Is(err, supervisor.ErrNoDaemon) {
		t.Errorf("status: %v, want ErrNoDaemon", err)
	}
}

// Attack case J03: a signed result that the journal does not know stops the
// start.
func TestJ03UnknownSignatureStopsTheStart(t *testing.T) {
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: the real signer and its log need a build without cgo")
	}
	h := newHouse(t, controlplanetest.Options{})
	h.signer = startSigner(t, h.state)
	defer h.signer.Close()
	hash := "0x" + strings.Repeat("ab", 32)
	if _, err := h.signer.Sign(t.Context(), signer.JobResult{Assignment: someID, Lease: someLease, EvidenceHash: hash}); err != nil {
		t.Fatal(err)
	}
	if err := h.rebuild(); !errors.Is(err, supervisor.ErrState) {
		t.Errorf("Run: %v, want ErrState", err)
	}
}

// Attack case J15: with a dead signer nothing is signed and the run stays.
func TestJ15DeadSignerLeavesTheRunInTheJournal(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{Qualified: true})
	h.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
		if err := h.signer.Close(); err != nil {
			t.Error(err)
		}
		return success(ctx, run)
	}
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: the real signer needs a build without cgo")
	}
	h.boot()
	h.pair()
	h.plane.AddJob(job())
	h.until("the owner is told", func(s supervisor.Status) bool { return strings.Contains(s.Why, "could not be sealed") })
	if n := h.plane.View().Calls[controlplanetest.JobResult]; n != 0 {
		t.Errorf("%d results were sent", n)
	}
	h.worker = func(context.Context, jobs.Run) jobs.Outcome {
		t.Error("the job was done again")
		return jobs.Outcome{Abandoned: "X"}
	}
	h.reboot()
	h.wait("the result is accepted after the restart", accepted(1))
}
