package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// maxPending bounds the requests that are worked on at once.
const maxPending = 64

// server answers one supervisor. It checks every request against the policy by
// itself and keeps the names of jobs and sandboxes; all else is the driver's.
type server struct {
	conn   *conn
	driver sandbox.Driver
	policy policies.Policy
	log    *slog.Logger
	// swept is what the start removed; hello tells.
	swept sandbox.Swept
	// images is the directory of the image store; "": none.
	images string

	requests sync.WaitGroup

	mu      sync.Mutex // guards what follows
	greeted bool
	jobs    map[sandbox.JobID]*openJob
	boxes   map[string]openBox
	next    int
}

type openJob struct {
	job    sandbox.DriverJob
	limits policies.Limits
}

type openBox struct {
	job sandbox.JobID
	box sandbox.DriverSandbox
}

// serve answers until the other end closes or breaks the rules, then takes
// everything down. A sandbox never outlives its supervisor.
func (s *server) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	err := s.loop(ctx)
	cancel()
	s.requests.Wait()
	return errors.Join(err, s.teardown())
}

func (s *server) loop(ctx context.Context) error {
	slots := make(chan struct{}, maxPending)
	for {
		var r request
		files, err := s.conn.receive(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errUnknown) {
			closeFiles(files)
			r = request{ID: r.ID, cause: err}
		} else if err != nil {
			closeFiles(files)
			return fmt.Errorf("reading request: %w", err)
		} else {
			r.files = files
		}
		slots <- struct{}{}
		s.requests.Go(func() {
			defer func() { <-slots }()
			s.answer(ctx, r)
		})
	}
}

func (s *server) answer(ctx context.Context, r request) {
	defer closeFiles(r.files)
	out, err := s.do(ctx, r)
	if err != nil {
		out = reply{Error: toFailure(r.Op, err)}
	}
	out.ID = r.ID
	if err := s.conn.send(out, out.files); err != nil && ctx.Err() == nil {
		s.log.Warn("answering the supervisor", "op", string(r.Op), "err", err)
	}
	closeFiles(out.files)
}

// do is the whole of what the runner can be asked.
func (s *server) do(ctx context.Context, r request) (reply, error) {
	if r.cause != nil {
		return reply{}, refuse("request: %w", r.cause)
	}
	if err := s.admit(r); err != nil {
		return reply{}, err
	}
	switch r.Op {
	case opHello:
		return reply{Swept: s.swept}, nil
	case opFacts:
		report, err := s.driver.Facts(ctx)
		return reply{Report: &report}, err
	case opSweep:
		swept, err := s.driver.Sweep(ctx)
		return reply{Swept: swept}, err
	case opReclaim:
		freed, err := s.reclaim(ctx)
		return reply{Freed: freed}, err
	case opOpenJob:
		return reply{}, s.openJob(ctx, r)
	case opCloseJob:
		return reply{}, s.closeJob(ctx, r.Job)
	case opCreate:
		return s.create(ctx, r)
	}
	return s.inSandbox(ctx, r)
}

func (s *server) inSandbox(ctx context.Context, r request) (reply, error) {
	box, err := s.box(r.Sandbox)
	if err != nil && r.Op == opCloseSandbox {
		return reply{}, nil // closed already, maybe with its job
	}
	if err != nil {
		return reply{}, err
	}
	switch r.Op {
	case opApplied:
		a, err := box.Applied(ctx)
		return reply{Applied: &a}, err
	case opCounters:
		c, err := box.Counters(ctx)
		return reply{Counters: &c}, err
	case opFreeze:
		if err := checkParts(r.Parts); err != nil {
			return reply{}, err
		}
		layers, err := box.Freeze(ctx, r.Parts)
		return reply{Layers: layers}, err
	case opCollect:
		return reply{}, collectTo(ctx, box, r.files)
	case opCloseSandbox:
		s.mu.Lock()
		delete(s.boxes, r.Sandbox)
		s.mu.Unlock()
		return reply{}, box.Close(ctx)
	}
	return reply{}, refuse("operation %.40q is not known", r.Op)
}

// collectTo streams into the pipe that came with the request. Closing it is
// the caller's, after the stream's own end marker.
func collectTo(ctx context.Context, box sandbox.DriverSandbox, files []*os.File) error {
	if len(files) != 1 {
		return refuse("collect needs one pipe, got %d", len(files))
	}
	// A supervisor that stops reading would hold us here: the end of its
	// connection closes the pipe.
	defer context.AfterFunc(ctx, func() { _ = files[0].Close() })()
	return box.Collect(ctx, files[0])
}

// admit wants the policy's digest first: two halves with different policies
// must not work together.
func (s *server) admit(r request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Op == opHello {
		if r.Policy != policyDigest(s.policy) {
			return refuse("the runner has another policy than the supervisor")
		}
		s.greeted = true
	}
	if !s.greeted {
		return refuse("%.40q before hello", r.Op)
	}
	if len(r.files) > 0 && r.Op != opCollect {
		return refuse("%.40q takes no descriptors", r.Op)
	}
	return nil
}

func (s *server) openJob(ctx context.Context, r request) error {
	if err := checkJob(r.Job, r.Limits, s.policy); err != nil {
		return err
	}
	job, err := s.driver.OpenJob(ctx, sandbox.JobSpec{ID: r.Job, Limits: *r.Limits})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[r.Job] = &openJob{job: job, limits: *r.Limits}
	return nil
}

func (s *server) create(ctx context.Context, r request) (reply, error) {
	s.mu.Lock()
	job := s.jobs[r.Job]
	s.mu.Unlock()
	if job == nil {
		return reply{}, refuse("job %.80q is not open", r.Job)
	}
	if err := checkSpec(r.Spec, job.limits); err != nil {
		return reply{}, err
	}
	box, err := job.job.Create(ctx, *r.Spec)
	if err != nil {
		return reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[r.Job] != job {
		// Its sandboxes end with it. One must not be named any more, and its
		// pipes are waited for by whoever closes it.
		return reply{}, refuse("job %.80q was closed meanwhile", r.Job)
	}
	s.next++
	name := fmt.Sprintf("sandbox-%d", s.next)
	s.boxes[name] = openBox{r.Job, box}
	pipes := box.Pipes()
	return reply{Sandbox: name, files: []*os.File{pipes.Stdin, pipes.Stdout}}, nil
}

func (s *server) box(name string) (sandbox.DriverSandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, found := s.boxes[name]; found {
		return b.box, nil
	}
	return nil, refuse("sandbox %.80q is not open", name)
}

// closeJob forgets the names first, so that nothing new can refer to them.
func (s *server) closeJob(ctx context.Context, id sandbox.JobID) error {
	s.mu.Lock()
	job := s.jobs[id]
	delete(s.jobs, id)
	for name, b := range s.boxes {
		if b.job == id {
			delete(s.boxes, name)
		}
	}
	s.mu.Unlock()
	if job == nil {
		return nil // closed already
	}
	return job.job.Close(ctx)
}

// teardownTime is what the jobs have for their ends once the supervisor is gone. What
// the driver holds beside them is given back afterwards.
const teardownTime = 20 * time.Second

// teardown ends what is left, each job on its own, since one that hangs must
// not keep the others alive.
func (s *server) teardown() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTime)
	defer cancel()
	s.mu.Lock()
	jobs := s.jobs
	s.jobs, s.boxes = map[sandbox.JobID]*openJob{}, map[string]openBox{}
	s.mu.Unlock()
	errs := make(chan error, len(jobs))
	for _, j := range jobs {
		go func() { errs <- j.job.Close(ctx) }()
	}
	var failed error
	for range jobs {
		failed = errors.Join(failed, <-errs)
	}
	return errors.Join(failed, s.driver.Close())
}

// reclaimTime bounds the wait for somebody who builds an image: the next
// request tries again.
const reclaimTime = 30 * time.Second

// reclaim removes the images of the host that nobody uses: every daemon holds
// its own, and of each name the newest stays for whoever starts next.
func (s *server) reclaim(ctx context.Context) (freed int64, err error) {
	if _, err := os.Stat(s.images); err != nil {
		return 0, nil // the runner must not make a store
	}
	store, err := images.Open(s.images)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	return store.GC(ctx, nil)
}
