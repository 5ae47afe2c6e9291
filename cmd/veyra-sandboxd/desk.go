package main

import (
	"context"
	"io"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// desk answers about runs: the daemon over its control socket, or the state
// directory where none runs. It has four methods, one a command.
type desk interface {
	Jobs(ctx context.Context) ([]supervisor.JobView, error)
	Job(ctx context.Context, id string) ([]supervisor.JobView, error)
	CopyLog(ctx context.Context, id string, w io.Writer) error
	DeleteJob(ctx context.Context, id string) error
}

var (
	_ desk = (*supervisor.Control)(nil)
	_ desk = shelf{}
)

func openDesk(ctx context.Context, o *options) (desk, func(), error) {
	s, err := o.settings()
	if err != nil {
		return nil, nil, err
	}
	if c, err := control(s); err == nil {
		if _, err := c.Status(ctx); err == nil {
			return c, func() {}, nil
		}
	}
	if !fileExists(pathsOf(s.StateDir).journal) {
		return nil, nil, withCode(exitWrongState, "%s holds no journal: no daemon has run there yet", s.StateDir)
	}
	records, err := journal.Open(s.StateDir)
	if err != nil {
		return nil, nil, err
	}
	return shelf{supervisor.Archive{Journal: records, JobsDir: pathsOf(s.StateDir).jobs}}, func() { _ = records.Close() }, nil
}

// shelf reads the state directory, under its lock.
type shelf struct{ supervisor.Archive }

// CopyLog copies the log of an assignment's newest run.
func (s shelf) CopyLog(ctx context.Context, id string, w io.Writer) error {
	log, err := s.OpenLog(ctx, id)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = io.Copy(w, log)
	return err
}
