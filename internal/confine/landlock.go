package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rules is a Landlock ruleset: what of the file system stays within reach. All
// else of it is closed, execution included; signals and abstract unix sockets
// reach only the process itself. A rule follows an inode: name the directory of
// a file that is replaced by rename.
type Rules struct {
	// Read and Write are files or directories (with all below) that must
	// exist. Write includes reading, making and removing files, links excluded.
	Read, Write []string
	// ReadIfPresent is like Read; what does not exist, or lies out of the new
	// user's reach anyway, is left out.
	ReadIfPresent []string
	// NoNetwork closes TCP (and UDP, where the kernel can), too.
	NoNetwork bool
}

const (
	readRights = ll.AccessFSReadFile | ll.AccessFSReadDir
	// makeRights leaves out links, devices, FIFOs and sockets: nothing of ours
	// makes them after its start.
	makeRights = ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
		ll.AccessFSMakeDir | ll.AccessFSMakeReg
	// fileRights are those that a rule on a single file may hold.
	fileRights = ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
)

// Versions of the kernel's interface that brought a right.
const (
	abiRefer    = 2
	abiTruncate = 3
	abiScoped   = 6
	abiTSync    = 8
)

// LandlockABI returns the version of Landlock that this kernel offers, 0 for
// none. It asks the system call: securityfs may not be mounted.
func LandlockABI() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// scopingThreads reports whether a scoped process may still signal its own
// threads. Before ABI 8 each thread gets a domain of its own, and kernels that
// lack erratum 2 then refuse: Go could neither preempt nor confine the rest.
func scopingThreads(abi int) bool {
	const flagErrata, erratum2 = 1 << 1, 1 << 1
	if abi >= abiTSync {
		return true
	}
	errata, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, flagErrata)
	return errno == 0 && errata&erratum2 != 0
}

// restrict applies the rules to every thread and proves it with an open that
// must fail. A nil ruleset restricts nothing.
func (r *Rules) restrict() (weakenings []string, err error) {
	if r == nil {
		return nil, nil
	}
	if cgoBuild {
		return nil, errCgo
	}
	abi := LandlockABI()
	if abi == 0 {
		return []string{"the kernel has no Landlock: files are closed by ids and modes only"}, nil
	}
	config, weakenings := r.config(abi)
	rules, err := r.rules(config, abi)
	if err != nil {
		return nil, err
	}
	if err := config.Restrict(rules...); err != nil {
		return nil, fmt.Errorf("applying landlock: %w", err)
	}
	return weakenings, proveClosed()
}

// config handles every right that this kernel knows, chosen by its version and
// never by the module's BestEffort, which would weaken without a word.
func (r *Rules) config(abi int) (landlock.Config, []string) {
	versions := []landlock.Config{
		landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6,
		landlock.V7, landlock.V8, landlock.V9, landlock.V10, landlock.V11,
	}
	config := versions[min(abi, len(versions))-1]
	if !r.NoNetwork {
		config.HandledAccessNet = 0
	}
	var weakenings []string
	if abi < abiTruncate {
		weakenings = append(weakenings, "the kernel's Landlock can't refuse truncation of files that modes allow")
	}
	if abi < abiScoped || !scopingThreads(abi) {
		config.Scoped = 0
		weakenings = append(weakenings, "the kernel's Landlock can't scope signals and abstract unix sockets")
	}
	return config, weakenings
}

func (r *Rules) rules(config landlock.Config, abi int) ([]landlock.Rule, error) {
	write := landlock.AccessFSSet(readRights | makeRights)
	if abi >= abiTruncate {
		write |= ll.AccessFSTruncate
	}
	if abi >= abiRefer {
		write |= ll.AccessFSRefer // rename from one directory to another
	}
	var rules []landlock.Rule
	for _, list := range []struct {
		paths    []string
		rights   landlock.AccessFSSet
		optional bool
	}{
		{r.Read, readRights, false},
		{r.Write, write & config.HandledAccessFS, false},
		{r.ReadIfPresent, readRights, true},
	} {
		for _, path := range list.paths {
			rule, err := ruleFor(path, list.rights)
			if list.optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
				continue
			}
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

func ruleFor(path string, rights landlock.AccessFSSet) (landlock.Rule, error) {
	found, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("making a landlock rule: %w", err)
	}
	if !found.IsDir() {
		rights &= fileRights
	}
	return landlock.PathAccess(rights, path), nil
}

// proveClosed tries to list the root directory on every thread: no ruleset of
// ours allows that. Should one thread succeed, the runtime ends the process.
func proveClosed() error {
	root := []byte("/\x00")
	at := unix.AT_FDCWD
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&root[0])),
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != unix.EACCES {
		return fmt.Errorf("listing / under landlock: got %v, want %v: %w", errno, unix.EACCES, ErrNotApplied)
	}
	return nil
}
