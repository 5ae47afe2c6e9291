// Package runner is the privileged process of the daemon and its client in the
// supervisor. The process takes Specs, checks each against the policy by itself,
// and has a sandbox.Driver carry them out; it never sees what a job writes: the
// pipes of a sandbox's init go to the supervisor as descriptors. It may not
// touch a network or hold a secret. Start reading at Main for the process, at
// Start for the client.
package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

const (
	// Subcommand is the hidden first argument of the program for this process.
	Subcommand = "__runner"
	// RunDir is what all instances of a host share.
	RunDir = "/run/veyra-sandboxd"
	// socketFD is where the parent put the runner's end of the socket.
	socketFD = 3
	// lockWait is how long a predecessor may take to end.
	lockWait = 10 * time.Second
)

// Parts is what the runner's packages can't reach by themselves.
type Parts struct {
	// Open makes the driver.
	Open func(sandbox.Place) (sandbox.Driver, error)
	// Embedded returns a program that is part of the executable ("veyra-init",
	// "veyra-git"), or fs.ErrNotExist. It may be nil.
	Embedded func(name string) ([]byte, error)
}

// settings are the arguments of the process. They come from the parent before
// anything strange was read, never over the socket.
type settings struct {
	instance, policy        string
	images, disks           string
	run, runtime, socket    string
	initProgram, gitProgram string
	entered                 bool
	// outside are the namespaces of the parent of an ordinary user's runner, who
	// can't be looked at from in here; empty: the runner is root's.
	outside string
	mapped  bool // such a runner has its ids
}

var instanceName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func parseSettings(args []string) (settings, error) {
	var s settings
	set := flag.NewFlagSet(Subcommand, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&s.instance, "instance", "", "label of everything on the host")
	set.StringVar(&s.policy, "policy", "strict", "name or file of the policy")
	set.StringVar(&s.images, "images", "", "directory of the image store")
	set.StringVar(&s.disks, "disks", "", "directory of disk images")
	set.StringVar(&s.run, "run", RunDir, "directory that all instances share")
	set.StringVar(&s.runtime, "runtime", "", "file of the OCI runtime")
	set.StringVar(&s.socket, "socket", "", "unix socket of a Docker Engine; empty: none is used")
	set.StringVar(&s.initProgram, "init", "", "file of veyra-init; empty: embedded")
	set.StringVar(&s.gitProgram, "git", "", "file of veyra-git; empty: embedded, if it is")
	set.StringVar(&s.outside, "outside", "", "namespaces of the parent; the runner is an ordinary user's")
	set.BoolVar(&s.mapped, mappedFlag[2:], false, "the ids are mapped")
	set.BoolVar(&s.entered, enteredFlag[2:], false, "second half of the start")
	if err := set.Parse(args); err != nil {
		return s, fmt.Errorf("reading runner's arguments: %w", err)
	}
	if !instanceName.MatchString(s.instance) {
		return s, fmt.Errorf("instance %q: %w", s.instance, os.ErrInvalid)
	}
	if !filepath.IsAbs(s.disks) || !filepath.IsAbs(s.run) {
		return s, fmt.Errorf("runner's directories must be absolute: %w", os.ErrInvalid)
	}
	return s, nil
}

// Main is the whole life of the process: args are the arguments behind
// Subcommand, the result is its exit status. Descriptor 3 is a SOCK_SEQPACKET
// socket; when its other end closes, everything is taken down.
func Main(args []string, parts Parts) int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("process", "runner")
	if err := run(args, parts, log); err != nil {
		log.Error("runner ends", "err", err)
		return 1
	}
	return 0
}

func run(args []string, parts Parts, log *slog.Logger) error {
	s, err := parseSettings(args)
	if err != nil {
		return err
	}
	if err := confine.CloseFrom(3); err != nil {
		return err
	}
	// A service manager's may be 0077, and sandboxes' own root must pass what we make.
	unix.Umask(0o022)
	if s.outside != "" && !s.mapped {
		return awaitIDs()
	}
	if !s.entered {
		return enter(s.outside != "")
	}
	// What the terminal sends to the whole group is the supervisor's to judge.
	// Caught and dropped, not ignored: children would inherit that. Without
	// SIGPIPE among them a log line to a dead supervisor would end the clean-up.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	c, err := newConn(os.NewFile(socketFD, "supervisor"))
	if err != nil {
		return err
	}
	policy, err := s.readPolicy()
	if err != nil {
		return decline(c, err)
	}
	return s.live(c, policy, parts, log)
}

// live holds the instance's lock and serves. Why it can't is told to the
// supervisor, who has somebody to tell.
func (s settings) live(c *conn, policy policies.Policy, parts Parts, log *slog.Logger) error {
	shared, lock, err := takeInstance(s.run, s.instance, lockWait)
	if err != nil {
		return decline(c, err)
	}
	defer s.leave(shared, lock)
	defer os.Remove(filepath.Join(s.disks, s.instance)) // empty by then
	driver, swept, err := s.open(shared, policy, parts, log)
	if err != nil {
		return decline(c, err)
	}
	server := &server{
		conn: c, driver: driver, policy: policy, log: log, swept: swept, images: s.images,
		jobs: map[sandbox.JobID]*openJob{}, boxes: map[string]openBox{},
	}
	return server.serve(context.Background())
}

// open makes the stage and the driver, and removes what an earlier runner left
// before anybody can ask for something new. What that was is the caller's to
// tell: stderr may be the one of an owner's own command.
func (s settings) open(shared *os.Root, policy policies.Policy, parts Parts, log *slog.Logger) (sandbox.Driver, sandbox.Swept, error) {
	place, err := s.place(shared, policy, parts, log)
	if err != nil {
		return nil, nil, err
	}
	if err := settle(s.stage(), s.outside); err != nil {
		return nil, nil, err
	}
	driver, err := parts.Open(place)
	if err != nil {
		return nil, nil, err
	}
	swept, err := driver.Sweep(context.Background())
	if err != nil {
		return nil, nil, errors.Join(err, driver.Close())
	}
	return driver, swept, nil
}

// decline answers the first request with the reason why there is no runner.
func decline(c *conn, cause error) error {
	var r request
	files, err := c.receive(&r)
	closeFiles(files)
	if err == nil {
		f := toFailure(r.Op, &sandbox.Error{Kind: sandbox.KindStart, Op: "starting the runner", Err: cause})
		err = c.send(reply{ID: r.ID, Error: f}, nil)
	}
	return errors.Join(cause, err)
}

// place opens what the driver gets before the stage hides the run directory.
func (s settings) place(shared *os.Root, policy policies.Policy, parts Parts, log *slog.Logger) (sandbox.Place, error) {
	p := sandbox.Place{
		Instance: s.instance, Stage: s.stage(), Images: s.images, Runtime: s.runtime, Socket: s.socket,
		Disks: filepath.Join(s.disks, s.instance), Run: shared, Policy: policy, Log: log,
		Rootless: s.outside != "",
	}
	if err := os.MkdirAll(p.Disks, 0o700); err != nil {
		return p, fmt.Errorf("making the disk directory: %w", err)
	}
	var err error
	if p.Init, err = program("veyra-init", s.initProgram, parts.Embedded); err != nil {
		return p, err
	}
	p.Git, err = program("veyra-git", s.gitProgram, parts.Embedded)
	if errors.Is(err, fs.ErrNotExist) && s.gitProgram == "" {
		return p, nil
	}
	return p, err
}

// program opens the file at path, or a copy of the embedded one in memory.
func program(name, path string, embedded func(string) ([]byte, error)) (*os.File, error) {
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", name, err)
		}
		return f, nil
	}
	if embedded == nil {
		return nil, fmt.Errorf("looking for %s: %w", name, fs.ErrNotExist)
	}
	text, err := embedded(name)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", name, err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making room for %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(text); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("copying %s: %w", name, err)
	}
	return f, nil
}

// takeInstance opens the shared directory and waits for the instance's lock.
// The last instance removes the directory, so it may vanish between two steps.
func takeInstance(dir, instance string, wait time.Duration) (*os.Root, *hostlock.Lock, error) {
	deadline := time.Now().Add(wait)
	for {
		root, lock, err := tryInstance(dir, instance)
		if err == nil {
			return root, lock, nil
		}
		again := errors.Is(err, hostlock.ErrHeld) || errors.Is(err, fs.ErrNotExist)
		if !again || time.Now().After(deadline) {
			return nil, nil, fmt.Errorf("taking the place of instance %s: %w", instance, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func tryInstance(dir, instance string) (*os.Root, *hostlock.Lock, error) {
	if err := os.MkdirAll(filepath.Join(dir, instance), 0o755); err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	lock, err := hostlock.Take(root, lockName(instance))
	if err != nil {
		_ = root.Close()
		return nil, nil, err
	}
	return root, lock, nil
}

func lockName(instance string) string { return instance + "/runner.lock" }

// controlSocket is the daemon's, in the instance's directory. It ends without the
// right to remove it.
const controlSocket = "control.sock"

// leave removes lock and directories, as far as nobody else uses them.
// The socket goes while the lock is held: the next daemon makes its own after
// its runner has the lock. A daemon that outlives its runner keeps its socket,
// since status is how its owner learns what happened.
func (s settings) leave(shared *os.Root, lock *hostlock.Lock) {
	instance := s.instance
	if !answered(shared, instance) {
		_ = shared.Remove(instance + "/" + controlSocket)
	}
	lock.Release()
	_ = shared.Remove(instance)
	for _, name := range []string{"ids", "booked"} {
		dropStale(shared, name)
		_ = shared.Remove(name)
	}
	_ = shared.Close()
	// Our tmpfs covers the name; what lies below it goes only when empty.
	if unix.Unmount(s.stage(), unix.MNT_DETACH) == nil {
		_ = os.Remove(s.run)
	}
}

// answered tells whether a daemon still listens at the instance's socket. The
// name goes by a descriptor, because our tmpfs covers the path.
func answered(shared *os.Root, instance string) bool {
	place, err := shared.Open(instance)
	if err != nil {
		return false
	}
	defer place.Close()
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", place.Fd(), controlSocket))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// dropStale removes lock files whose holders died.
func dropStale(shared *os.Root, name string) {
	dir, err := shared.Open(name)
	if err != nil {
		return
	}
	defer dir.Close()
	files, _ := dir.Readdirnames(-1)
	for _, file := range files {
		if lock, err := hostlock.Take(shared, name+"/"+file); err == nil {
			lock.Release()
		}
	}
}

// policyDigest names the policy that both halves must have read: what holds,
// whatever text says so.
func policyDigest(p policies.Policy) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("encoding policy %q: %v", p.Name, err)) // plain values only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
