package policies

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the derived seccomp profiles")

func TestSeccompProfilesMatchTheirDerivation(t *testing.T) {
	for _, kind := range []SeccompKind{SeccompJob, SeccompGit} {
		var want bytes.Buffer
		encoder := json.NewEncoder(&want)
		encoder.SetIndent("", " ")
		if err := encoder.Encode(deriveSeccomp(kind)); err != nil {
			t.Fatal(err)
		}
		name := "seccomp/" + string(kind) + ".json"
		if *update {
			if err := os.WriteFile(name, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), string(have)); diff != "" {
			t.Errorf("%s differs from what the base profile gives (-derived +committed):\n%s", name, diff)
		}
	}
}

// decide answers as the kernel would under the profile's filter: rules for one
// call are alternatives, the arguments of a rule must all match.
func decide(p *specs.LinuxSeccomp, name string, args ...uint64) specs.LinuxSeccompAction {
	for _, rule := range p.Syscalls {
		if slices.Contains(rule.Names, name) && !slices.ContainsFunc(rule.Args, func(a specs.LinuxSeccompArg) bool {
			return !argMatches(a, args[a.Index])
		}) {
			return rule.Action
		}
	}
	return p.DefaultAction
}

func argMatches(a specs.LinuxSeccompArg, value uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return value == a.Value
	case specs.OpMaskedEqual:
		return value&a.Value == a.ValueTwo
	}
	panic("an operator that the profiles must not use: " + a.Op)
}

func profile(t *testing.T, kind SeccompKind) *specs.LinuxSeccomp {
	t.Helper()
	p, err := Seccomp(kind)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSeccompDeniesWhatNoJobNeeds(t *testing.T) {
	for _, kind := range []SeccompKind{SeccompJob, SeccompGit} {
		p := profile(t, kind)
		for _, name := range []string{
			"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "keyctl", "add_key", "request_key",
			"bpf", "perf_event_open", "kcmp", "unshare", "setns", "mount", "umount", "umount2", "mount_setattr",
			"move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "pivot_root", "chroot",
			"open_by_handle_at", "socketcall", "init_module", "finit_module", "kexec_load", "reboot", "swapon", "acct",
			"settimeofday", "clock_settime", "iopl", "ioperm", "quotactl", "syslog", "sethostname", "pidfd_getfd",
			"fanotify_init", "lookup_dcookie", "nfsservctl", "vhangup",
		} {
			if got := decide(p, name, 0, 0, 0, 0, 0, 0); got != specs.ActErrno {
				t.Errorf("%s: %s gets %s", kind, name, got)
			}
		}
	}
}

func TestSeccompLetsInitAndToolsWork(t *testing.T) {
	p := profile(t, SeccompJob)
	for _, name := range []string{
		"setuid", "setgid", "setgroups", "setresuid", "setresgid", "prctl", "capset", "kill", "execve", "wait4",
		"waitid", "pidfd_open", "pidfd_send_signal", "ptrace", "process_vm_readv", "process_vm_writev", "futex",
		"mmap", "epoll_pwait", "clone", "fork", "vfork", "mknod", "mknodat", "memfd_create", "statx", "openat2",
	} {
		if got := decide(p, name, 0, 0, 0, 0, 0, 0); got != specs.ActAllow {
			t.Errorf("%s gets %s", name, got)
		}
	}
	git := profile(t, SeccompGit)
	for _, name := range []string{"mknod", "mknodat"} {
		if got := decide(git, name, 0, 0, 0, 0, 0, 0); got != specs.ActErrno {
			t.Errorf("git: %s gets %s", name, got)
		}
	}
}

func TestA18SeccompAllowsNativeCallsOnly(t *testing.T) {
	for cpu, want := range map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64} {
		p, err := seccompFor(SeccompJob, cpu)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]specs.Arch{want}, p.Architectures); diff != "" {
			t.Errorf("%s:\n%s", cpu, diff)
		}
	}
	if _, err := seccompFor(SeccompJob, "mips"); !errors.Is(err, ErrNoSeccomp) {
		t.Errorf("mips: %v", err)
	}
	if _, err := Seccomp("other"); !errors.Is(err, ErrNoSeccomp) {
		t.Errorf("other: %v", err)
	}
}

// TestSeccompSocketFamilies asks with what the kernel sees (the low 32 bits)
// and with any high bits, which must never open a family.
func TestSeccompSocketFamilies(t *testing.T) {
	p := profile(t, SeccompJob)
	open := func(family, protocol uint32) bool {
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6:
			return true
		}
		return family == unix.AF_NETLINK && protocol == 0
	}
	for family := range uint32(64) {
		for protocol := range uint32(32) {
			got := decide(p, "socket", uint64(family), unix.SOCK_STREAM, uint64(protocol)) == specs.ActAllow
			if got != open(family, protocol) {
				t.Errorf("socket(%d, _, %d) allowed: %v", family, protocol, got)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		family, protocol := rapid.Uint64Range(0, 64).Draw(t, "family"), rapid.Uint64Range(0, 32).Draw(t, "protocol")
		high := rapid.Uint64().Draw(t, "high") << 32
		for _, args := range [][]uint64{{family | high, 1, protocol}, {family, 1, protocol | high}} {
			if decide(p, "socket", args...) == specs.ActAllow && !open(uint32(family), uint32(protocol)) {
				t.Fatalf("socket(%#x, _, %#x) is allowed", args[0], args[2])
			}
		}
		if decide(p, "socketpair", family|high, 1, 0) == specs.ActAllow && family != unix.AF_UNIX {
			t.Fatalf("socketpair(%#x) is allowed", family|high)
		}
	})
}

func TestSeccompIoctlRefusesTerminalInput(t *testing.T) {
	for _, kind := range []SeccompKind{SeccompJob, SeccompGit} {
		p := profile(t, kind)
		rapid.Check(t, func(t *rapid.T) {
			high := rapid.Uint64().Draw(t, "high") << 32
			request := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0x5400, 0x5500)).Draw(t, "request")
			want := request != unix.TIOCSTI && request != unix.TIOCLINUX
			if got := decide(p, "ioctl", 0, uint64(request)|high) == specs.ActAllow; got != want {
				t.Fatalf("ioctl(_, %#x) allowed: %v", uint64(request)|high, got)
			}
		})
		for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSTI | 1<<32, unix.TIOCLINUX | 1<<63} {
			if got := decide(p, "ioctl", 0, request); got != specs.ActErrno {
				t.Errorf("ioctl(_, %#x) gets %s", request, got)
			}
		}
	}
}

func TestSeccompCloneMakesNoNamespace(t *testing.T) {
	p := profile(t, SeccompJob)
	namespaces := []uint64{
		unix.CLONE_NEWNS, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC, unix.CLONE_NEWUSER,
		unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWCGROUP,
	}
	rapid.Check(t, func(t *rapid.T) {
		flags := rapid.Uint64().Draw(t, "flags") | rapid.SampledFrom(namespaces).Draw(t, "namespace")
		if got := decide(p, "clone", flags); got != specs.ActErrno {
			t.Fatalf("clone(%#x) gets %s", flags, got)
		}
	})
	for _, rule := range p.Syscalls {
		if slices.Contains(rule.Names, "clone3") && (rule.ErrnoRet == nil || *rule.ErrnoRet != uint(unix.ENOSYS)) {
			t.Error("clone3 does not end with ENOSYS, so that libraries would not fall back to clone")
		}
	}
	if got := decide(p, "clone3"); got != specs.ActErrno {
		t.Errorf("clone3 gets %s", got)
	}
}

func TestSeccompPersonalityKeepsToHarmlessValues(t *testing.T) {
	p := profile(t, SeccompJob)
	harmless := []uint64{0, 0x0008, 0x20000, 0x20008, 0xffffffff}
	for _, value := range harmless {
		if decide(p, "personality", value) != specs.ActAllow {
			t.Errorf("personality(%#x) is refused", value)
		}
	}
	for _, value := range []uint64{0x0400000, 0x0040000, 0x0100000, 1 << 40} {
		if decide(p, "personality", value) != specs.ActErrno {
			t.Errorf("personality(%#x) is allowed", value)
		}
	}
}

func TestSeccompDigestsDiffer(t *testing.T) {
	job, err := SeccompDigest(SeccompJob)
	if err != nil {
		t.Fatal(err)
	}
	git, err := SeccompDigest(SeccompGit)
	if err != nil {
		t.Fatal(err)
	}
	if len(job) != 64 || job == git {
		t.Errorf("job %q, git %q", job, git)
	}
}
