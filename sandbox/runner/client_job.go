package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// clientJob is a sandbox.Job.
type clientJob struct {
	client *Client
	id     sandbox.JobID

	mu       sync.Mutex // guards what follows
	sessions map[*clientSandbox]bool
	down     bool // hung up: a sandbox that comes late is closed at once
}

// Create starts a sandbox, waits for the first word of its PID 1 and compares
// what that read about itself, and what the runner read on the host, with the
// Spec.
func (j *clientJob) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, _, _, err := j.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (j *clientJob) create(ctx context.Context, spec sandbox.Spec) (*clientSandbox, Ready, sandbox.Applied, error) {
	if spec.Layers == nil {
		spec.Layers = []sandbox.LayerID{}
	}
	r, err := j.client.call(ctx, request{Op: opCreate, Job: j.id, Spec: &spec})
	if err != nil {
		return nil, Ready{}, sandbox.Applied{}, err
	}
	s := &clientSandbox{job: j, name: r.Sandbox}
	ready, applied, err := s.meet(ctx, spec, r.files)
	if err != nil {
		return nil, Ready{}, sandbox.Applied{}, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	if !j.add(s) {
		return nil, Ready{}, sandbox.Applied{}, errors.Join(j.client.lost(opCreate, os.ErrClosed), s.Close(context.WithoutCancel(ctx)))
	}
	return s, ready, applied, nil
}

func (j *clientJob) add(s *clientSandbox) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sessions == nil {
		j.sessions = map[*clientSandbox]bool{}
	}
	j.sessions[s] = !j.down
	return !j.down
}

// hangUp closes the pipes of every sandbox: what runs in them ends at once.
func (j *clientJob) hangUp() {
	j.mu.Lock()
	sessions := j.sessions
	j.sessions, j.down = nil, true
	j.mu.Unlock()
	for s := range sessions {
		_ = s.session.Close()
	}
}

func (j *clientJob) remove(s *clientSandbox) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.sessions, s)
}

// Close closes every sandbox's pipes, which ends what runs in them, and lets
// the runner remove the rest.
func (j *clientJob) Close(ctx context.Context) error {
	j.hangUp()
	j.client.untrack(j)
	_, err := j.client.call(ctx, request{Op: opCloseJob, Job: j.id})
	return err
}

// clientSandbox is a sandbox.Sandbox.
type clientSandbox struct {
	job     *clientJob
	name    string
	session *Session // nil until PID 1 has spoken

	mu     sync.Mutex // guards ended and closed
	ended  bool       // frozen, collected or closed
	closed bool
}

func (s *clientSandbox) meet(ctx context.Context, spec sandbox.Spec, pipes []*os.File) (Ready, sandbox.Applied, error) {
	if len(pipes) != 2 {
		closeFiles(pipes)
		return Ready{}, sandbox.Applied{}, &sandbox.Error{
			Kind: sandbox.KindStart,
			Op:   fmt.Sprintf("starting sandbox: runner sent %d pipes", len(pipes)),
		}
	}
	session, ready, err := NewSession(ctx, pipes[0], pipes[1], spec.Limits, s.counters)
	if err != nil {
		return Ready{}, sandbox.Applied{}, err
	}
	s.session = session
	r, err := s.job.client.call(ctx, request{Op: opApplied, Sandbox: s.name})
	if err != nil {
		return Ready{}, sandbox.Applied{}, err
	}
	if r.Applied == nil {
		return Ready{}, sandbox.Applied{}, &sandbox.Error{Kind: sandbox.KindStart, Op: "reading a sandbox back: no answer"}
	}
	session.guest.Store(r.Applied.Isolation == sandbox.IsolationGVisor)
	return ready, *r.Applied, compare(s.job.client.policy, spec, ready, *r.Applied)
}

func (s *clientSandbox) counters(ctx context.Context) (sandbox.Counters, error) {
	r, err := s.job.client.call(ctx, request{Op: opCounters, Sandbox: s.name})
	if err == nil && r.Counters == nil {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return sandbox.Counters{}, err
	}
	return *r.Counters, nil
}

// Run runs one command.
func (s *clientSandbox) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		return sandbox.Exit{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "running command: the sandbox has ended"}
	}
	return s.session.Run(ctx, cmd)
}

// finish marks the end of the sandbox's usable life, once.
func (s *clientSandbox) finish(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return &sandbox.Error{Kind: sandbox.KindRefused, Op: what + ": the sandbox has ended"}
	}
	s.ended = true
	return nil
}

// Freeze ends the sandbox and turns parts of it into layers.
func (s *clientSandbox) Freeze(ctx context.Context, parts []sandbox.Part) ([]sandbox.LayerID, error) {
	if err := checkParts(parts); err != nil {
		return nil, err
	}
	if err := s.finish("freezing"); err != nil {
		return nil, err
	}
	_ = s.session.Close() // the runner sees to its end
	r, err := s.job.client.call(ctx, request{Op: opFreeze, Sandbox: s.name, Parts: parts})
	return r.Layers, err
}

// Collect ends the sandbox and copies the change stream to w.
func (s *clientSandbox) Collect(ctx context.Context, w io.Writer) error {
	if err := s.finish("collecting"); err != nil {
		return err
	}
	_ = s.session.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer reader.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, reader)
		_ = reader.Close() // a writer that failed must not block the runner
		copied <- err
	}()
	_, err = s.job.client.call(ctx, request{Op: opCollect, Sandbox: s.name, files: []*os.File{writer}})
	_ = writer.Close() // the runner has closed its own: now the copy ends
	if ctx.Err() != nil {
		_ = reader.Close()
	}
	return errors.Join(err, <-copied)
}

// Close ends the sandbox.
func (s *clientSandbox) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.ended, s.closed = true, true
	s.mu.Unlock()
	if closed {
		return nil
	}
	if s.session != nil {
		_ = s.session.Close() // the runner sees to its end
	}
	s.job.remove(s)
	_, err := s.job.client.call(ctx, request{Op: opCloseSandbox, Sandbox: s.name})
	return err
}
