package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/ownfile"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// ErrRuntime is in the chain when no usable OCI runtime was found.
var ErrRuntime = errors.New("no usable OCI runtime")

// ErrNotInstalled is in the chain besides when there is none of that name.
var ErrNotInstalled = fmt.Errorf("not installed: %w", ErrRuntime)

// FindRuntime returns the path of a runtime that Runtimes names: in the
// directory bin beside the executable, beside it, or where make install puts it,
// then along path (a list as in PATH). A file that anybody but root could replace
// is refused rather than skipped, because a weaker one further on would hide the
// mistake.
func FindRuntime(name, executable, path string) (string, error) {
	beside := filepath.Dir(executable)
	dirs := []string{filepath.Join(beside, "bin"), beside, filepath.Join(beside, "..", "libexec", "veyra-sandboxd")}
	for _, dir := range append(dirs, filepath.SplitList(path)...) {
		candidate := filepath.Join(dir, name)
		if !filepath.IsAbs(candidate) || !linux.IsFile(candidate) {
			continue
		}
		return candidate, checkRuntime(candidate)
	}
	return "", fmt.Errorf("looking for %s: %w; install it or run make setup", name, ErrNotInstalled)
}

// checkRuntime wants a file that only root, and whoever runs us, may change.
func checkRuntime(path string) error {
	if _, err := ownfile.Check(path); err != nil {
		return fmt.Errorf("%w: %w", ErrRuntime, err)
	}
	return nil
}

// ociRuntime runs one runtime. What differs between them is its flavor's.
type ociRuntime struct {
	flavor
	path  string
	state string // its --root, on the runner's tmpfs
}

// startTime bounds a start; a runtime that hangs is killed (attack case J08).
const startTime = 20 * time.Second

// version asks the program which one it is.
func (r ociRuntime) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var said linux.Tail
	cmd := r.command(ctx, "--version")
	cmd.Stdout = &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("asking the runtime for its version: %w", err)
	}
	return r.parseVersion(said.Text())
}

// command is a run of the program that ends with ctx, together with all that it
// has started, and whether or not somebody still holds its output.
func (r ociRuntime) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.path, args...)
	cmd.Env, cmd.WaitDelay = []string{}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}

// stdio are the ends of the pipes that PID 1 gets.
type stdio struct{ in, out, err *os.File }

// run starts the container of a bundle and returns its PID 1, which is a child
// of ours because the runner is a subreaper.
func (r ociRuntime) run(ctx context.Context, bundle, id string, pipes stdio) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	pidFile, logFile := filepath.Join(bundle, "pid"), filepath.Join(bundle, "log")
	args := append([]string{"--root", r.state, "--log", logFile, "--log-format", "json"}, r.flags...)
	args = append(args, "run", "--detach", "--pid-file", pidFile, "--bundle", bundle, id)
	cmd := r.command(ctx, args...)
	cmd.Dir = bundle
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes.in, pipes.out, pipes.err
	// It dies with us, or it would go on to make cgroups that nobody sweeps.
	// The signal comes when the thread that forked ends, so that one stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	if err := cmd.Run(); err != nil {
		endGroup(cmd)
		return 0, fmt.Errorf("starting container: %w: %s", err, lastMessage(logFile))
	}
	pid, err := linux.ReadInt(pidFile)
	if err != nil {
		return 0, fmt.Errorf("reading pid file: %w", err)
	}
	return int(pid), nil
}

// endGroup ends and reaps what a runtime that failed has left of its process
// group: they are our children now, and some were in no cgroup yet.
func endGroup(cmd *exec.Cmd) {
	if cmd.Process == nil {
		return // it did not even start
	}
	group := -cmd.Process.Pid
	_ = unix.Kill(group, unix.SIGKILL) // ESRCH: nobody
	for range 1000 {
		pid, err := unix.Wait4(group, nil, unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // ECHILD: all are reaped
		}
		if pid == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// forget removes the runtime's record of a container whose processes are gone:
// what its own delete would do, at a twentieth of the time.
func (r ociRuntime) forget(id string) error {
	if err := os.RemoveAll(filepath.Join(r.state, id)); err != nil {
		return fmt.Errorf("removing container record: %w", err)
	}
	return nil
}

// delete has the runtime remove what it may have made for a container by itself: a
// cgroup where one was delegated to the user. There may be nothing, and what it says
// then doesn't count.
func (r ociRuntime) delete(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	_ = r.command(ctx, "--root", r.state, "delete", "--force", id).Run()
}

// maxLog is how much of a runtime's log is looked at: one that fails says little.
const maxLog = 256 << 10

// lastMessage returns the last error of the runtime's log, quoted.
func lastMessage(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "no log"
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxLog))
	if err != nil {
		return "no log"
	}
	last := "no message"
	for line := range bytes.Lines(raw) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg != "" {
			last = entry.Msg
		}
	}
	return strconv.Quote(last[:min(len(last), 600)])
}
