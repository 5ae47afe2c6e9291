// Package ownfile tells whether a file is what its owner put there: one that
// anybody else could have changed decides nothing here.
package ownfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// ErrForeign is wrapped when others than root and this process's user could
// change a file, or put another one in its place.
var ErrForeign = errors.New("others than its owner may change it")

// Check follows links and returns the file's own path, also beside ErrForeign.
// The file and every
// directory above it must belong to root or to this process's user and be
// writable by nobody else; a directory may be if it is sticky, as /tmp is.
func Check(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", path, err)
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return "", fmt.Errorf("looking for %s: %w", path, err)
	}
	for at := resolved; ; at = filepath.Dir(at) {
		if err := check(at, at == resolved); err != nil {
			return resolved, err
		}
		if at == "/" {
			return resolved, nil
		}
	}
}

func check(at string, leaf bool) error {
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", at, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, who may change it: chown it to root: %w", at, st.Uid, ErrForeign)
	}
	sticky := st.Mode&unix.S_ISVTX != 0 && !leaf
	if st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%s has the mode %04o: chmod go-w: %w", at, st.Mode&0o7777, ErrForeign)
	}
	return nil
}

// Read returns the bytes of a file that Check finds good and that is a regular
// one of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	resolved, err := Check(path)
	if err != nil {
		return nil, err
	}
	return durable.ReadFile(resolved, limit)
}
