package signer

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
)

// Config says where the identity lies and what the signer becomes.
type Config struct {
	// StateDir is the state directory; the signer uses identity/key and
	// signing.log in it. It must exist, and its lock must be held.
	StateDir string
	// UID and GID are what the signer switches to before it signs anything;
	// confine.Stay (-1) leaves the caller's. The key stays the caller's, and
	// the log becomes readable, not writable, for GID.
	UID, GID int
	// Stderr receives the signer's last words; nil is /dev/null.
	Stderr *os.File
}

// environment keeps the Go runtime from opening cgroup files for the whole life
// of the process (settled by looking at its descriptors), and single-threaded
// where it can be.
var environment = []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOMAXPROCS=1"}

// Start runs the signer as a process of its own from exe, which must call Main
// for Subcommand, waits until it is locked down, and looks at it from outside.
// It makes the identity if there has never been one. ErrState: nothing was
// changed, the daemon must not start. Call it before this process gives up its
// own powers; ctx bounds the start only.
func Start(ctx context.Context, exe string, cfg Config) (*Client, error) {
	log, err := openLog(cfg)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	command := exec.Command(exe, Subcommand, filepath.Join(cfg.StateDir, identityName),
		strconv.Itoa(cfg.UID), strconv.Itoa(cfg.GID))
	command.Env = environment
	command.ExtraFiles = []*os.File{theirs, log} // 3 and 4
	if cfg.Stderr != nil {
		command.Stderr = cfg.Stderr
	}
	// A ^C at a terminal is for the supervisor, which drains and needs us.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the signer: %w", err), ours.Close())
	}
	// Our copy of its end must go now, or its death would not show as EOF.
	_ = theirs.Close()
	client := &Client{process: command.Process, conn: ours, done: make(chan struct{}), turn: make(chan struct{}, 1)}
	go client.await(command)
	if err := client.greet(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	client.turn <- struct{}{}
	return client, nil
}

func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the signer's socket: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "signer")
	file := os.NewFile(uintptr(fds[0]), "signer")
	defer file.Close() // FileConn duplicates it
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making the signer's socket: %w", err), theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}

// openLog opens the log for appending and lets its readers read. It makes the
// log only while there is no identity: a lost log is not replaced.
func openLog(cfg Config) (*os.File, error) {
	path := filepath.Join(cfg.StateDir, LogName)
	absent, err := neverMade(filepath.Join(cfg.StateDir, identityName, keyDir))
	if err != nil {
		return nil, err
	}
	flags := os.O_WRONLY | os.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if absent {
		flags |= os.O_CREATE
	}
	log, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the signing log: %w: %w", ErrState, err)
	}
	if err := checkLog(log, cfg); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

func checkLog(log *os.File, cfg Config) error {
	info, err := log.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("signing log %q is not a regular file: %w", log.Name(), ErrState)
	}
	raw, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(raw.Uid) != os.Geteuid() || info.Mode().Perm()&0o027 != 0 || raw.Nlink != 1 {
		return fmt.Errorf("signing log %q: others own it, can write it, or it has another name: %w", log.Name(), ErrState)
	}
	if cfg.GID != confine.Stay {
		if err := errors.Join(log.Chown(-1, cfg.GID), log.Chmod(0o640)); err != nil {
			return fmt.Errorf("opening the signing log to its readers: %w", err)
		}
	}
	return syncDir(cfg.StateDir) // the file may be new
}

// greet waits for the first answer and then reads the process's state as the
// kernel shows it: its own word is not enough.
func (c *Client) greet(ctx context.Context) error {
	defer c.bound(ctx)()
	first, err := readAnswer(c.conn)
	if err != nil {
		return fmt.Errorf("waiting for the signer: %w", c.lost(ctx, err))
	}
	if err := first.failure(); err != nil {
		return fmt.Errorf("starting the signer: %w", err)
	}
	if first.Hello == nil || len(first.Hello.PublicKey) != ed25519.PublicKeySize {
		return fmt.Errorf("starting the signer: no greeting: %w", ErrGone)
	}
	c.runtimeID, c.key, c.weakenings = first.Hello.RuntimeID, first.Hello.PublicKey, first.Hello.Weakenings
	return checkLocked(c.process.Pid)
}

func checkLocked(pid int) error {
	threads, err := confine.Threads(pid)
	if err != nil {
		return fmt.Errorf("looking at the signer: %w", err)
	}
	for _, t := range threads {
		if t.Permitted|t.Effective|t.Inheritable|t.Ambient != 0 || !t.NoNewPrivs || t.Seccomp != 2 {
			return fmt.Errorf("signer's thread %d: %w", t.ID, confine.ErrNotApplied)
		}
	}
	return nil
}
