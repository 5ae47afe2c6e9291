package main

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// answerIn is how long an attempt to connect may stay open, in milliseconds.
// Without a route it fails at once.
const answerIn = 500

// outside are addresses that nothing in a sandbox may reach: any host, metadata
// services, usual bridges, a neighbour's link.
var outside = []string{
	"192.0.2.1", "1.1.1.1", "169.254.169.254", "100.100.100.200", "10.0.0.1", "172.17.0.1", "192.168.0.1", "224.0.0.1",
	"255.255.255.255", "2001:db8::1", "fd00:ec2::254", "fe80::1", "ff02::1",
}

// network tries to leave by every protocol, and whether it would see success:
// the sandbox's own loopback must answer.
func (a *attacker) network() {
	for _, address := range outside {
		ip := netip.MustParseAddr(address)
		a.tried("tcp@"+address, dial(ip, unix.SOCK_STREAM, 0, 80))
		a.tried("udp@"+address, dial(ip, unix.SOCK_DGRAM, 0, 53))
		a.tried("icmp@"+address, dial(ip, unix.SOCK_DGRAM, icmp(ip), 0))
		a.tried("raw@"+address, dial(ip, unix.SOCK_RAW, icmp(ip), 0))
		a.tried("sctp@"+address, dial(ip, unix.SOCK_STREAM, unix.IPPROTO_SCTP, 80))
	}
	a.tried("loopback", loopback())
	devices, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		a.tried("interfaces", err)
		return
	}
	a.seen("interfaces", deviceNames(string(devices)))
}

func deviceNames(table string) string {
	var names []string
	for line := range strings.Lines(table) {
		if name, _, found := strings.Cut(line, ":"); found {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func icmp(ip netip.Addr) int {
	if ip.Is4() {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

func sockaddr(ip netip.Addr, port int) (int, unix.Sockaddr) {
	if ip.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}
	}
	to := &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	if ip.IsLinkLocalUnicast() || ip.IsMulticast() {
		to.ZoneId = 2 // the first interface after lo
	}
	return unix.AF_INET6, to
}

// dial connects and sends an echo request, which serves every protocol as data.
func dial(ip netip.Addr, kind, protocol, port int) error {
	family, to := sockaddr(ip, port)
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	if err := connect(fd, to); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})
	return err
}

func connect(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	if err != unix.EINPROGRESS {
		return err
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(ready, answerIn); err != nil || n == 0 {
		return unix.EINPROGRESS // on its way: there is a route
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 1); err != nil {
		return err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	return dial(netip.MustParseAddr("127.0.0.1"), unix.SOCK_STREAM, 0, own.(*unix.SockaddrInet4).Port)
}

// hostSockets are where services of a host listen.
var hostSockets = []string{
	"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
	"/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify", "/run/user/1000/bus", "/tmp/.X11-unix/X0",
	"/run/veyra-sandboxd/control.sock", "/dev/log", "/run/snapd.socket", "/var/run/nscd/socket",
}

// abstractSockets have no file; the network namespace keeps them apart.
var abstractSockets = []string{"/tmp/.X11-unix/X0", "/tmp/dbus-", "/org/kernel/linux/storage/multipathd", "/containerd-shim", "ISCSIADM_ABSTRACT_NAMESPACE"}

// sockets looks for what listens on the host or next door (case A12).
func (a *attacker) sockets() {
	for _, path := range hostSockets {
		a.tried(attack.Safe("connect@"+path), dialUnix(path))
		link := "/workspace/.planted.sock"
		if unix.Symlink(path, link) == nil {
			a.tried(attack.Safe("planted@"+path), dialUnix(link))
			_ = unix.Unlink(link)
		}
	}
	for _, name := range abstractSockets {
		a.tried(attack.Safe("abstract@"+name), dialUnix("@"+name))
	}
	listening, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		a.tried("table", err)
	} else {
		a.seen("table", fmt.Sprint(max(0, strings.Count(string(listening), "\n")-1)))
	}
	for _, name := range []string{"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DISPLAY", "NOTIFY_SOCKET", "LISTEN_FDS"} {
		if value, found := os.LookupEnv(name); found {
			a.report("variable_"+name, attack.Done, value)
		}
	}
	a.socketFiles()
}

// socketFiles walks the whole file system but for /proc and /sys.
func (a *attacker) socketFiles() {
	looked := 0
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if looked++; looked > maxWalk {
			return fs.SkipAll
		}
		if path == "/proc" || path == "/sys" {
			return fs.SkipDir
		}
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			a.report(attack.Safe("file@"+path), attack.Done, "")
		}
		return nil
	})
	a.report("walk", attack.Nothing, fmt.Sprintf("%d entries", looked))
}

func dialUnix(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// terminal types into one, if there is one (case A14).
func (a *attacker) terminal() {
	for fd := range 3 {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		a.tried(fmt.Sprintf("isatty_%d", fd), err)
	}
	for _, path := range []string{"/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/ttyS0"} {
		a.tried(attack.Safe("open@"+path), openWrite(path))
	}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		master = 0
	}
	for _, high := range []uintptr{0, 1 << 32, 1 << 40} {
		for name, request := range map[string]uintptr{"tiocsti": unix.TIOCSTI, "tioclinux": unix.TIOCLINUX} {
			scratch[0] = 2
			c := sys("", unix.SYS_IOCTL, uintptr(master), request|high, scratchAddr())
			a.answered(fmt.Sprintf("%s_%x", name, high), c.do())
		}
	}
}
