package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/proof"
)

func escape(t *testing.T, h Host) {
	cases(t, h, merged(map[string]func(*testing.T, Host){
		"A01CommandHasNoPower":     proves("identity"),
		"A02NoNewNamespaces":       proves("namespaces"),
		"A03KernelCalls":           proves("kernel_calls"),
		"A03MountCalls":            proves("mount_calls"),
		"A03Priority":              proves("priority"),
		"A04DirectoriesAreInside":  directories,
		"A04NoForeignDescriptors":  proves("descriptors"),
		"A05InitIsOutOfReach":      proves("init_out_of_reach"),
		"A08NoDevices":             proves("devices"),
		"A08MountsTakeNone":        mountsTakeNone,
		"A09SetIDGivesNothing":     proves("set_id"),
		"A10HostSettings":          hostSettings,
		"A11MaskedFiles":           proves("masked"),
		"A12NoSockets":             proves("host_sockets"),
		"A14NoTerminal":            proves("terminal"),
		"A15DeadlineEndsAll":       proves("deadline"),
		"A18OtherArchitectures":    proves("other_doors"),
		"I15NextCommandIsAlone":    proves("left_over"),
		"C01NoNetworkButLoopback":  noNetwork,
		"C01EveryProtocol":         proves("network"),
		"AddressFamilies":          proves("socket_families"),
		"RootIsReadOnly":           proves("root"),
		"LimitsCantBeRaised":       proves("limits_raised"),
		"D14NoHostPathInMountinfo": noHostPath,
		"ProofHoldsWithoutAnImage": proofHolds,
	}, escapeSeenFromTheHost, escapeLeftBehind))
}

// attackers is how package proof attacks the host's sandboxes.
func (h Host) attackers() proof.Config {
	c := proof.Config{
		Backend: h.Backend, Isolation: sandbox.IsolationUserns, Limits: h.Limits,
		HostWords: []string{filepath.Dir(os.TempDir()+"/x") + "/Test", "images/"},
	}
	if h.Class == GVisor {
		c.Isolation = sandbox.IsolationGVisor
	}
	return c
}

// proves attacks one control in a sandbox that has an image.
func proves(control string) func(*testing.T, Host) {
	return func(t *testing.T, h Host) {
		b := h.One(t)
		got, err := h.attackers().One(ctxOf(t), b.Sandbox, h.Small(), control)
		if err != nil || !got.Enforced {
			t.Errorf("%s: %v %s", control, err, got.Seen)
		}
		t.Log(got.Seen)
	}
}

// noHostPath: an engine's own directories may show in options of its mounts; our
// backend has none.
func noHostPath(t *testing.T, h Host) {
	b := h.One(t)
	got, err := h.attackers().One(ctxOf(t), b.Sandbox, h.Small(), "host_paths")
	if err != nil || !got.Enforced || strings.HasPrefix(h.Name, "oci/") && strings.Contains(got.Seen, "options") {
		t.Errorf("%v %s", err, got.Seen)
	}
}

// proofHolds is the whole round, as doctor --prove makes it.
func proofHolds(t *testing.T, h Host) {
	var told []string
	attackers := h.attackers()
	attackers.Progress = func(control string) { told = append(told, control) }
	all, err := proof.Run(ctxOf(t), attackers)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if !c.Enforced && !h.unproven(c.Name) || c.Seen == "" {
			t.Errorf("control %+v", c)
		}
	}
	if want := proof.Controls(); len(told) != len(want) || len(all) != len(want)+1 {
		t.Errorf("%d controls were attacked, %d reported, of %d", len(told), len(all), len(want))
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

// hostSettings attacks them, and asks the host what became of them.
func hostSettings(t *testing.T, h Host) {
	unchanged := proof.HostUnchanged()
	proves("settings")(t, h)
	if c := unchanged(); !c.Enforced {
		t.Error(c.Seen)
	}
}

// mountsTakeNone: gVisor's guest doesn't show nodev; there the host's view
// counts.
func mountsTakeNone(t *testing.T, h Host) {
	b := h.One(t)
	info := b.Must("cat /proc/self/mountinfo")
	if h.Class == GVisor {
		raw, err := os.ReadFile(procFile(h.newest(t), "mountinfo"))
		if err != nil {
			t.Fatal(err)
		}
		info = string(raw)
	}
	writable := 0
	for line := range strings.Lines(strings.TrimSpace(info)) {
		if takesFiles(line) {
			writable++
			if options := "," + strings.Fields(line)[5] + ","; !strings.Contains(options, ",nodev,") || !strings.Contains(options, ",nosuid,") {
				t.Errorf("writable without nodev, nosuid: %s", line)
			}
		}
	}
	if h.Class == Kernel && writable < 4 {
		t.Errorf("%d writable mounts: the check is blind", writable)
	}
	if exit, _ := b.Sh("touch /dev/x"); exit.Code == 0 {
		t.Error("/dev is writable")
	}
}

// takesFiles judges a line of mountinfo: not what is read-only, a single node
// of /dev, or a masked file.
func takesFiles(line string) bool {
	f := strings.Fields(line)
	point := f[4]
	isNode := strings.HasPrefix(point, "/dev/") && point != "/dev/shm" && point != "/dev/mqueue"
	return strings.Contains(","+f[5]+",", ",rw,") && !strings.Contains(line, " ro,") && !isNode && !strings.Contains(line, "/null ")
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
