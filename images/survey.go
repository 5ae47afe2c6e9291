package images

import (
	"archive/tar"
	"path"
	"strings"
)

// Limits bounds what an image may hold. Sizes are bytes.
type Limits struct {
	Layers  int   `json:"layers"`
	Entries int   `json:"entries"` // of all layers together
	Blob    int64 `json:"blob"`    // one layer as stored
	Bytes   int64 `json:"bytes"`   // all files of all layers, unpacked
}

// DefaultLimits fits the largest toolchain images (a JDK with Gradle, a CUDA
// runtime) and is far below what hurts a host.
func DefaultLimits() Limits {
	return Limits{Layers: 128, Entries: 500_000, Blob: 4 << 30, Bytes: 8 << 30}
}

const (
	maxName      = 4095 // PATH_MAX without the NUL
	maxComponent = 255  // NAME_MAX
	maxDepth     = 128
	maxID        = 65_535 // a job's id range has 65,536 ids
)

// kind is what an image has at a path so far.
type kind byte

const (
	absent kind = iota
	directory
	regular
	link // symbolic
	gone // removed by a whiteout
)

// survey follows the entries of an image's layers in order, before anything is
// unpacked, and refuses what a root file system has no need for. The rules are
// narrower than the format: a `..` or an absolute name could be read as meant
// inside the root, and a parser that reads it otherwise is the next CVE
// (attack case A17).
type survey struct {
	limits  Limits
	seen    map[string]kind
	entries int
	bytes   int64
}

func newSurvey(limits Limits) *survey {
	return &survey{limits: limits, seen: map[string]kind{".": directory}}
}

// entry judges one header and remembers it.
func (s *survey) entry(header *tar.Header) error {
	s.entries++
	if s.entries > s.limits.Entries {
		return refuse("", "more than %d entries", s.limits.Entries)
	}
	name, err := cleanName(header.Name, header.Name)
	if err != nil {
		return err
	}
	if err := checkHeader(header); err != nil {
		return err
	}
	if err := s.parents(name, header.Name); err != nil {
		return err
	}
	if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
		return s.whiteout(name, header)
	}
	return s.place(name, header)
}

// place handles everything but whiteouts.
func (s *survey) place(name string, header *tar.Header) error {
	found := regular
	switch header.Typeflag {
	case tar.TypeReg:
		// A sparse file's size is its logical one: no stream length bounds it.
		if header.Size < 0 || header.Size > s.limits.Bytes-s.bytes {
			return refuse(header.Name, "the files are larger than %d bytes", s.limits.Bytes)
		}
		s.bytes += header.Size
	case tar.TypeDir:
		found = directory
	case tar.TypeSymlink:
		found = link
		if header.Linkname == "" || len(header.Linkname) > maxName || strings.Contains(header.Linkname, "\x00") {
			return refuse(header.Name, "its link target is empty, too long or holds a zero byte")
		}
	case tar.TypeLink:
		if err := s.hardLink(header); err != nil {
			return err
		}
	default:
		return refuse(header.Name, "is a device, a pipe or of an unknown type (%q)", header.Typeflag)
	}
	if err := checkMountPoint(name, header, found); err != nil {
		return err
	}
	s.seen[name] = found
	return nil
}

// hardLink wants a regular file that an earlier entry has put there.
func (s *survey) hardLink(header *tar.Header) error {
	target, err := cleanName(header.Linkname, header.Name)
	if err != nil {
		return err
	}
	if err := s.parents(target, header.Name); err != nil {
		return err
	}
	if s.seen[target] != regular {
		return refuse(header.Name, "is a hard link to something that is not a file of this image")
	}
	return nil
}

// parents refuses a path that leads through a link or a file. Debian's /bin is
// a link, but an archive of a real tree names files below /usr/bin.
func (s *survey) parents(name, written string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		switch s.seen[dir] {
		case link:
			return refuse(written, "leads through the link %.100q", dir)
		case regular:
			return refuse(written, "leads through the file %.100q", dir)
		}
	}
	return nil
}

const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// whiteout takes the two forms that the OCI layer format knows. What was below
// a removed directory stays remembered: at worst a strange image is refused.
func (s *survey) whiteout(name string, header *tar.Header) error {
	base := path.Base(name)
	if header.Typeflag != tar.TypeReg || header.Size != 0 {
		return refuse(header.Name, "is a whiteout that is not an empty file")
	}
	if base == whiteoutOpaque {
		return nil
	}
	removed := strings.TrimPrefix(base, whiteoutPrefix)
	if removed == "" || removed == "." || removed == ".." || strings.HasPrefix(removed, whiteoutPrefix) {
		return refuse(header.Name, "is a whiteout of no known form")
	}
	s.seen[path.Join(path.Dir(name), removed)] = gone
	return nil
}

// cleanName returns the path without "./" and a closing slash. Nothing else is
// repaired.
func cleanName(name, written string) (string, error) {
	switch {
	case name == "" || len(name) > maxName:
		return "", refuse(written, "its name is empty or longer than %d bytes", maxName)
	case strings.Contains(name, "\x00"):
		return "", refuse(written, "its name holds a zero byte")
	case name[0] == '/':
		return "", refuse(written, "its name is absolute")
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if name == "" || name == "." {
		return ".", nil
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxDepth {
		return "", refuse(written, "lies more than %d directories deep", maxDepth)
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || len(part) > maxComponent {
			return "", refuse(written, "its name has the component %.20q", part)
		}
	}
	return name, nil
}

// checkHeader looks at what an entry asks for beside its name.
func checkHeader(header *tar.Header) error {
	if header.Uid < 0 || header.Uid > maxID || header.Gid < 0 || header.Gid > maxID {
		return refuse(header.Name, "belongs to an id above %d", maxID)
	}
	for record := range header.PAXRecords {
		attribute, found := strings.CutPrefix(record, "SCHILY.xattr.")
		if found && (!strings.HasPrefix(attribute, "user.") || strings.HasPrefix(attribute, "user.overlay.")) {
			// trusted.overlay.* would steer the overlay that lies above,
			// security.capability would hand out capabilities.
			return refuse(header.Name, "carries the extended attribute %.60q", attribute)
		}
	}
	return nil
}

// checkMountPoint keeps /dev, /proc and /sys to what mounts can cover.
func checkMountPoint(name string, header *tar.Header, found kind) error {
	top, below, inside := strings.Cut(name, "/")
	if name == "." && found != directory {
		return refuse(header.Name, "would replace the root directory")
	}
	if top != "dev" && top != "proc" && top != "sys" {
		return nil
	}
	if !inside && found != directory {
		return refuse(header.Name, "is not a directory")
	}
	emptyFile := header.Typeflag == tar.TypeReg && header.Size == 0
	if inside && found != directory && !emptyFile {
		return refuse(header.Name, "puts %.60q into /%s", below, top)
	}
	return nil
}
