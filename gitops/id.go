package gitops

import (
	"encoding/hex"
	"fmt"
	"time"
)

// ObjectID names a git object: 40 lower-case hex digits, for example
// "4b825dc642cb6eb9a060e54bf8d69288fbee4904" (the empty tree).
type ObjectID string

// ParseObjectID accepts exactly 40 lower-case hex digits. Repositories with
// SHA-256 ids are not supported.
func ParseObjectID(s string) (ObjectID, error) {
	if len(s) != 40 {
		return "", fmt.Errorf("reading object id of %d bytes: want 40 hex digits", len(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", fmt.Errorf("reading object id: byte %d is no lower-case hex digit", i)
		}
	}
	return ObjectID(s), nil
}

// raw gives the 20 bytes of a valid id, zeros of an invalid one.
func (id ObjectID) raw() (b [20]byte) {
	_, _ = hex.Decode(b[:], []byte(id[:min(len(id), 40)]))
	return b
}

// Mode is the mode word of a tree entry as git stores it, for example
// 0100644. Old histories hold words that git no longer writes (0100664);
// untouched entries keep theirs, or every tree above them would change.
type Mode uint32

// The modes that are written today.
const (
	ModeDir     Mode = 0o040000
	ModeFile    Mode = 0o100644
	ModeExec    Mode = 0o100755
	ModeLink    Mode = 0o120000
	ModeGitlink Mode = 0o160000
)

const modeType Mode = 0o170000

// IsFile reports whether m is a regular file's mode, executable or not.
func (m Mode) IsFile() bool { return m&modeType == 0o100000 }

// IsExec reports whether m is a regular file that its owner may execute. Git
// looks at the owner's bit only.
func (m Mode) IsExec() bool { return m.IsFile() && m&0o100 != 0 }

// IsLink reports whether m is a symbolic link's mode.
func (m Mode) IsLink() bool { return m&modeType == ModeLink }

// IsGitlink reports whether m is a submodule's mode.
func (m Mode) IsGitlink() bool { return m&modeType == ModeGitlink }

// IsOdd reports whether m is a file mode that git itself no longer writes.
// A tree with such an entry cannot be computed from a work tree alone.
func (m Mode) IsOdd() bool { return m.IsFile() && m != ModeFile && m != ModeExec }

// BaseUnix is BaseTime in seconds since 1970.
const BaseUnix = 978307200

// BaseTime is the modification time of every file and directory of a base
// layer. It lies in the past, so that build tools which go by times take a
// changed file for newer than anything built from the base.
func BaseTime() time.Time { return time.Unix(BaseUnix, 0).UTC() }
