// Package hostcheck reads from a host's /proc, /sys and /dev what decides about
// sandboxes on it, without starting one. Each line says what was measured, what
// that means and what to do. No line is a verdict: whether a policy can be
// enforced is shown by a real sandbox only. Start reading at Lines.
package hostcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Line is one fact about the host.
type Line struct {
	Name string `json:"name"`
	// Good: it stands in the way of nothing.
	Good bool `json:"enforced"`
	// Seen is what was measured.
	Seen string `json:"seen"`
	// Means is what follows from it; empty where nothing does.
	Means string `json:"means,omitempty"`
	// Fix is how to change it, where it is not good.
	Fix string `json:"fix,omitempty"`
}

// Host is what is looked at.
type Host struct {
	// Root holds proc, sys and dev, as os.DirFS("/") does.
	Root fs.FS
	// Landlock is the version of its interface, 0 for none: the kernel is asked,
	// since the list of security modules may not be mounted.
	Landlock int
	// Privileged: the daemon starts as root.
	Privileged bool
}

// Lines measures everything. A file that can't be read is told as what was seen.
func (h Host) Lines() []Line {
	return []Line{
		h.kernel(), h.landlock(), h.idmap(), h.overlay(), h.loop(), h.userNamespaces(), h.appArmor(), h.seLinux(),
		h.controllers(), h.io(), h.swap(), h.corePattern(),
	}
}

// maxRead bounds every file that is read.
const maxRead = 1 << 20

// text is a file without the white space around it, or what reading it gave.
func (h Host) text(name string) (string, error) {
	file, err := h.Root.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	buffer := make([]byte, 0, 4096)
	for len(buffer) < maxRead {
		if len(buffer) == cap(buffer) {
			buffer = slices.Grow(buffer, len(buffer))
		}
		n, err := file.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		if err != nil || n == 0 { // the end, or as far as it can be read
			break
		}
	}
	return strings.TrimSpace(string(buffer)), nil
}

func (h Host) exists(name string) bool {
	_, err := fs.Stat(h.Root, name)
	return err == nil
}

// release is the kernel's version as two numbers.
func (h Host) release() (text string, major, minor int, err error) {
	if text, err = h.text("proc/sys/kernel/osrelease"); err != nil {
		return "", 0, 0, err
	}
	if _, err = fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		return text, 0, 0, fmt.Errorf("%.60q is no release: %w", text, err)
	}
	return text, major, minor, nil
}

func since(major, minor, wantMajor, wantMinor int) bool {
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}

func (h Host) kernel() Line {
	text, major, minor, err := h.release()
	if err != nil {
		text = err.Error()
	}
	l := Line{Name: "kernel", Seen: text, Good: err == nil && since(major, minor, 5, 12)}
	if !l.Good {
		l.Means, l.Fix = "mounts can't be mapped to a job's ids", "a kernel from 5.12 up"
	}
	return l
}

func (h Host) landlock() Line {
	l := Line{Name: "landlock", Seen: fmt.Sprintf("version %d of its interface", h.Landlock), Good: h.Landlock > 0}
	if !l.Good {
		l.Means = "the supervisor's access to files is not confined"
		l.Fix = "a kernel from 5.13 up with landlock among its security modules (the boot parameter lsm=)"
	}
	return l
}

// idmap: overlay takes a mapped lower layer from 5.19 on. Before, each range of
// ids gets a copy of the image.
func (h Host) idmap() Line {
	text, major, minor, err := h.release()
	l := Line{Name: "idmapped mounts", Good: err == nil && since(major, minor, 5, 19), Seen: "below overlays, by release " + text}
	if !l.Good {
		l.Seen = "not below overlays, by release " + text
		l.Means, l.Fix = "each range of ids gets a copy of the image, once", "a kernel from 5.19 up, or the disk for the copies"
	}
	return l
}

func (h Host) overlay() Line {
	known, err := h.text("proc/filesystems")
	l := Line{Name: "overlay", Good: true, Seen: "in the kernel"}
	if err != nil || !slices.Contains(strings.Fields(known), "overlay") {
		l.Good, l.Seen = false, "not among the kernel's file systems by now"
		l.Means = "a sandbox needs it for its layers; mounting one loads the module, where the daemon may"
		l.Fix = "modprobe overlay, and a file in /etc/modules-load.d for the next boot"
	}
	return l
}

func (h Host) loop() Line {
	l := Line{Name: "loop devices", Good: h.exists("dev/loop-control"), Seen: "/dev/loop-control"}
	if !l.Good {
		l.Seen = "no /dev/loop-control"
		l.Means = "a sandbox's disk can't be made, which is its quota of bytes and inodes"
		l.Fix = "modprobe loop, and DeviceAllow= in the unit; in a container of its own the daemon needs the devices passed on"
	}
	return l
}

// userNamespaces: the sysctl of Debian's older kernels is about ordinary users.
func (h Host) userNamespaces() Line {
	l := Line{Name: "user namespaces", Good: true}
	most, err := h.text("proc/sys/user/max_user_namespaces")
	n, _ := strconv.Atoi(most)
	clone, cloneErr := h.text("proc/sys/kernel/unprivileged_userns_clone")
	switch {
	case err != nil:
		l.Good, l.Seen = false, "the kernel has none"
		l.Means, l.Fix = "no sandbox has ids of its own", "a kernel with CONFIG_USER_NS"
	case n <= 0:
		l.Good, l.Seen = false, "user.max_user_namespaces is "+most
		l.Means, l.Fix = "no sandbox has ids of its own", "sysctl user.max_user_namespaces=10000"
	case cloneErr == nil && clone == "0":
		l.Seen = fmt.Sprintf("at most %d, for root only (kernel.unprivileged_userns_clone is 0)", n)
		if l.Good = h.Privileged; !l.Good {
			l.Means, l.Fix = "the daemon can make none without root", "start as root, or sysctl kernel.unprivileged_userns_clone=1"
		}
	default:
		l.Seen = fmt.Sprintf("at most %d", n)
	}
	return l
}

// appArmor: what it can take away is a user namespace that root did not make.
func (h Host) appArmor() Line {
	l := Line{Name: "apparmor", Good: true}
	enabled, err := h.text("sys/module/apparmor/parameters/enabled")
	restricted, _ := h.text("proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	switch {
	case err != nil || enabled != "Y":
		l.Seen = "not in use"
	case restricted != "1":
		l.Seen = "in use, user namespaces are not restricted"
	default:
		l.Seen = "in use, user namespaces of ordinary users are restricted"
		if l.Good = h.Privileged; !l.Good {
			l.Means = "what runs without root has no capability in the user namespaces it makes, so that no sandbox starts"
			l.Fix = "start as root; or give the daemon a profile with the rule \"userns,\"; or sysctl kernel.apparmor_restrict_unprivileged_userns=0, which opens that for all programs"
		}
	}
	return l
}

func (h Host) seLinux() Line {
	l := Line{Name: "selinux", Good: true}
	switch enforce, err := h.text("sys/fs/selinux/enforce"); {
	case errors.Is(err, fs.ErrNotExist):
		l.Seen = "not in use"
	case err != nil:
		l.Seen = err.Error()
	case enforce == "1":
		l.Seen = "enforcing"
		l.Means = "sandboxes run in the daemon's domain; what the policy denies to it shows in the probe and in `ausearch -m avc -ts recent`"
	default:
		l.Seen = "permissive: it denies nothing"
	}
	return l
}

// corePattern: a pipe there runs a program of the host on a job's core, whatever
// the job's limits say (core(5)).
func (h Host) corePattern() Line {
	pattern, err := h.text("proc/sys/kernel/core_pattern")
	l := Line{Name: "core_pattern", Seen: fmt.Sprintf("%.100q", pattern), Good: err == nil && !strings.HasPrefix(pattern, "|")}
	if !l.Good {
		l.Means = "what crashes in a sandbox is handed to that program of the host, which no limit of a sandbox stops"
		l.Fix = "sysctl kernel.core_pattern=core, or a program that you trust with strangers' crashes"
	}
	return l
}
