package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Size is the quota of a disk.
type Size struct{ Bytes, Inodes int64 }

// Disk is an ext4 file system on a loop device over a sparse file that has no
// name any more: when the mount goes, loop device and file go with it, also
// after a crash.
//
// As an ordinary user it is a tmpfs, which has hard ends as well, in memory.
type Disk struct {
	Path   string // mount point on the runner's tmpfs
	device string // "loop3"; empty: in memory
	cached error  // why the host's page cache holds its file as well; nil: it doesn't
}

// diskFlags: a sandbox's disk never carries devices or set-id programs.
const diskFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME

// diskOptions: without barriers nothing that a sandbox syncs reaches further than
// the host's page cache. The disk is gone after a crash, so there is nothing to
// keep, and a job can't make the host's own journal commit. Inode tables are
// never zeroed: they are in holes.
const diskOptions = "errors=remount-ro,barrier=0,noinit_itable"

// freshFile returns an empty file below dir that has no name.
func freshFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "disk-*.img")
	if err != nil {
		return nil, fmt.Errorf("making disk file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("unlinking disk file: %w", err)
	}
	return f, nil
}

// formatTemplate makes a file system once for each size; copying it sparsely
// costs a tenth of formatting again. There is no journal: a sandbox's disk
// never outlives its crash.
func formatTemplate(ctx context.Context, dir string, want Size) (*os.File, error) {
	f, err := freshFile(dir)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(want.Bytes); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("sizing template: %w", err)
	}
	cmd := exec.CommandContext(ctx, MkfsPath(), "-q", "-F", "-m", "0",
		"-O", "^has_journal,^resize_inode,extent,flex_bg,uninit_bg,dir_nlink,huge_file", "-E", "nodiscard,lazy_itable_init=1",
		"-I", "256", "-N", strconv.FormatInt(want.Inodes, 10), "/proc/self/fd/3")
	cmd.Env, cmd.ExtraFiles = []string{"MKE2FS_CONFIG=/dev/null"}, []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("formatting template: %w: %s", err, firstLine(out))
	}
	return f, nil
}

// MkfsPath returns the absolute path of mkfs.ext4; the runner's PATH is no
// input.
func MkfsPath() string {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if p := filepath.Join(dir, "mkfs.ext4"); IsFile(p) {
			return p
		}
	}
	return "/sbin/mkfs.ext4"
}

// copySparse copies the parts of template that hold bytes.
func copySparse(dir string, template *os.File) (*os.File, error) {
	out, err := freshFile(dir)
	if err != nil {
		return nil, err
	}
	if err := copyExtents(out, template); err != nil {
		_ = out.Close()
		return nil, err
	}
	return out, nil
}

func copyExtents(out, in *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("reading template: %w", err)
	}
	if err := out.Truncate(info.Size()); err != nil {
		return fmt.Errorf("sizing disk: %w", err)
	}
	src, dst := int(in.Fd()), int(out.Fd())
	for at := int64(0); ; {
		from, err := unix.Seek(src, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("seeking template: %w", err)
		}
		if at, err = unix.Seek(src, from, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("seeking template: %w", err)
		}
		if err := copyRange(dst, src, from, at); err != nil {
			return fmt.Errorf("copying template: %w", err)
		}
	}
}

func copyRange(dst, src int, from, to int64) error {
	in, out := from, from
	for in < to {
		n, err := unix.CopyFileRange(src, &in, dst, &out, int(to-in), 0)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

// attach gives the file a loop device that vanishes with its last user. Another
// process may take the free number first, so it is tried again.
func attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("opening loop control: %w", err)
	}
	defer control.Close()
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("asking for a loop device: %w", err)
		}
		dev, err := configure(fmt.Sprintf("/dev/loop%d", n), image)
		if err == nil {
			return dev, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("taking a loop device: %w", unix.EBUSY)
}

func configure(path string, image *os.File) (*os.File, error) {
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("opening loop device: %w", err)
	}
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Size: 4096}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		_ = dev.Close()
		return nil, fmt.Errorf("configuring %s: %w", path, err)
	}
	return dev, nil
}

// mountDisk makes a disk of the template's size and mounts it at path.
func mountDisk(dir string, template *os.File, path string) (*Disk, error) {
	image, err := copySparse(dir, template)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	dev, err := attach(image)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("making mount point: %w", err)
	}
	if err := unix.Mount(dev.Name(), path, "ext4", diskFlags, diskOptions); err != nil {
		_ = os.Remove(path)
		return nil, fmt.Errorf("mounting disk: %w", err)
	}
	return &Disk{Path: path, device: filepath.Base(dev.Name()), cached: bypass(dev)}, nil
}

// bypass keeps the page cache of the host out of what goes to and from the disk's
// file. On cgroup v2 the kernel accounts those pages to the sandbox as well
// (drivers/block/loop.c), and they can't be written without making more of them:
// a command that writes much would end as oom with nothing but page cache.
func bypass(dev *os.File) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_DIRECT_IO, 1); err != nil {
		return fmt.Errorf("bypassing the page cache: %w", err)
	}
	return nil
}

// Failures adds up ext4's error and warning counters. Not 0 means that the
// host's disk could not hold what was written: the data of this sandbox is
// not what its processes wrote.
func (d *Disk) Failures() (int64, error) {
	var sum int64
	if d.device == "" {
		return 0, nil // memory
	}
	for _, name := range []string{"errors_count", "warning_count"} {
		n, err := ReadInt(filepath.Join("/sys/fs/ext4", d.device, name))
		if err != nil {
			return 0, fmt.Errorf("reading disk counters: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// Check fails op when the host's disk failed below this one: what was written is
// lost, and no result counts.
func (d *Disk) Check(op string) error {
	n, err := d.Failures()
	if err != nil {
		return err
	}
	if n > 0 {
		return &sandbox.Error{Kind: sandbox.KindCrashed, Op: op + ": the host's disk failed below the sandbox's"}
	}
	return nil
}

// Freeze moves parts of the upper directory into layers of their own, whose paths
// it returns, and makes the disk read-only. Nothing may use it any more.
func (d *Disk) Freeze(ctx context.Context, first uint32, parts []sandbox.Part) ([]string, error) {
	paths, err := MoveParts(d.Path, first, parts)
	if err != nil {
		return nil, err
	}
	if err := d.Seal(ctx); err != nil {
		return nil, err
	}
	// The remount has written everything back, so a host that was full only
	// shows it now.
	return paths, d.Check("freezing sandbox")
}

// Quota reads the size back from the mounted file system.
func (d *Disk) Quota() (Size, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.Path, &st); err != nil {
		return Size{}, fmt.Errorf("reading disk: %w", err)
	}
	if d.device == "" {
		return Size{Bytes: int64(st.Blocks) * st.Bsize, Inodes: int64(st.Files)}, nil
	}
	sectors, err := ReadInt(filepath.Join("/sys/block", d.device, "size"))
	if err != nil {
		return Size{}, fmt.Errorf("reading disk size: %w", err)
	}
	return Size{Bytes: sectors * 512, Inodes: int64(st.Files)}, nil
}

// Seal makes the superblock read-only. A writer's last reference may outlive
// its process by a millisecond or two, so EBUSY is tried again for one second.
func (d *Disk) Seal(ctx context.Context) error {
	deadline := time.Now().Add(time.Second)
	for {
		err := unix.Mount("", d.Path, "", unix.MS_REMOUNT|unix.MS_RDONLY|diskFlags, "")
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("making disk read-only: %w", err)
		}
		if err := Pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// Release unmounts the disk; device and file go with it.
func (d *Disk) Release() error {
	if err := Unmount(d.Path); err != nil {
		return err
	}
	return os.Remove(d.Path)
}

// Unmount tries again for a second while the kernel still drops references,
// then detaches, so that nothing keeps a name.
func Unmount(path string) error {
	deadline := time.Now().Add(time.Second)
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmounting: %w", err)
			}
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func ReadInt(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

func firstLine(raw []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
	return strconv.Quote(line[:min(len(line), 300)])
}

func IsFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
