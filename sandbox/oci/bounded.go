package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// namespace is a user namespace by the name of a file that it is mounted on: the
// runtime reaches it there, without a process that lives in it.
type namespace string

// Close takes the name away; who has joined the namespace stays in it.
func (n namespace) Close() error {
	if n == "" {
		return nil
	}
	// Whoever has opened it doesn't keep us from taking the name away.
	if err := unix.Unmount(string(n), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("taking a user namespace's name away: %w", err)
	}
	if err := os.Remove(string(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("taking a user namespace's name away: %w", err)
	}
	return nil
}

// boundedNamespaces makes the user namespaces of a job's sandboxes, and holds some
// ready: a process has to start for each, and a sandbox's own start waits for it. All
// methods may run at once.
type boundedNamespaces struct {
	first uint32
	name  func() string // of a file for one
	gone  chan struct{} // closed by Close

	making sync.Mutex // held while one is made, guards what follows
	ready  []namespace
	taken  time.Time
	closed bool

	after sync.WaitGroup // what runs behind
}

// newNamespaces wants an absolute path that was never given before for each call of
// name.
func newNamespaces(first uint32, name func() string) *boundedNamespaces {
	return &boundedNamespaces{first: first, name: name, gone: make(chan struct{})}
}

// take returns a namespace, which the caller closes. base holds our init.
func (n *boundedNamespaces) take(base string) (namespace, error) {
	n.making.Lock()
	defer n.making.Unlock()
	n.taken = time.Now()
	if last := len(n.ready) - 1; last >= 0 {
		took := n.ready[last]
		n.ready = n.ready[:last]
		return took, nil
	}
	return n.make(base)
}

// file returns a descriptor of a namespace, which the caller closes.
func (n *boundedNamespaces) file(base string) (*os.File, error) {
	took, err := n.take(base)
	if err != nil {
		return nil, err
	}
	defer took.Close() // the descriptor keeps it
	f, err := os.Open(string(took))
	if err != nil {
		return nil, fmt.Errorf("opening user namespace: %w", err)
	}
	return f, nil
}

// prepare makes one more in the background when there is none, later.
func (n *boundedNamespaces) prepare(base string) {
	n.after.Go(func() {
		select {
		case <-time.After(linux.RestAfter):
		case <-n.gone:
		}
		n.fill(base, 1)
	})
}

// fill makes namespaces until there are want of them, unless they are being taken.
// Where that fails there are fewer, and take says why.
func (n *boundedNamespaces) fill(base string, want int) {
	for n.fillOne(base, want) {
	}
}

func (n *boundedNamespaces) fillOne(base string, want int) bool {
	n.making.Lock()
	defer n.making.Unlock()
	if n.closed || len(n.ready) >= want || time.Since(n.taken) < linux.RestAfter {
		return false
	}
	made, err := n.make(base)
	if err != nil {
		return false
	}
	n.ready = append(n.ready, made)
	return true
}

// make is called with making held.
func (n *boundedNamespaces) make(base string) (namespace, error) {
	at := n.name()
	cmd, err := boundedNamespace(n.first, base, at)
	if err != nil {
		return "", err
	}
	n.after.Go(func() { _ = cmd.Wait() }) // it has said all there was to say
	return namespace(at), nil
}

// Close gives up those that are ready, and makes no more. It waits for what runs. After
// a failure a further call goes on.
func (n *boundedNamespaces) Close() error {
	n.making.Lock()
	if !n.closed {
		close(n.gone)
	}
	n.closed = true
	var failed error
	for _, one := range n.ready {
		failed = errors.Join(failed, one.Close())
	}
	if failed == nil {
		n.ready = nil
	}
	n.making.Unlock()
	n.after.Wait()
	return failed
}

// boundedNamespace makes a user namespace that maps the range and bounds what the
// kernel counts by user. What is made in a namespace counts against its owner's
// limits as well (user_namespaces(7)), here those of the host's root, so that one
// sandbox could else use up the inotify objects of all of them and of the host's
// own services (attack case B06). base holds our init, which writes the limits:
// only a process inside can.
//
// The namespace is mounted on the file at, which is made. The process that has
// written the limits ends by itself; its Wait is the caller's.
func boundedNamespace(first uint32, base, at string) (*exec.Cmd, error) {
	args, err := boundArguments()
	if err != nil {
		return nil, err
	}
	// The copy of init may be a moment old: a process that was forked while it
	// was written has it open for writing until it executes its own program.
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		cmd, err := startBound(first, filepath.Join(base, sandbox.InitPath), args, at)
		if !errors.Is(err, unix.ETXTBSY) || time.Now().After(deadline) {
			return cmd, err
		}
	}
}

// startBound returns once the limits are written.
func startBound(first uint32, init string, args []string, at string) (*exec.Cmd, error) {
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
	err := errors.Join(pin(cmd.Process.Pid, stdout, at), stdin.Close()) // the end of its input is its own
	if err != nil {
		_ = cmd.Wait()
		return nil, fmt.Errorf("bounding user namespace: %w; it said %.300q", err, words.String())
	}
	return cmd, nil
}

// pin waits for the process's word and gives its namespace a name.
func pin(pid int, said io.Reader, at string) error {
	line, err := bufio.NewReader(io.LimitReader(said, 64)).ReadString('\n')
	if err != nil {
		return err
	}
	if line != initwire.Bounded+"\n" {
		return fmt.Errorf("%q: %w", line, initwire.ErrFrame)
	}
	if err := os.WriteFile(at, nil, 0o444); err != nil {
		return fmt.Errorf("naming user namespace: %w", err)
	}
	if err := unix.Mount("/proc/"+strconv.Itoa(pid)+"/ns/user", at, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("naming user namespace: %w", err), os.Remove(at))
	}
	return nil
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
