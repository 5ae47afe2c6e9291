package images_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// probeCommand makes the test binary confine itself and report what it can
// still do.
const probeCommand = "__probe"

// TestMain stands in for the daemon's hidden subcommand. Each confined child of
// these tests is looked at before it starts its work.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == images.UnpackCommand:
		if len(os.Args) > 2 && os.Args[2] == images.ConfinedArg {
			if err := checkChild(); err != nil {
				fmt.Fprintln(os.Stderr, "child is not confined:", err)
				os.Exit(7)
			}
		}
		os.Exit(images.UnpackMain(os.Args[2:]))
	case len(os.Args) == 4 && os.Args[1] == probeCommand:
		os.Exit(probe(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 6 && os.Args[1] == importCommand {
		os.Exit(importUntil(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	}
	os.Exit(m.Run())
}

// importCommand imports a layout and kills itself at a step.
const (
	importCommand = "__import"
	importSteps   = 2 // unpacking, placing
)

func importUntil(store, layout, digest, step string) int {
	last, err := strconv.Atoi(step)
	if err != nil {
		return 2
	}
	opened, err := images.Open(store)
	if err != nil {
		return 2
	}
	_, err = opened.ImportReporting(context.Background(), layout, "test", images.Digest(digest), func(string) {
		if last == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		last--
	})
	fmt.Println("not killed:", err)
	return 1
}

// checkChild reads what the kernel says of this process.
func checkChild() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("pid %d in a namespace of its own", os.Getpid())
	}
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 || interfaces[0].Flags&net.FlagUp != 0 {
		return fmt.Errorf("interfaces %v, %w", interfaces, errors.Join(err))
	}
	status, err := readStatus()
	if err != nil {
		return err
	}
	if status["NoNewPrivs"] != "1" {
		return fmt.Errorf("NoNewPrivs %s", status["NoNewPrivs"])
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		held, err := strconv.ParseUint(status[set], 16, 64)
		if err != nil || held&^images.KeptCapabilities() != 0 {
			return fmt.Errorf("%s %s", set, status[set])
		}
	}
	return nil
}

func readStatus() (map[string]string, error) {
	file, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		found[name] = strings.TrimSpace(value)
	}
	return found, nil
}

// probe confines itself to the two directories and tries what must fail and
// what must work, a line for each surprise.
func probe(layout, target string) int {
	if err := images.ConfineTo(layout, target); err != nil {
		fmt.Println("confining:", err)
		return 1
	}
	outside := filepath.Dir(target)
	mustFail := map[string]func() error{
		"read outside":   func() error { _, err := os.ReadFile("/etc/passwd"); return err },
		"list outside":   func() error { _, err := os.ReadDir("/"); return err },
		"write outside":  func() error { return os.WriteFile(filepath.Join(outside, "x"), nil, 0o600) },
		"write layout":   func() error { return os.WriteFile(filepath.Join(layout, "x"), nil, 0o600) },
		"remove outside": func() error { return os.Remove(filepath.Join(outside, "canary")) },
		"rename outside": func() error { return os.Rename(filepath.Join(target, "f"), filepath.Join(outside, "f")) },
		"link inside":    func() error { return os.Link(filepath.Join(outside, "canary"), filepath.Join(target, "l")) },
		"pipe":           func() error { return unix.Mkfifo(filepath.Join(target, "fifo"), 0o600) },
		"device":         func() error { return unix.Mknod(filepath.Join(target, "null"), unix.S_IFCHR, int(unix.Mkdev(1, 3))) },
		"tcp":            func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err },
		"unix socket":    func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"program":        func() error { return exec.Command("/proc/self/exe").Run() },
		"mount":          func() error { return unix.Mount("none", target, "tmpfs", 0, "") },
		"namespace":      func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"io_uring": func() error {
			_, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
			return errnoError(errno)
		},
	}
	mustWork := map[string]func() error{
		"write":          func() error { return os.WriteFile(filepath.Join(target, "g"), []byte("g"), 0o600) },
		"make directory": func() error { return os.Mkdir(filepath.Join(target, "d"), 0o700) },
		"symbolic link":  func() error { return os.Symlink("/etc/passwd", filepath.Join(target, "s")) },
		"read layout":    func() error { _, err := os.ReadFile(filepath.Join(layout, "blob")); return err },
		"truncate":       func() error { return os.Truncate(filepath.Join(target, "f"), 0) },
		"remove":         func() error { return os.Remove(filepath.Join(target, "f2")) },
	}
	status := 0
	for name, try := range mustFail {
		if try() == nil {
			fmt.Println("possible:", name)
			status = 1
		}
	}
	for name, try := range mustWork {
		if err := try(); err != nil {
			fmt.Println("impossible:", name, err)
			status = 1
		}
	}
	return status
}

func errnoError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func TestA17ConfinementHolds(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"canary", "layout/blob", "target/f", "target/f2"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("/proc/self/exe", probeCommand, filepath.Join(dir, "layout"), filepath.Join(dir, "target")).CombinedOutput()
	if err != nil {
		t.Errorf("probe: %v\n%s", err, out)
	}
}
