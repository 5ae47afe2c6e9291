package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	bindingFile = "binding.json"
	linkFile    = "link.json"
	// stateVersion is the version of both files; another one is ErrState.
	stateVersion = 1
	// maxStateBytes bounds a file of ours; a larger one was not written by us.
	maxStateBytes = 64 << 10
)

// binding is the content of binding.json: whom this identity belongs to. It
// exists from the claim on; ConfirmedAt is set by the first beat answered 200.
// RuntimeID and PublicKey repeat the identity, so that a swapped key or file
// shows (attack case H10).
type binding struct {
	Version     int                        `json:"version"`
	RuntimeID   protocol.RuntimeID         `json:"runtime_id"`
	PublicKey   string                     `json:"public_key"`
	AgentID     protocol.AgentID           `json:"agent_id"`
	AgentName   string                     `json:"agent_name"`
	Origin      protocol.Origin            `json:"origin"`
	Credential  protocol.RuntimeCredential `json:"runtime_credential"`
	ClaimedAt   time.Time                  `json:"claimed_at"`
	ConfirmedAt time.Time                  `json:"confirmed_at,omitzero"`
	RevokedAt   time.Time                  `json:"revoked_at,omitzero"`
}

// store reads and writes the two files of STATE/identity/binding.
type store struct {
	dir string
}

// checkDir refuses a directory that others could have written to.
func (s store) checkDir() error {
	st, err := os.Lstat(s.dir)
	switch {
	case err != nil:
		return stateError(s.dir, "%v", err)
	case !st.IsDir():
		return stateError(s.dir, "not a directory")
	case st.Mode().Perm()&0o077 != 0:
		return stateError(s.dir, "mode %04o is open to others, must be 0700", st.Mode().Perm())
	}
	if owner := ownerOf(st); owner != os.Geteuid() && os.Geteuid() != 0 {
		return stateError(s.dir, "belongs to uid %d, not to us", owner)
	}
	return nil
}

func ownerOf(st fs.FileInfo) int {
	if sys, isStat := st.Sys().(*syscall.Stat_t); isStat {
		return int(sys.Uid)
	}
	return -1
}

// checkOwner wants a file to be ours. Before the daemon gives up root it reads
// as root what its later id has written: then a file must belong to root or to
// whom its directory was given.
func (s store) checkOwner(path string, st fs.FileInfo) error {
	owner := ownerOf(st)
	if owner == os.Geteuid() {
		return nil
	}
	if dir, err := os.Lstat(s.dir); err == nil && os.Geteuid() == 0 && owner == ownerOf(dir) {
		return nil
	}
	return stateError(path, "belongs to uid %d, not to us", owner)
}

// read fills v from a file; false means that the file does not exist.
func (s store) read(name string, v any) (bool, error) {
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, stateError(path, "%v", err)
	}
	defer f.Close()
	if err := s.checkFile(path, f); err != nil {
		return false, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxStateBytes+1))
	if err != nil || len(raw) > maxStateBytes {
		return false, stateError(path, "longer than %d bytes or unreadable", maxStateBytes)
	}
	return true, decodeState(path, raw, v)
}

func (s store) checkFile(path string, f *os.File) error {
	st, err := f.Stat()
	switch {
	case err != nil:
		return stateError(path, "%v", err)
	case !st.Mode().IsRegular():
		return stateError(path, "not a regular file")
	case st.Mode().Perm()&0o077 != 0:
		return stateError(path, "mode %04o is open to others, must be 0600", st.Mode().Perm())
	}
	return s.checkOwner(path, st)
}

// decodeState is strict: these files are written by this program only.
func decodeState(path string, raw []byte, v any) error {
	var versioned struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(raw, &versioned); err != nil {
		return stateError(path, "not JSON")
	}
	if versioned.Version != stateVersion {
		return stateError(path, "version %d is not one that this program knows", versioned.Version)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil || dec.More() {
		return stateError(path, "not what this program writes")
	}
	return nil
}

// write replaces a file. A crash leaves the old or the new content, whole.
func (s store) write(name string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	return durable.WriteFile(filepath.Join(s.dir, name), append(raw, '\n'), 0o600)
}
