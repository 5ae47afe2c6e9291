package supervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

// copies keeps the journal as it was after each commit: what a crash there leaves.
func (l *lab) copies() func() []string {
	var all []string
	l.journal.Timed(func(time.Duration) {
		copied := l.t.TempDir()
		chmod(l.t, copied, 0o700)
		if err := os.CopyFS(filepath.Join(copied, "journal"), os.DirFS(filepath.Join(l.state, "journal"))); err != nil {
			l.t.Error(err)
		}
		chmod(l.t, filepath.Join(copied, "journal"), 0o700)
		all = append(all, copied)
	})
	return func() []string { return all }
}

// drafts counts the drafts that the next start would sign and send.
func drafts(t *testing.T, state string) int {
	t.Helper()
	chmod(t, filepath.Join(state, "journal", "journal.db"), 0o600)
	for _, name := range []string{"written", "journal.db-wal", "journal.db-shm", "reserve"} {
		_ = os.Chmod(filepath.Join(state, "journal", name), 0o600)
	}
	j, err := journal.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	left, err := j.Unfinished(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, record := range left {
		if record.Draft != nil {
			n++
		}
	}
	return n
}

// Attack case J01: what a run found after its lease was lost is kept and never
// sent, wherever a crash comes.
func TestJ01CrashesSendNothingThatCameTooLate(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.worker = func(ctx context.Context, run jobs.Run) jobs.Outcome {
			<-ctx.Done()
			return jobs.Outcome{Evidence: evidence(run)}
		}
		l.restart()
		copies := l.copies()
		l.pair()
		l.plane.AddJob(job())
		l.pass(40 * time.Minute)
		l.crash()
		if len(copies()) == 0 {
			t.Fatal("nothing was committed")
		}
		for i, state := range copies() {
			if n := drafts(t, state); n > 0 {
				t.Errorf("after commit %d of %d the next start would send %d drafts", i+1, len(copies()), n)
			}
		}
	})
}

// A lease that is lost while its result can't be sealed ends the run; nobody is
// told to restart for it.
func TestG08LostLeaseEndsWhatCanNotBeSealed(t *testing.T) {
	for name, lose := range map[string]func(l *lab, job int64){
		"a newer lease": func(l *lab, job int64) { l.plane.Lease(job) },
		"its time":      func(l *lab, _ int64) { l.pass(40 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, controlplanetest.Options{Qualified: true, Attempts: 2}, func(l *lab) {
				l.pair()
				l.signer.err = errors.New("the log can't be written")
				id := l.plane.AddJob(job())
				l.pass(20 * time.Second)
				lose(l, id)
				l.pass(time.Minute)
				l.signer.err = nil
				l.pass(10 * time.Minute)
				listed, err := l.sup.Jobs(context.Background())
				if err != nil || len(listed) == 0 {
					t.Fatalf("jobs %+v, %v", listed, err)
				}
				if first := listed[len(listed)-1]; first.State != "abandoned" || first.Reason != "LEASE_LOST" {
					t.Errorf("the first run is %s (%s)", first.State, first.Reason)
				}
			})
		})
	}
}

// Attack case G09: a revision that could not be signed, and a send of the result
// that was not answered after it. A restart goes on with the result.
func TestG09NoRevisionAfterAnUnansweredSend(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true, GitHub: neverFound{}}, func(l *lab) {
		l.pair()
		l.plane.AddJob(job())
		l.wait("it is refused", func(v controlplanetest.View) bool { return v.Calls[controlplanetest.JobResult] > 3 })
		l.signer.err = signer.ErrGone
		drafted := func() bool {
			records, err := l.journal.Unfinished(context.Background())
			return err == nil && len(records) == 1 && records[0].Draft != nil
		}
		for range 40 * 60 {
			if l.pass(time.Second); drafted() {
				break
			}
		}
		if !drafted() {
			t.Fatal("no revision was drafted")
		}
		l.plane.FaultNext(controlplanetest.JobResult, controlplanetest.Fault{Status: 502, Body: "<html>"})
		sent := l.plane.View().Calls[controlplanetest.JobResult]
		l.wait("it is sent once more", func(v controlplanetest.View) bool { return v.Calls[controlplanetest.JobResult] > sent })
		l.pass(time.Second)
		l.signer.err = nil
		l.restart()
		l.pass(5 * time.Minute)
		if n := l.plane.View().Counts.FailedResults; n != 0 {
			t.Errorf("%d failures followed a success without an answer", n)
		}
	})
}
