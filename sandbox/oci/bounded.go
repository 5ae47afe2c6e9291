package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// share is the part of the host's inotify objects that one sandbox may have.
const share = 8

// inotifyLimits are bounded for each sandbox; least is what tools need. In a user
// namespace of our own the name says what nobody has bounded yet, and host what
// holds for our user.
var inotifyLimits = []struct {
	name, host string
	least      int64
}{{"max_inotify_instances", "max_user_instances", 16}, {"max_inotify_watches", "max_user_watches", 8192}}

// namespace is a user namespace that a process of ours, init in its mode bound,
// keeps until Close.
type namespace struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// path is how the runtime reaches it; empty where there is none.
func (n *namespace) path() string {
	if n == nil {
		return ""
	}
	return "/proc/" + strconv.Itoa(n.cmd.Process.Pid) + "/ns/user"
}

// Close ends the process; who has joined the namespace stays in it.
func (n *namespace) Close() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.stdin.Close(), n.cmd.Wait())
}

// boundedNamespace makes a user namespace that maps the range and bounds what the
// kernel counts by user. What is made in a namespace counts against its owner's
// limits as well (user_namespaces(7)), here those of the host's root, so that one
// sandbox could else use up the inotify objects of all of them and of the host's
// own services (attack case B06). base holds our init, which writes the limits:
// only a process inside can.
func boundedNamespace(first uint32, base string) (*namespace, error) {
	args, err := boundArguments()
	if err != nil {
		return nil, err
	}
	// The copy of init may be a moment old: a process that was forked while it
	// was written has it open for writing until it executes its own program.
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := startBound(first, filepath.Join(base, sandbox.InitPath), args)
		if !errors.Is(err, unix.ETXTBSY) || time.Now().After(deadline) {
			return n, err
		}
	}
}

// startBound returns once the limits are written.
func startBound(first uint32, init string, args []string) (*namespace, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(first), Size: rangeSize}}
	cmd := &exec.Cmd{
		Path: init, Args: args, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{NoSetGroups: true}, // 0, as mapped
		},
	}
	var words strings.Builder
	cmd.Stderr = &words
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, fmt.Errorf("making pipes: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting user namespace: %w", err)
	}
	n := &namespace{cmd, stdin}
	line, err := bufio.NewReader(io.LimitReader(stdout, 64)).ReadString('\n')
	if err != nil || line != initwire.Bounded+"\n" {
		err = errors.Join(err, n.Close())
		return nil, fmt.Errorf("bounding user namespace: %w; it said %.300q", err, words.String())
	}
	return n, nil
}

// boundArguments gives a sandbox its share of what the host allows one user.
func boundArguments() ([]string, error) {
	args := []string{"init", initwire.BoundMode}
	for _, l := range inotifyLimits {
		ours, err := linux.ReadInt("/proc/sys/user/" + l.name)
		host, err2 := linux.ReadInt("/proc/sys/fs/inotify/" + l.host)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("reading the host's limit: %w", err)
		}
		host = min(host, ours)
		args = append(args, l.name+"="+strconv.FormatInt(max(host/share, min(host, l.least)), 10))
	}
	return args, nil
}
