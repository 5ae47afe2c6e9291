package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// acceptance is the owner's word that strict may go on with a runtime that has a
// known flaw. Each is a file of STATE/accepted of its own, so that a second one
// and a crash can't lose the first.
type acceptance struct {
	ID string    `json:"id"`
	At time.Time `json:"accepted_at"`
}

// Bounds of what is read there.
const (
	maxAcceptances     = 256
	maxAcceptanceBytes = 4 << 10
)

var acceptanceName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func acceptedDir(state string) string { return filepath.Join(state, "accepted") }

// accept records an acceptance for good. A second time changes nothing but the
// date.
func accept(state, id string, now time.Time) error {
	known, err := policies.AdvisoryIDs()
	if err != nil {
		return err
	}
	if !slices.Contains(known, id) {
		return withCode(exitUsage, "--accept-runtime %.60q: no advisory that strict refuses for has this id; those are %s", id, strings.Join(known, ", "))
	}
	text, err := json.Marshal(acceptance{ID: id, At: now.UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	for _, dir := range []string{state, acceptedDir(state)} {
		if err := durable.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("%w: recording the acceptance: %w", supervisor.ErrState, err)
		}
	}
	if err := durable.WriteFile(filepath.Join(acceptedDir(state), id), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("%w: recording the acceptance: %w", supervisor.ErrState, err)
	}
	return nil
}

// acceptedIDs reads what the owner has accepted. What somebody else could have
// put there is no word of the owner's: an error that wraps supervisor.ErrState.
func acceptedIDs(state string) ([]string, error) {
	dir := acceptedDir(state)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(entries) > maxAcceptances {
		err = fmt.Errorf("more than %d files", maxAcceptances)
	}
	if err == nil {
		err = ownersOnly(dir)
	}
	var ids []string
	for _, entry := range entries {
		// What begins with a dot is what a crash left of a write.
		if err == nil && !strings.HasPrefix(entry.Name(), ".") {
			err = readAcceptance(filepath.Join(dir, entry.Name()))
			ids = append(ids, entry.Name())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: acceptances in %s: %w", supervisor.ErrState, dir, err)
	}
	return ids, nil
}

func readAcceptance(path string) error {
	if err := ownersOnly(path); err != nil {
		return err
	}
	text, err := durable.ReadFile(path, maxAcceptanceBytes)
	if err != nil {
		return err
	}
	var a acceptance
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !acceptanceName.MatchString(a.ID) || a.ID != filepath.Base(path) || a.At.IsZero() {
		return fmt.Errorf("%s is no acceptance of what it is called: remove it, and accept anew", path)
	}
	return nil
}

// ownersOnly wants a file of root's or of this user's that is closed to others.
// The directory above is the supervisor's, so ids are compared and not trusted.
func ownersOnly(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s belongs to uid %d and has the mode %04o: only its owner's, closed to others, counts", path, st.Uid, st.Mode&0o7777)
	}
	return nil
}
