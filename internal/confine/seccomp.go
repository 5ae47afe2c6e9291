package confine

import (
	"fmt"
	"os"
	"slices"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// Filter names a seccomp filter for one of our processes. Whatever it refuses
// fails with EPERM: the Go runtime falls back or reports, and nothing dies.
type Filter int

// The filters.
const (
	// NoFilter loads none: the runner's children inherit its filter, and a
	// job's own is the OCI runtime's work.
	NoFilter Filter = iota
	// SignerFilter leaves what the Go runtime needs, and reading, writing and
	// syncing descriptors that are open already.
	SignerFilter
	// SupervisorFilter refuses new programs and processes, every socket family
	// but AF_INET and AF_INET6, signals to others, mounts, namespaces, tracing,
	// and the parts of the kernel that have a record of escapes.
	SupervisorFilter
)

// mode is the Seccomp line of a thread's status: 2 for a filter. A filter that
// somebody else loaded before ours shows 2 as well, hence -1 (not compared) if
// none is ours.
func (f Filter) mode() int {
	if f == NoFilter {
		return -1
	}
	return 2
}

// load stacks the filters on all threads; the kernel takes the strictest answer.
// The plain list comes last, since it forbids loading more.
func (f Filter) load() error {
	if f == NoFilter {
		return nil
	}
	native, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("finding the system calls of this architecture: %w", err)
	}
	refusals, allowed := narrowed(), existing(native, signerCalls)
	if f == SupervisorFilter {
		refusals = append(refusals, supervisorNarrowed()...)
		allowed = supervisorAllowed(native)
	}
	for _, refused := range refusals {
		if err := loadRefusal(native, refused); err != nil {
			return err
		}
	}
	return loadPolicy(seccomp.ActionErrno, seccomp.SyscallGroup{Names: allowed, Action: seccomp.ActionAllow})
}

// loadRefusal loads a filter of its own for one system call. The module
// (1.6.0) can't judge two by their arguments in one filter: after a condition
// that did not match, it compares the argument, still in the register, with the
// next call's number, so that socket(16, ...) passed as call 16, ioctl.
func loadRefusal(native *arch.Info, refused refusal) error {
	if _, found := native.SyscallNames[refused.call]; !found {
		return nil
	}
	var either []seccomp.NameWithConditions
	for _, conditions := range refused.either {
		either = append(either, seccomp.NameWithConditions{Name: refused.call, Conditions: conditions})
	}
	return loadPolicy(seccomp.ActionAllow, seccomp.SyscallGroup{NamesWithCondtions: either, Action: seccomp.ActionErrno})
}

// loadPolicy loads one filter. Without TSYNC it would stand on one thread only.
func loadPolicy(otherwise seccomp.Action, group seccomp.SyscallGroup) error {
	err := seccomp.LoadFilter(seccomp.Filter{
		Flag:   seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{DefaultAction: otherwise, Syscalls: []seccomp.SyscallGroup{group}},
	})
	if err != nil {
		return fmt.Errorf("loading a seccomp filter: %w", err)
	}
	return nil
}

// refusal refuses a call whose arguments meet all conditions of any list.
type refusal struct {
	call   string
	either []seccomp.ArgumentConditions
}

func refuse(call string, either ...seccomp.ArgumentConditions) refusal {
	return refusal{call: call, either: either}
}

func arg(n uint32, operation seccomp.Operation, value uint64) seccomp.Condition {
	return seccomp.Condition{Argument: n, Operation: operation, Value: value}
}

// narrowed are the calls that are left in the form only that the Go runtime
// uses: threads but no processes, memory that never becomes code, signals to
// ourselves.
func narrowed() []refusal {
	self := uint64(os.Getpid())
	return []refusal{
		refuse("clone", seccomp.ArgumentConditions{arg(0, seccomp.BitsNotSet, unix.CLONE_THREAD)}),
		refuse("mmap", seccomp.ArgumentConditions{arg(2, seccomp.BitsSet, unix.PROT_EXEC)}),
		refuse("mprotect", seccomp.ArgumentConditions{arg(2, seccomp.BitsSet, unix.PROT_EXEC)}),
		refuse("tgkill", seccomp.ArgumentConditions{arg(0, seccomp.NotEqual, self)}),
	}
}

// supervisorNarrowed compares whole 64-bit arguments: where the kernel reads 32
// bits only, a value with more is refused, or it would pass as another.
func supervisorNarrowed() []refusal {
	return []refusal{
		refuse("socket", seccomp.ArgumentConditions{
			arg(0, seccomp.NotEqual, unix.AF_INET), arg(0, seccomp.NotEqual, unix.AF_INET6),
		}),
		refuse("kill", seccomp.ArgumentConditions{arg(0, seccomp.NotEqual, uint64(os.Getpid()))}),
		// Input of a terminal must not be forged.
		refuse("ioctl",
			seccomp.ArgumentConditions{arg(1, seccomp.Equal, unix.TIOCSTI)},
			seccomp.ArgumentConditions{arg(1, seccomp.Equal, unix.TIOCLINUX)},
			seccomp.ArgumentConditions{arg(1, seccomp.GreaterThan, 1<<32-1)}),
	}
}

// supervisorAllowed is every call that this build knows by name, but for a list:
// what a later kernel brings is refused until somebody has read about it.
func supervisorAllowed(native *arch.Info) []string {
	var allowed []string
	for name := range native.SyscallNames {
		if !slices.Contains(supervisorRefuses, name) {
			allowed = append(allowed, name)
		}
	}
	slices.Sort(allowed)
	return allowed
}

// existing drops names that this architecture never had (arm64 has no
// epoll_wait, say): the module refuses a name that it does not find.
func existing(native *arch.Info, names []string) []string {
	var out []string
	for _, name := range names {
		if _, found := native.SyscallNames[name]; found {
			out = append(out, name)
		}
	}
	return out
}
