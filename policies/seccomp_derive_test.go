package policies

import (
	"slices"

	moby "github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// deriveSeccomp makes a profile from Moby's: its conditions resolved for init's
// four capabilities (none of which unlocks a call there), any kernel that we
// support, and both CPUs; then narrowed.
func deriveSeccomp(kind SeccompKind) seccompFile {
	base := moby.DefaultProfile()
	file := seccompFile{
		Comment:         "Derived from the Moby profile and narrowed; do not edit, run go generate in policies.",
		DefaultAction:   string(base.DefaultAction),
		DefaultErrnoRet: *base.DefaultErrnoRet,
	}
	for _, call := range base.Syscalls {
		if !applies(call) {
			continue
		}
		names := slices.DeleteFunc(slices.Clone(call.Names), func(name string) bool {
			return slices.Contains(replacedCalls, name) || kind == SeccompGit && slices.Contains(nodeCalls, name)
		})
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		rule := seccompRule{Comment: call.Comment, LinuxSyscall: call.LinuxSyscall}
		rule.Names = names
		file.Syscalls = append(file.Syscalls, rule)
	}
	file.Syscalls = append(file.Syscalls, socketRules()...)
	file.Syscalls = append(file.Syscalls, ioctlRules()...)
	return file
}

// applies resolves a rule's conditions.
func applies(call *moby.Syscall) bool {
	in, out := call.Includes, call.Excludes
	if in != nil && len(in.Caps) > 0 {
		return false
	}
	if in != nil && len(in.Arches) > 0 && !slices.Contains(in.Arches, "amd64") && !slices.Contains(in.Arches, "arm64") {
		return false
	}
	// Exclusions name capabilities that init lacks, or other CPUs; one that
	// names a kernel would have to be looked at.
	return out == nil || out.MinKernel == nil && !slices.Contains(out.Arches, "amd64") && !slices.Contains(out.Arches, "arm64")
}

// replacedCalls get rules of ours, or none. socketcall and ipc are the 32-bit
// entries: their arguments lie behind a pointer, past any filter.
var replacedCalls = []string{"socket", "socketpair", "socketcall", "ipc", "ioctl"}

// nodeCalls make device nodes, pipes and sockets in the file system.
var nodeCalls = []string{"mknod", "mknodat"}

func allow(comment, name string, args ...specs.LinuxSeccompArg) seccompRule {
	return seccompRule{comment, specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}}
}

func equal(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

// socketRules let in four families. The kernel looks at the low 32 bits of the
// family only, the filter at all 64: high bits make no rule match.
func socketRules() []seccompRule {
	return []seccompRule{
		allow("AF_UNIX", "socket", equal(0, unix.AF_UNIX)),
		allow("AF_INET", "socket", equal(0, unix.AF_INET)),
		allow("AF_INET6", "socket", equal(0, unix.AF_INET6)),
		allow("AF_NETLINK, protocol NETLINK_ROUTE only: C libraries list interfaces by it", "socket",
			equal(0, unix.AF_NETLINK), equal(2, unix.NETLINK_ROUTE)),
		allow("AF_UNIX", "socketpair", equal(0, unix.AF_UNIX)),
	}
}

// ioctlRules let in every request but two that put input into a terminal. Here
// the kernel's cut to 32 bits would help an attacker, so the rules are masked
// to 32 bits; and as rules are alternatives, "not these two" is said as the
// list of all bit prefixes that neither has.
func ioctlRules() []seccompRule {
	var rules []seccompRule
	for _, p := range prefixesWithout([]uint32{unix.TIOCSTI, unix.TIOCLINUX}, 0, 0) {
		rules = append(rules, allow("", "ioctl", specs.LinuxSeccompArg{
			Index: 1, Value: uint64(p.mask), ValueTwo: uint64(p.value), Op: specs.OpMaskedEqual,
		}))
	}
	rules[0].Comment = "every request but TIOCSTI and TIOCLINUX, which type into a terminal: each rule is a prefix of bits that neither has"
	return rules
}

type bitPrefix struct{ mask, value uint32 }

// prefixesWithout returns the shortest bit prefixes, below the given one, that
// together cover every number but the excluded ones.
func prefixesWithout(excluded []uint32, bits int, value uint32) []bitPrefix {
	mask := ^uint32(0) << (32 - bits) // bits = 0 gives 0
	inside := slices.DeleteFunc(slices.Clone(excluded), func(x uint32) bool { return x&mask != value })
	switch {
	case len(inside) == 0:
		return []bitPrefix{{mask, value}}
	case bits == 32:
		return nil
	}
	next := uint32(1) << (31 - bits)
	return append(prefixesWithout(inside, bits+1, value), prefixesWithout(inside, bits+1, value|next)...)
}
