package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// listen opens all listeners, and systemd's socket, while that is allowed:
// afterwards the seccomp filter knows no unix sockets.
func (h *host) listen(log *slog.Logger) (err error) {
	if err = h.listenPublic(log); err != nil {
		return err
	}
	if h.admin, err = listenTCP(h.settings.Admin.Listen, "admin.listen (VEYRA_ADMIN_ADDR)"); err != nil {
		return err
	}
	if h.control, err = listenControl(controlPath(h.instance)); err != nil {
		return err
	}
	if path := os.Getenv("NOTIFY_SOCKET"); path != "" {
		_ = os.Unsetenv("NOTIFY_SOCKET")
		h.systemd, _ = net.Dial("unixgram", path)
	}
	return nil
}

func listenTCP(address, setting string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the address %s is taken: another instance may hold it; choose another with %s", address, setting)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %s (setting %s): %w", address, setting, err)
	}
	return l, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// controlPath is where operators' commands find the daemon of an instance.
func controlPath(instance string) string {
	return filepath.Join(runner.RunDir, instance, "control.sock")
}

// listenControl replaces a socket that a crash left; the state's lock says that
// nobody listens there.
func listenControl(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making the control socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("making the control socket: %w", err)
	}
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("making the control socket: %w", err)
	}
	return l, nil
}

// checks are the reasons why no work is taken, besides those that the
// supervisor knows by itself.
func checks(s *Settings, h *host, m *model) []supervisor.Check {
	return []supervisor.Check{
		{Reason: "provider", Say: m.say},
		{Reason: "image", Say: h.sayImage},
		// A dead signer ends the runner too: the cause is told, not the effect.
		{Reason: "signer", Say: func() string { return gone(h.signer.Done(), "The signer process is gone: restart the daemon.") }},
		{Reason: "runner", Say: func() string { return gone(h.runner.Done(), "The runner process is gone: restart the daemon.") }},
		{Reason: "policy", Say: h.fitness.say},
		{Reason: "disk", Say: func() string { return sayDisk(".", int64(s.Keep.DiskFloor)) }},
	}
}

func gone(done <-chan struct{}, sentence string) string {
	select {
	case <-done:
		return sentence
	default:
		return ""
	}
}

func (h *host) sayImage() string {
	if len(h.images) == 0 {
		return "No toolchain image is there: run `veyra-sandboxd image build python`, then restart the daemon."
	}
	return ""
}

// leastRoom is what the two disks that a job books have at their smallest.
const leastRoom = 2 * policies.MinDiskBytes

// missing is how many bytes sayDisk misses.
func missing(dir string, floor int64) int64 {
	free, err := freeBytes(dir)
	if err != nil {
		return 0
	}
	return max(0, floor+leastRoom-free)
}

// sayDisk wants the floor free, and above it room for a job.
func sayDisk(dir string, floor int64) string {
	free, err := freeBytes(dir)
	switch {
	case err != nil || free >= floor+leastRoom:
		return ""
	case free < floor:
		return fmt.Sprintf("The disk is under the floor: %d MiB are free, keep.disk_floor wants %d MiB.", free>>20, floor>>20)
	}
	return fmt.Sprintf("The disk has no room for a job: %d MiB are free above the floor, %d MiB are needed.", (free-floor)>>20, leastRoom>>20)
}
