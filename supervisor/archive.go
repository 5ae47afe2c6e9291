package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/veyra-labs/veyra-sandboxd/journal"
)

// Link returns the connection link (see Pairing.Link).
func (s *Supervisor) Link(rotate bool) (string, error) { return s.parts.Pairing.Link(rotate) }

// Archive answers questions about runs from the journal and the jobs directory;
// commands use it without a daemon.
type Archive struct {
	Journal *journal.Journal
	JobsDir string
}

var _ archive = Archive{}

// maxListed bounds a list of runs.
const maxListed = 500

func (s *Supervisor) archive() Archive { return Archive{s.parts.Journal, s.config.JobsDir} }

// Jobs lists runs, newest first.
func (s *Supervisor) Jobs(ctx context.Context) ([]JobView, error) { return s.archive().Jobs(ctx) }

// Job lists the runs of an assignment with their evidence.
func (s *Supervisor) Job(ctx context.Context, id string) ([]JobView, error) {
	return s.archive().Job(ctx, id)
}

// OpenLog opens the log of an assignment's newest run.
func (s *Supervisor) OpenLog(ctx context.Context, id string) (io.ReadCloser, error) {
	return s.archive().OpenLog(ctx, id)
}

// DeleteJob removes what the runs of an assignment left.
func (s *Supervisor) DeleteJob(ctx context.Context, id string) error {
	return s.archive().DeleteJob(ctx, id)
}

// Jobs lists runs, newest first.
func (a Archive) Jobs(ctx context.Context) ([]JobView, error) {
	records, err := a.Journal.List(ctx, maxListed)
	if err != nil {
		return nil, err
	}
	views := []JobView{}
	for _, r := range records {
		views = append(views, viewOf(r))
	}
	return views, nil
}

// Job lists the runs of an assignment with their evidence, newest first.
func (a Archive) Job(ctx context.Context, id string) ([]JobView, error) {
	keys, err := a.keys(ctx, id)
	if err != nil {
		return nil, err
	}
	var views []JobView
	for _, key := range keys {
		record, err := a.Journal.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		views = append(views, viewOf(record))
	}
	return views, nil
}

// viewOf leaves out the lease token and the client's task.
func viewOf(r journal.Record) JobView {
	v := JobView{
		Kind: r.Kind, ID: r.ID, Lease: r.Lease, State: string(r.State), Reason: r.Reason,
		Accepted: r.Accepted, Ended: r.Ended, Deleted: r.Deleted,
	}
	if json.Valid(r.Receipt) {
		v.Receipt = r.Receipt
	}
	evidence := r.Seal
	if evidence == nil {
		evidence = r.Draft // kept, never sent
	}
	if evidence != nil {
		v.Hash, v.Signature = evidence.Hash, evidence.Signature
		if json.Valid(evidence.Body) {
			v.Evidence = evidence.Body
		}
	}
	return v
}

// OpenLog opens the log of an assignment's newest run. ErrDeleted, ErrNoLog:
// there is none.
func (a Archive) OpenLog(ctx context.Context, id string) (io.ReadCloser, error) {
	keys, err := a.keys(ctx, id)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(a.JobsDir)
	if err != nil {
		return nil, fmt.Errorf("opening the jobs directory: %w", err)
	}
	defer root.Close()
	f, err := root.Open(keys[0].ID + "/" + keys[0].Lease + "/log")
	if errors.Is(err, os.ErrNotExist) {
		return nil, a.noLog(ctx, keys[0])
	}
	return f, err
}

// noLog tells why a run has no log: it was deleted, or the run wrote none yet.
func (a Archive) noLog(ctx context.Context, key journal.Key) error {
	record, err := a.Journal.Get(ctx, key)
	if err == nil && record.Deleted {
		return ErrDeleted
	}
	return errors.Join(err, ErrNoLog)
}

// DeleteJob removes what the runs of an assignment left: files, and the client's
// part of the journal.
func (a Archive) DeleteJob(ctx context.Context, id string) error {
	keys, err := a.keys(ctx, id)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := a.Journal.Delete(ctx, key); errors.Is(err, journal.ErrOrder) {
			return ErrBusyJob
		} else if err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(a.JobsDir)
	if err != nil {
		return fmt.Errorf("opening the jobs directory: %w", err)
	}
	defer root.Close()
	return root.RemoveAll(id)
}

// keys are the runs of an assignment or qualification, newest first.
func (a Archive) keys(ctx context.Context, id string) ([]journal.Key, error) {
	records, err := a.Journal.OfID(ctx, id)
	if err != nil {
		return nil, err
	}
	var keys []journal.Key
	for _, r := range records {
		keys = append(keys, r.Key)
	}
	if len(keys) == 0 {
		return nil, ErrNoJob
	}
	return keys, nil
}
