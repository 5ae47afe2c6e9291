package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"github.com/opencontainers/umoci/oci/cas/dir"
	"github.com/opencontainers/umoci/oci/layer"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
)

// UnpackCommand is the hidden subcommand whose arguments go to UnpackMain.
const UnpackCommand = "__unpack"

// request is what the child gets on stdin, answer what it gives on stdout.
type request struct {
	Layout string `json:"layout"`
	Target string `json:"target"` // an empty directory
	Digest Digest `json:"digest"`
	Limits Limits `json:"limits"`
}

type answer struct {
	Refused *RefusedError `json:"refused,omitempty"`
	Failed  string        `json:"failed,omitempty"`
}

const (
	confinedArg = "confined"
	maxRequest  = 64 << 10 // bytes; also of the answer
)

// UnpackMain is the process that parses an image's layers. A program that calls
// Store.Build must pass it the arguments behind UnpackCommand and exit with its
// result. It runs twice: first with none, to drop what belongs to a thread
// (capabilities) and start anew; then confined.
func UnpackMain(args []string) int {
	if len(args) == 1 && args[0] == confinedArg {
		return answerRequest(os.Stdin, os.Stdout)
	}
	err := startConfined()
	reply(os.Stdout, fmt.Errorf("starting the confined unpack: %w", err))
	return 1
}

// startConfined returns only an error. The bounding set and no_new_privs belong
// to a thread, and exec makes this one the only one.
func startConfined() error {
	runtime.LockOSThread()
	if err := confine.CloseFrom(3); err != nil {
		return fmt.Errorf("closing descriptors: %w", err)
	}
	for capability := uintptr(0); capability <= 63; capability++ {
		if keepsCapability(capability) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // beyond the kernel's last one
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d: %w", capability, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return syscall.Exec("/proc/self/exe", []string{os.Args[0], UnpackCommand, confinedArg}, os.Environ())
}

// keepsCapability names what writing another uid's files with all their mode
// bits takes. There is no MKNOD among them.
func keepsCapability(capability uintptr) bool {
	switch capability {
	case unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID:
		return true
	}
	return false
}

func answerRequest(in io.Reader, out io.Writer) int {
	var asked request
	err := json.NewDecoder(io.LimitReader(in, maxRequest)).Decode(&asked)
	if err == nil {
		err = unpackConfined(asked)
	}
	reply(out, err)
	if err != nil {
		return 1
	}
	return 0
}

// reply keeps the one distinction that the parent makes.
func reply(out io.Writer, err error) {
	var said answer
	switch {
	case err == nil:
	case errors.As(err, &said.Refused):
	default:
		said.Failed = fmt.Sprintf("%.2000s", err)
	}
	// Nobody is left to tell when the pipe is gone.
	_ = json.NewEncoder(out).Encode(said)
}

// unpackConfined gives up the file system, then reads the first foreign byte.
func unpackConfined(asked request) error {
	if err := confineTo(asked.Layout, asked.Target); err != nil {
		return fmt.Errorf("confining the unpack: %w", err)
	}
	manifest, err := surveyImage(asked.Layout, asked.Digest, asked.Limits)
	if err != nil {
		return err
	}
	// A directory that an archive makes without naming it gets this.
	unix.Umask(0o022)
	engine, err := dir.Open(asked.Layout)
	if err != nil {
		return fmt.Errorf("opening layout: %w", err)
	}
	defer engine.Close()
	options := &layer.UnpackOptions{OnDiskFormat: layer.DirRootfs{}}
	if err := layer.UnpackRootfs(context.Background(), engine, asked.Target, manifest, options); err != nil {
		return fmt.Errorf("unpacking: %w", err)
	}
	return nil
}

var errCgo = errors.New("layers are parsed only by a build without cgo (CGO_ENABLED=0)")

// confineTo leaves reading below layout and writing files, directories and links
// below target; no network (the parent gave it an empty namespace, and there is
// no socket call), no other program, no device.
func confineTo(layout, target string) error {
	if cgoBuild {
		return errCgo
	}
	abi := confine.LandlockABI()
	if abi == 0 {
		return ErrConfinement
	}
	config, write := ruleset(abi)
	err := config.Restrict(
		landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSReadDir, layout),
		landlock.PathAccess(write, target),
	)
	if err != nil {
		return fmt.Errorf("applying landlock: %w", err)
	}
	filter := seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionErrno, Names: knownCalls(deniedCalls)}},
		},
	}
	if err := seccomp.LoadFilter(filter); err != nil {
		return fmt.Errorf("applying seccomp: %w", err)
	}
	return nil
}

// ruleset picks the strictest configuration of this kernel by itself:
// BestEffort would go on without any. Before version 2 a hard link across
// directories fails, and with it the unpack. Signals and abstract sockets are
// left to the namespaces: scoping them takes preemption from Go on some kernels.
func ruleset(abi int) (landlock.Config, landlock.AccessFSSet) {
	write := landlock.AccessFSSet(ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile |
		ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSym)
	if abi >= 2 {
		write |= ll.AccessFSRefer
	}
	if abi >= 3 {
		write |= ll.AccessFSTruncate
	}
	known := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5}
	return known[min(abi, len(known))-1], write
}

// deniedCalls is the way out that Landlock doesn't watch in every version:
// sockets in the file system, other programs, namespaces, handles.
var deniedCalls = []string{
	"socket", "socketpair", "connect", "bind", "listen",
	"execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd",
	"mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsmount", "mount_setattr",
	"setns", "unshare", "mknod", "mknodat", "name_to_handle_at", "open_by_handle_at",
	"io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key",
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
}

// knownCalls leaves out what this architecture hasn't got (arm64 has no mknod),
// since the filter's compiler takes an unknown name for a mistake.
func knownCalls(names []string) []string {
	native, err := arch.GetInfo("")
	if err != nil {
		return names // LoadFilter says the same, as an error
	}
	var known []string
	for _, name := range names {
		if _, found := native.SyscallNames[name]; found {
			known = append(known, name)
		}
	}
	return known
}
