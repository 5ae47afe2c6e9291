package sandboxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// noCaps is an empty capability set in /proc/PID/status.
const noCaps = "0000000000000000"

func escape(t *testing.T, h Host) {
	cases(t, h, map[string]func(*testing.T, Host){
		"A01CommandHasNoPower":    noPower,
		"A01InitHasFour":          initHasFour,
		"A02NoNewNamespaces":      noNamespaces,
		"A03KernelDoors":          kernelDoors,
		"A04DirectoriesAreInside": directories,
		"A04NoForeignDescriptors": descriptors,
		"A05InitCantBeWritten":    initUnwritable,
		"A08NoDevices":            noDevices,
		"A09SetIDGivesNothing":    setID,
		"A10HostSettings":         hostSettings,
		"A11MaskedFiles":          maskedFiles,
		"A12NoSockets":            noSockets,
		"A14NoTerminal":           noTerminal,
		"A18OtherArchitectures":   otherArchitectures,
		"NoHostPathInMountinfo":   noHostPath,
		"NoNetworkButLoopback":    noNetwork,
		"InitCantBeReached":       initUnreachable,
		"AddressFamilies":         families,
	})
}

func noPower(t *testing.T, h Host) {
	b := h.One(t)
	status := fields(b.Must("cat /proc/self/status"))
	want := map[string]string{
		"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000", "Groups": "",
		"CapInh": noCaps, "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": noCaps, "CapAmb": noCaps,
		"NoNewPrivs": "1", "Seccomp": "2",
	}
	for name, value := range want {
		if status[name] != value {
			t.Errorf("%s of a command is %q, want %q", name, status[name], value)
		}
	}
}

func initHasFour(t *testing.T, h Host) {
	b := h.One(t)
	status := statusOf(t, h.newest(t))
	for _, name := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if status[name] != "00000000000001e0" { // SETGID SETUID SETPCAP KILL
			t.Errorf("%s of init is %q on the host", name, status[name])
		}
	}
	if status["Seccomp"] != "2" || status["NoNewPrivs"] != "1" || strings.HasPrefix(status["Uid"], "0\t") {
		t.Errorf("init on the host: %+v", status)
	}
	b.Must("true")
}

func noNamespaces(t *testing.T, h Host) {
	b := h.One(t)
	for _, flag := range []string{"-U", "-Ur", "-m", "-n", "-p", "-i", "-u", "-C"} {
		if exit, out := b.Sh("unshare " + flag + " true"); exit.Code == 0 {
			t.Errorf("unshare %s worked: %s", flag, out)
		}
	}
	out := b.Python(`import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for name, call in [("clone3", lambda: libc.syscall(435, 0, 0)),
                   ("mount", lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)),
                   ("clone newuser", lambda: libc.syscall(56, 0x10000011, 0, 0, 0, 0))]:
    ctypes.set_errno(0)
    print(name, call(), errno.errorcode.get(ctypes.get_errno()))`)
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "-1 EPERM") && !strings.Contains(line, "clone3 -1 ENOSYS") {
			t.Errorf("not refused: %s", line)
		}
	}
}

// kernelDoors tries system calls by number (x86-64): each must fail.
func kernelDoors(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import ctypes
libc = ctypes.CDLL(None, use_errno=True)
calls = {"io_uring_setup": 425, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250,
  "add_key": 248, "kcmp": 312, "swapon": 167, "init_module": 175, "kexec_load": 246, "open_by_handle_at": 304,
  "clock_settime": 227, "setns": 308, "chroot": 161, "pivot_root": 155, "open_tree": 428, "move_mount": 429,
  "fsopen": 430, "mount_setattr": 442, "reboot": 169, "iopl": 172, "acct": 163, "quotactl": 179, "lookup_dcookie": 212}
for name, nr in calls.items():
    ctypes.set_errno(0)
    r = libc.syscall(nr, 0, 0, 0, 0, 0)
    print(name, r, ctypes.get_errno())
libc.ptrace.restype = ctypes.c_long
print("ptrace(1)", libc.ptrace(16, 1, 0, 0), ctypes.get_errno())`)
	for line := range strings.Lines(out) {
		var name string
		var result, errno int
		fmt.Sscan(line, &name, &result, &errno)
		if result != -1 || (errno != 1 && errno != 38) {
			t.Errorf("expected EPERM or ENOSYS: %s", line)
		}
	}
}

func directories(t *testing.T, h Host) {
	b := h.One(t)
	b.Must("ln -s / out && mkdir in && touch file")
	for _, dir := range []string{"/proc/self/fd/3", "/proc/1/root", "relative", "../..", "/workspace/../etc", "/etc", "/", "/workspace/"} {
		_, err := b.Run(ctxOf(t), sandbox.Command{Argv: []string{"pwd"}, Dir: dir})
		if sandbox.KindOf(err) != sandbox.KindRefused {
			t.Errorf("directory %q gave %v, want a refusal", dir, err)
		}
	}
	for _, dir := range []string{"/workspace/out", "/workspace/file", "/workspace/out/etc", "/workspace/missing"} {
		exit, out := b.Cmd(sandbox.Command{Argv: []string{"pwd"}, Dir: dir})
		if exit.Code == 0 {
			t.Errorf("directory %q was entered: %s", dir, out)
		}
	}
	if exit, out := b.Cmd(sandbox.Command{Argv: []string{"pwd"}, Dir: "/workspace/in"}); exit.Code != 0 || out != "/workspace/in\n" {
		t.Errorf("a directory of the workspace gave %+v, %q", exit, out)
	}
}

func descriptors(t *testing.T, h Host) {
	canary, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer canary.Close()
	b := h.One(t)
	out := b.Python(`import os
for fd in range(3, 4096):
    try: print(fd, os.readlink("/proc/self/fd/%d" % fd))
    except OSError: pass`)
	if out != "" {
		t.Errorf("a command has descriptors above 2:\n%s", out)
	}
}

func initUnwritable(t *testing.T, h Host) {
	b := h.One(t)
	for _, script := range []string{
		"echo x > /proc/1/exe", "cat /proc/1/exe", "echo x > /.veyra/init", "rm /.veyra/init", "mv /.veyra/init /tmp",
		"chmod 777 /.veyra/init", "cp /bin/true /proc/1/exe", "ls /proc/1/fd", "cat /proc/1/environ", "cat /proc/1/maps", "echo > /proc/1/mem",
	} {
		if exit, out := b.Sh(script); exit.Code == 0 {
			t.Errorf("%q worked: %s", script, out)
		}
	}
	b.Must("/.veyra/init read /workspace/none; test $? = 4")
}

func noDevices(t *testing.T, h Host) {
	b := h.One(t)
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp", "/var/tmp", "/dev/shm"} {
		for _, node := range []string{"b 8 0", "b 7 0", "c 1 1", "c 10 237", "c 1 11"} {
			if exit, out := b.Sh(fmt.Sprintf("mknod %s/n %s && head -c 1 %s/n", dir, node, dir)); exit.Code == 0 {
				t.Errorf("device %s in %s was made and opened: %s", node, dir, out)
			}
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(b.Must("cat /proc/self/mountinfo")), "\n") {
		f := strings.Fields(line)
		point, options := f[4], ","+f[5]+","
		isNode := strings.HasPrefix(point, "/dev/") && point != "/dev/shm" && point != "/dev/mqueue"
		writable := strings.Contains(options, ",rw,") && !strings.Contains(line, " ro,")
		if writable && !isNode && (!strings.Contains(options, ",nodev,") || !strings.Contains(options, ",nosuid,")) &&
			!strings.Contains(line, "/null ") {
			t.Errorf("writable without nodev, nosuid: %s", line)
		}
	}
	if exit, _ := b.Sh("touch /dev/x"); exit.Code == 0 {
		t.Error("/dev is writable")
	}
}

func setID(t *testing.T, h Host) {
	b := h.One(t)
	for _, dir := range []string{"/workspace", "/home/veyra", "/tmp", "/var/tmp"} {
		out := b.Must("cd " + dir + " && cp $(command -v id) i && chmod 6755 i && ./i -u && ./i -G && grep CapEff /proc/self/status")
		if !strings.HasPrefix(out, "1000\n1000\n") || !strings.Contains(out, noCaps) {
			t.Errorf("set-id program in %s: %q", dir, out)
		}
	}
}

func hostSettings(t *testing.T, h Host) {
	b := h.One(t)
	before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/net/ipv4/ip_forward", "/sys/fs/cgroup/memory/release_agent",
		"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/devices/devices.allow",
		"/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max",
	} {
		if exit, out := b.Sh("echo 1 > " + path); exit.Code == 0 {
			t.Errorf("%s could be written: %s", path, out)
		}
	}
	after, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil || string(after) != string(before) {
		t.Errorf("core_pattern changed from %q to %q, %v", before, after, err)
	}
}

func maskedFiles(t *testing.T, h Host) {
	b := h.One(t)
	for _, path := range []string{
		"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms", "/proc/kmsg",
		"/proc/sched_debug", "/proc/interrupts",
	} {
		if exit, out := b.Sh("head -c 16 " + path); exit.Code == 0 && out != "" {
			t.Errorf("%s shows %q", path, out)
		}
	}
	for _, path := range []string{
		"/sys/firmware", "/sys/kernel", "/sys/fs/cgroup", "/sys/devices/virtual/dmi",
		"/sys/devices/virtual/powercap", "/sys/block", "/proc/scsi", "/proc/acpi", "/proc/1/root/", "/proc/1/cwd/",
	} {
		if _, out := b.Sh("ls " + path + " 2>/dev/null"); out != "" {
			t.Errorf("%s lists %q", path, out)
		}
	}
}

func noSockets(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Must("tail -n +2 /proc/net/unix; find / -xdev -type s 2>/dev/null; ls /run /var/run/ 2>/dev/null | grep -v '^/' | grep -E 'docker|containerd|podman|dbus|veyra' ; true")
	if strings.TrimSpace(out) != "" {
		t.Errorf("sockets are seen: %s", out)
	}
}

func noTerminal(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import fcntl, os
for fd in (0, 1, 2): print(os.isatty(fd))
for req in (0x5412, 0x541C, 0x1000000005412):
    try: fcntl.ioctl(os.open("/dev/ptmx", os.O_RDWR), req & 0xffffffff, b"x"); print("ioctl worked")
    except OSError: print("refused")`)
	if strings.Contains(out, "True") || strings.Contains(out, "worked") {
		t.Errorf("terminal doors: %s", out)
	}
	if exit, out := b.Sh("echo > /dev/tty"); exit.Code == 0 {
		t.Errorf("there is a controlling terminal: %s", out)
	}
}

// otherArchitectures enters the kernel by int 0x80 and by an x32 number.
func otherArchitectures(t *testing.T, h Host) {
	b := h.One(t)
	for name, code := range map[string]string{
		"int 0x80 getpid":     "b814000000cd80c3",
		"int 0x80 socketcall": "b866000000bb0100000031c9cd80c3",
		"x32 getpid":          "b8270000400f05c3",
	} {
		exit, out := b.Py(`import ctypes, mmap, sys
m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ|mmap.PROT_WRITE|mmap.PROT_EXEC)
m.write(bytes.fromhex("` + code + `"))
r = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
print(r); sys.exit(0 if r >= 0 else 3)`)
		if exit.Code == 0 {
			t.Errorf("%s was answered: %s", name, out)
		}
	}
}

func noHostPath(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Must("cat /proc/self/mountinfo /proc/self/mounts /proc/self/cgroup; cat /proc/cmdline >/dev/null; ls /proc/self/root/")
	for _, word := range []string{"/run/", "veyra-sandboxd", "/var/lib", "/var/cache", filepath.Dir(os.TempDir()+"/x") + "/Test", "images/"} {
		if strings.Contains(out, word) {
			t.Errorf("the sandbox's mounts show %q:\n%s", word, out)
		}
	}
}

func noNetwork(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import socket, errno
print(sorted(n for _, n in socket.if_nameindex()))
for addr in ("192.0.2.1", "169.254.169.254", "10.0.0.1"):
    s = socket.socket(); s.settimeout(5)
    try: s.connect((addr, 80)); print("connected")
    except OSError as e: print(errno.errorcode.get(e.errno))
l = socket.socket(); l.bind(("127.0.0.1", 80)); l.listen(); c = socket.create_connection(("127.0.0.1", 80)); print("lo")
try: socket.getaddrinfo("example.com", 80); print("resolved")
except OSError: print("no name")`)
	if out != "['lo']\nENETUNREACH\nENETUNREACH\nENETUNREACH\nlo\nno name\n" {
		t.Errorf("network: %s", out)
	}
	if out := b.Must("cat /etc/resolv.conf; cat /etc/hosts"); !strings.HasPrefix(out, "127.0.0.1 localhost\n") {
		t.Errorf("resolver files: %q", out)
	}
}

func initUnreachable(t *testing.T, h Host) {
	b := h.One(t)
	if exit, out := b.Sh("kill -9 1 || kill -STOP 1"); exit.Code == 0 {
		t.Errorf("init took a signal: %s", out)
	}
	out := b.Python(`import os
for name in ("mem", "environ", "fd", "maps", "root", "cwd", "exe", "ns/mnt"):
    try:
        p = "/proc/1/" + name
        (os.listdir if name in ("fd", "root", "cwd") else open)(p)
        print("opened", p)
    except OSError: pass`)
	if out != "" {
		t.Errorf("init's files: %s", out)
	}
	b.Must("true")
}

func families(t *testing.T, h Host) {
	b := h.One(t)
	out := b.Python(`import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, family, kind, proto in [("ALG", 38, 5, 0), ("VSOCK", 40, 1, 0), ("XDP", 44, 3, 0), ("KEY", 15, 3, 2),
    ("PACKET", 17, 3, 0), ("NETLINK audit", 16, 3, 9), ("NETLINK uevent", 16, 3, 15), ("ALG high bits", 38 | 1 << 40, 5, 0)]:
    fd = libc.syscall(41, ctypes.c_long(family), ctypes.c_long(kind), ctypes.c_long(proto))
    if fd >= 0: print("opened", name)`)
	if out != "" {
		t.Errorf("address families: %s", out)
	}
	b.Must("true")
}
