// Package ownfile tells whether a file is what its owner put there: one that
// anybody else could have changed decides nothing here.
package ownfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// ErrForeign is wrapped when others than root and this process's user could
// change a file, or put another one in its place.
var ErrForeign = errors.New("others than its owner may change it")

// Check follows links and returns the file's own path, also beside ErrForeign.
// The file, every directory on the way to it and every link that is followed
// must belong to root or to this process's user. File and directories must be
// writable by nobody else; a directory may be if it is sticky, as /tmp is. So the
// name that was given leads to the same file later, too.
func Check(path string) (string, error) {
	if !filepath.IsAbs(path) {
		here, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("looking for %s: %w", path, err)
		}
		path = here + "/" + path // not cleaned: what ".." is depends on links
	}
	w := way{at: "/", ahead: path}
	for w.err == nil && w.ahead != "" {
		w.step()
	}
	if w.err != nil {
		return "", w.err
	}
	w.judge(check(w.at, true))
	return w.at, errors.Join(w.err, w.foreign)
}

// mostLinks is how many links the kernel follows (path_resolution(7)).
const mostLinks = 40

// way goes to a file as the kernel does, and judges what it passes.
type way struct {
	at    string // without a link in it
	ahead string
	links int

	foreign error // the first ErrForeign
	err     error // why there is no way on
}

func (w *way) step() {
	var name string
	if name, w.ahead, _ = strings.Cut(strings.TrimLeft(w.ahead, "/"), "/"); name == "" {
		return
	}
	w.judge(check(w.at, false))
	next := filepath.Join(w.at, name)
	target, err := follow(next)
	w.judge(err)
	if target == "" {
		w.at = next
		return
	}
	if w.links++; w.links > mostLinks {
		w.judge(fmt.Errorf("looking at %s: %w", next, unix.ELOOP))
	}
	if w.ahead = target + "/" + w.ahead; filepath.IsAbs(target) {
		w.at = "/"
	}
}

func (w *way) judge(err error) {
	switch {
	case err == nil:
	case !errors.Is(err, ErrForeign):
		w.err = err
	case w.foreign == nil:
		w.foreign = err
	}
}

// follow returns where a link leads; "" when it is none.
func follow(at string) (string, error) {
	target, err := os.Readlink(at)
	if errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Lstat(at, &st)
	}
	if err != nil {
		return "", fmt.Errorf("looking at %s: %w", at, err)
	}
	return target, checkOwner(at, st)
}

func check(at string, leaf bool) error {
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", at, err)
	}
	if err := checkOwner(at, st); err != nil {
		return err
	}
	sticky := st.Mode&unix.S_ISVTX != 0 && !leaf
	if st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%s has the mode %04o: chmod go-w: %w", at, st.Mode&0o7777, ErrForeign)
	}
	return nil
}

func checkOwner(at string, st unix.Stat_t) error {
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, who may change it: chown it to root: %w", at, st.Uid, ErrForeign)
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
