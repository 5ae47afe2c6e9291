package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// maxEntries bounds one collection; what a job leaves beyond it is no change
// that anybody reviews.
const maxEntries = 50_000

func CollectLimits(l policies.Limits) treestream.Limits {
	return treestream.Limits{Entries: min(maxEntries, max(l.Inodes, 1)), Bytes: max(l.ChangeBytes, 1)}
}

// overlayXattrs are all that the kernel writes with our overlay's options.
// Anything else of this kind would make the tree mean more than it shows.
var overlayXattrs = []string{"opaque", "origin", "impure", "uuid"}

// errForeign says that an entry carries an attribute of another overlay.
var errForeign = errors.New("foreign overlay attribute")

// collector walks the upper directory of an ended sandbox. Every name in it is
// the job's: nothing is followed, only regular files with one name are opened.
type collector struct {
	ctx context.Context
	out *treestream.Writer
	// left is how many names may still be read.
	left int64
	dev  uint64
}

// Collect streams the entries of the upper directory at root to w.
func Collect(ctx context.Context, root string, limits treestream.Limits, w io.Writer) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening upper directory: %w", err)
	}
	dir := os.NewFile(uintptr(fd), "workspace")
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("reading upper directory: %w", err)
	}
	if limits.Entries == 0 {
		limits.Entries = math.MaxInt64 // as the stream has it
	}
	c := &collector{ctx: ctx, out: treestream.NewWriter(w, treestream.Options{Limits: limits}), left: limits.Entries, dev: st.Dev}
	if err := c.checkXattrs(fd); err != nil {
		return collectError(err)
	}
	if err := c.walk(dir, ""); err != nil {
		return collectError(err)
	}
	return collectError(c.out.Close())
}

// collectError gives what a job can cause its kind.
func collectError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, treestream.ErrLimit), errors.Is(err, treestream.ErrFormat):
		// The only malformed entries that a file system can hold are too deep.
		return &sandbox.Error{Kind: sandbox.KindTooLarge, Op: "collecting changes", Err: err}
	case errors.Is(err, errForeign):
		return &sandbox.Error{Kind: sandbox.KindRefused, Op: "collecting changes", Err: err}
	}
	return fmt.Errorf("collecting changes: %w", err)
}

// walk streams the entries of dir in the stream's order: by bytes, each
// directory followed by what it holds.
func (c *collector) walk(dir *os.File, prefix string) error {
	names, err := c.names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.entry(int(dir.Fd()), name, path.Join(prefix, name)); err != nil {
			return err
		}
	}
	return nil
}

// names reads a directory in parts, so that one with millions of names ends the
// collection before they are in memory.
func (c *collector) names(dir *os.File) ([]string, error) {
	var names []string
	for {
		some, err := dir.Readdirnames(1024)
		names = append(names, some...)
		if c.left -= int64(len(some)); c.left < 0 {
			return nil, fmt.Errorf("reading directory: more entries than allowed: %w", treestream.ErrLimit)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading directory: %w", err)
		}
	}
}

func (c *collector) entry(parent int, name, full string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("reading entry %.200q: %w", full, err)
	}
	e := treestream.Entry{Path: full, Mode: st.Mode & 0o7777, MTime: st.Mtim.Nano(), Links: uint32(st.Nlink)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.directory(parent, name, e)
	case unix.S_IFREG:
		return c.file(parent, name, e)
	case unix.S_IFLNK:
		return c.link(parent, name, e)
	case unix.S_IFCHR:
		// The kernel makes a whiteout as the one who mounted the overlay; a
		// node of the same number that a job made belongs to the job's range.
		if st.Rdev == 0 && st.Uid == uint32(os.Getuid()) {
			return c.out.Add(treestream.Entry{Kind: treestream.Delete, Path: full}, nil)
		}
	}
	return c.special(e)
}

// special reports an entry that is never opened. Links tells a hard link of a
// regular file from a FIFO, socket or device, of which jobs can't link more.
func (c *collector) special(e treestream.Entry) error {
	e.Kind, e.Size = treestream.Special, 0
	return c.out.Add(e, nil)
}

func (c *collector) link(parent int, name string, e treestream.Entry) error {
	buf := make([]byte, treestream.MaxTarget+1)
	n, err := unix.Readlinkat(parent, name, buf)
	if err != nil {
		return fmt.Errorf("reading link %.200q: %w", e.Path, err)
	}
	e.Kind, e.Target = treestream.Symlink, string(buf[:n])
	return c.out.Add(e, nil)
}

func (c *collector) directory(parent int, name string, e treestream.Entry) error {
	dir, st, err := c.open(parent, name, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("opening directory %.200q: %w", e.Path, err)
	}
	defer dir.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return c.special(e)
	}
	e.Kind, e.Links = treestream.Dir, 0
	opaque, err := c.isOpaque(int(dir.Fd()))
	if err != nil {
		return fmt.Errorf("directory %.200q: %w", e.Path, err)
	}
	if opaque {
		e.Kind = treestream.Opaque
	}
	if err := c.out.Add(e, nil); err != nil {
		return err
	}
	return c.walk(dir, e.Path)
}

func (c *collector) file(parent int, name string, e treestream.Entry) error {
	if e.Links != 1 {
		return c.special(e)
	}
	f, st, err := c.open(parent, name, 0)
	if notThere(err) || errors.Is(err, unix.ENXIO) {
		return c.special(e) // it was exchanged since the look at it
	}
	if err != nil {
		return fmt.Errorf("opening file %.200q: %w", e.Path, err)
	}
	defer f.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return c.special(e)
	}
	if err := c.checkXattrs(int(f.Fd())); err != nil {
		return fmt.Errorf("file %.200q: %w", e.Path, err)
	}
	e.Kind, e.Size, e.Mode, e.MTime = treestream.File, st.Size, st.Mode&0o7777, st.Mtim.Nano()
	return c.out.Add(e, f)
}

// open opens without following, waiting, or leaving the directory or the disk,
// and looks at what it got.
func (c *collector) open(parent int, name string, flags uint64) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openBeneath(parent, name, flags|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, st, err
	}
	f := os.NewFile(uintptr(fd), "entry")
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close()
		return nil, st, err
	}
	if st.Dev != c.dev {
		_ = f.Close()
		return nil, st, unix.EXDEV
	}
	return f, st, nil
}

func (c *collector) isOpaque(fd int) (bool, error) {
	if err := c.checkXattrs(fd); err != nil {
		return false, err
	}
	var value [8]byte
	n, err := unix.Fgetxattr(fd, markSpace()+".overlay.opaque", value[:])
	if errors.Is(err, unix.ENODATA) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading opaque mark: %w", err)
	}
	if !bytes.Equal(value[:n], []byte("y")) {
		return false, fmt.Errorf("opaque mark %q: %w", value[:n], errForeign)
	}
	return true, nil
}

// checkXattrs refuses overlay attributes that our overlay doesn't write. Others
// are the job's own business and stay behind.
func (c *collector) checkXattrs(fd int) error {
	buf := make([]byte, 64<<10) // the kernel's limit for a list
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return fmt.Errorf("listing attributes: %w", err)
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		space, rest, _ := strings.Cut(name, ".overlay.")
		if rest == "" || (space != trustedSpace && space != userSpace) {
			continue
		}
		if space != markSpace() || !slices.Contains(overlayXattrs, rest) {
			return fmt.Errorf("%.100q: %w", name, errForeign)
		}
	}
	return nil
}
