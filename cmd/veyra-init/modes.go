package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// errUsage is a mode or an argument that makes no sense.
var errUsage = errors.New("usage: unpack DIR, read PATH [MAX], write PATH")

// errTooLarge is a file above the caller's limit; nothing of it was written.
var errTooLarge = errors.New("file is larger than allowed")

// runMode is init as an ordinary command of uid 1000: it has no more rights
// than the job, so a mistake here harms the job alone. It returns the exit
// status; see initwire's Mode constants. What attack does has its own files.
func runMode(args []string, in io.Reader, out, errs io.Writer) int {
	if args[0] == attack.Mode && len(args) > 1 {
		return runAttack(args[1:], out)
	}
	err := mode(args, in, out)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errs, "veyra-init:", err)
	return modeStatus(err)
}

func mode(args []string, in io.Reader, out io.Writer) error {
	switch {
	case args[0] == "unpack" && len(args) == 2:
		return unpack(args[1], in)
	case args[0] == "read" && (len(args) == 2 || len(args) == 3):
		return readFile(args[1:], out)
	case args[0] == "write" && len(args) == 2:
		return writeFile(args[1], in)
	case args[0] == initwire.BoundMode:
		return bound(args[1:], in, out)
	}
	return errUsage
}

func modeStatus(err error) int {
	switch {
	case errors.Is(err, errUsage):
		return initwire.ModeUsage
	case errors.Is(err, errTooLarge):
		return initwire.ModeTooLarge
	case errors.Is(err, fs.ErrNotExist):
		return initwire.ModeNotFound
	case errors.Is(err, errOutside), errors.Is(err, errNotRegular), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return initwire.ModeRefused
	}
	return initwire.ModeFailed
}

// readFile writes the regular file at args[0] to out, if it is not larger than
// args[1] bytes.
func readFile(args []string, out io.Writer) error {
	limit := int64(-1)
	if len(args) == 2 {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || n < 0 {
			return errUsage
		}
		limit = n
	}
	file, size, err := openRegular(args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	if limit >= 0 && size > limit {
		return fmt.Errorf("%q has %d bytes: %w", args[0], size, errTooLarge)
	}
	// Not beyond the size that was checked, should the file grow meanwhile.
	if _, err := io.Copy(out, io.LimitReader(file, size)); err != nil {
		return fmt.Errorf("reading %q: %w", args[0], err)
	}
	return nil
}

// openRegular opens without following a link and without waiting for the other
// end of a FIFO, and asks for the type after the open.
func openRegular(p string) (*os.File, int64, error) {
	dir, name, err := openParent(p, openDir)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) { // a socket
		err = errNotRegular
	}
	if err != nil {
		return nil, 0, fmt.Errorf("opening %q: %w", p, err)
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = file.Close()
		return nil, 0, fmt.Errorf("opening %q: %w", p, errors.Join(errNotRegular, err))
	}
	return file, st.Size, nil
}

// writeFile writes in to a new file at p. A regular file that was there lends
// its executable bit; anything else of that name is refused.
func writeFile(p string, in io.Reader) error {
	dir, name, err := openParent(p, makeDirs)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// Created anew instead of written over: another name of the same file
	// keeps its content, and a lower layer's file is not copied up first.
	perm, err := oldMode(dir, name)
	if err != nil {
		return fmt.Errorf("writing %q: %w", p, err)
	}
	file, err := createAt(dir, name, perm)
	if err != nil {
		return fmt.Errorf("writing %q: %w", p, err)
	}
	if _, err := io.Copy(file, bufio.NewReaderSize(in, 64<<10)); err != nil {
		_ = file.Close() // the first error says more
		return fmt.Errorf("writing %q: %w", p, err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("writing %q: %w", p, err)
	}
	return nil
}

// oldMode is 0755 when a file of that name exists and its owner may execute it.
func oldMode(dir int, name string) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0o644, nil
	case err != nil:
		return 0, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, errNotRegular
	case st.Mode&0o100 != 0:
		return 0o755, nil
	}
	return 0o644, nil
}
