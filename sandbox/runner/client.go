package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Config says how the runner is started. Paths are absolute.
type Config struct {
	Executable string   // default: this executable
	Args       []string // what comes before the runner's own arguments; default: Subcommand
	Instance   string   // label: 1 to 32 of a-z, 0-9 and -
	Policy     string   // name or file of the policy, read again by the runner
	// Read is that policy as the caller has read it; nil: Start reads it. The
	// runner must have read the same.
	Read      *policies.Policy
	Images    string // directory of the image store
	Disks     string // directory for disk images; made where missing
	Run       string // default: RunDir
	Runtime   string // file of the OCI runtime
	Socket    string // unix socket of a Docker Engine; empty: no engine is used
	Init, Git string // files of our programs; empty: embedded
	// Rootless starts the runner as an ordinary user: as root of a user namespace
	// with that user's subordinate ids, and of nothing else.
	Rootless bool
	Stderr   io.Writer
}

// Client is the supervisor's end of the runner and a sandbox.Backend. All
// methods may be called at once.
type Client struct {
	conn   *conn
	cmd    *exec.Cmd
	policy policies.Policy
	swept  sandbox.Swept // by the runner's start
	done   chan struct{} // closed when the runner can't be reached any more
	exited chan struct{} // closed when the process is gone

	mu      sync.Mutex // guards what follows
	next    uint64
	waiting map[uint64]chan reply
	jobs    map[*clientJob]bool // open ones
	probes  int
}

var _ sandbox.Backend = (*Client)(nil)

// Start starts the runner and greets it. ctx bounds the start only. The caller
// must still have its capabilities; it may give them up afterwards.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	policy, err := cfg.policy()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	cmd, err := cfg.command(theirs)
	if err != nil {
		closeFiles([]*os.File{ours, theirs})
		return nil, err
	}
	err = cfg.launch(ctx, cmd, policy)
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("starting runner: %w", err)
	}
	c := &Client{
		cmd: cmd, policy: policy, done: make(chan struct{}), exited: make(chan struct{}),
		waiting: map[uint64]chan reply{}, jobs: map[*clientJob]bool{},
	}
	go func() { // ends with the process
		_ = cmd.Wait()
		close(c.exited)
	}()
	if c.conn, err = newConn(ours); err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	go c.read()
	hello, err := c.call(ctx, request{Op: opHello, Policy: policyDigest(policy)})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.swept = hello.Swept
	return c, nil
}

func (cfg Config) policy() (policies.Policy, error) {
	if cfg.Read != nil {
		return *cfg.Read, nil
	}
	return policies.Load(cfg.Policy)
}

// Swept is what the runner removed at its start, before it answered.
func (c *Client) Swept() sandbox.Swept { return c.swept }

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the runner's socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "runner"), os.NewFile(uintptr(fds[1]), "supervisor"), nil
}

func (cfg Config) command(socket *os.File) (*exec.Cmd, error) {
	if cfg.Executable == "" {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding the runner's program: %w", err)
		}
		cfg.Executable = own
	}
	args := cfg.Args
	if len(args) == 0 {
		args = []string{Subcommand}
	}
	if cfg.Run == "" {
		cfg.Run = RunDir
	}
	cmd := exec.Command(cfg.Executable, append(append([]string{}, args...),
		"--instance", cfg.Instance, "--policy", cfg.Policy, "--images", cfg.Images, "--disks", cfg.Disks,
		"--run", cfg.Run, "--runtime", cfg.Runtime, "--socket", cfg.Socket, "--init", cfg.Init, "--git", cfg.Git)...)
	// Nothing of our environment: it may hold secrets. PATH is for the driver's
	// search for a runtime.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", cfg.Stderr, []*os.File{socket}
	return cmd, nil
}

// Pid is the process id of the runner.
func (c *Client) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the runner can't be reached any more. Nothing may be
// started in its place.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection, upon which the runner takes everything down, and
// waits for its end. A runner that does not end within hangs is killed. A second
// call waits as well.
func (c *Client) Close() error {
	_ = c.conn.unix.Close() // the reader ends, and with it every call
	<-c.done
	return awaitEnd(c.exited, func() error { return c.cmd.Process.Kill() })
}

// hangs is when a runner that should end is taken for one that never will: after
// its jobs' time, and as much again for what it holds beside them, which on a busy
// host takes long. A service manager waits longer.
const hangs = 2*teardownTime + 5*time.Second

func awaitEnd(exited <-chan struct{}, kill func() error) error {
	select {
	case <-exited:
		return nil
	case <-time.After(hangs):
	}
	err := kill()
	if err == nil {
		<-exited
	}
	return fmt.Errorf("the runner did not end: %w", errors.Join(err, os.ErrDeadlineExceeded))
}

// read hands every reply to its call. One that nobody waits for any more may
// hold descriptors and a sandbox. When the runner is gone, the pipes of all
// sandboxes are closed, which ends what runs in them: nobody else would.
func (c *Client) read() {
	defer c.endAll()
	defer close(c.done)
	for {
		var r reply
		files, err := c.conn.receive(&r)
		if err != nil {
			closeFiles(files)
			_ = c.conn.unix.Close()
			return
		}
		r.files = files
		if !c.deliver(r) {
			closeFiles(files)
			c.dropLate(r)
		}
	}
}

// deliver hands a reply to its call, under the lock, so that a call which gives
// up finds either the reply or nobody who will send one.
func (c *Client) deliver(r reply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.waiting[r.ID]
	delete(c.waiting, r.ID)
	if waiting == nil {
		return false
	}
	waiting <- r // has room for one
	return true
}

func (c *Client) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for j := range c.jobs {
		j.hangUp()
	}
}

// track remembers an open job; false means that the runner is gone already.
func (c *Client) track(j *clientJob) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
		c.jobs[j] = true
		return true
	}
}

func (c *Client) untrack(j *clientJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, j)
}

// dropLate closes a sandbox whose Create was cancelled before its answer came.
func (c *Client) dropLate(r reply) {
	if r.Sandbox == "" {
		return
	}
	go func() { // ends with the answer or the connection
		_, _ = c.call(context.Background(), request{Op: opCloseSandbox, Sandbox: r.Sandbox})
	}()
}

// call sends a request and waits for its reply.
func (c *Client) call(ctx context.Context, r request) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, err
	}
	answer := make(chan reply, 1)
	c.mu.Lock()
	c.next++
	r.ID = c.next
	c.waiting[r.ID] = answer
	c.mu.Unlock()
	if err := c.conn.send(r, r.files); err != nil {
		c.forget(r.ID, answer)
		return reply{}, c.lost(r.Op, err)
	}
	select {
	case got := <-answer:
		return opened(got)
	case <-c.done:
		c.forget(r.ID, answer)
		return reply{}, c.lost(r.Op, io.ErrUnexpectedEOF)
	case <-ctx.Done():
		c.forget(r.ID, answer)
		return reply{}, ctx.Err()
	}
}

func opened(r reply) (reply, error) {
	if r.Error != nil {
		closeFiles(r.files)
		return reply{}, r.Error.error()
	}
	return r, nil
}

// forget takes a call back; a reply that arrived at the same moment is dropped.
func (c *Client) forget(id uint64, answer chan reply) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case late := <-answer:
		closeFiles(late.files)
		c.dropLate(late)
	default:
	}
}

func (c *Client) lost(what op, err error) error {
	return &sandbox.Error{Kind: sandbox.KindGone, Op: "asking the runner to " + string(what), Err: err}
}

// Sweep asks the runner to remove what crashes of this instance left.
func (c *Client) Sweep(ctx context.Context) (sandbox.Swept, error) {
	r, err := c.call(ctx, request{Op: opSweep})
	if r.Swept == nil {
		r.Swept = sandbox.Swept{}
	}
	return r.Swept, err
}

// Reclaim removes images that no instance of the host uses, and returns how many
// bytes that freed. It waits a while for somebody who builds one.
func (c *Client) Reclaim(ctx context.Context) (freed int64, err error) {
	r, err := c.call(ctx, request{Op: opReclaim})
	return r.Freed, err
}

// OpenJob opens a job in the runner.
func (c *Client) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.Job, error) {
	j, err := c.openJob(ctx, spec)
	if err != nil {
		return nil, err // not a nil *clientJob
	}
	return j, nil
}

func (c *Client) openJob(ctx context.Context, spec sandbox.JobSpec) (*clientJob, error) {
	r := request{Op: opOpenJob, Job: spec.ID, Limits: &spec.Limits}
	if _, err := c.call(ctx, r); err != nil {
		return nil, err
	}
	j := &clientJob{client: c, id: spec.ID}
	if !c.track(j) {
		return nil, c.lost(opOpenJob, io.ErrUnexpectedEOF)
	}
	return j, nil
}
