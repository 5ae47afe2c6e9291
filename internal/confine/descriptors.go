package confine

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CloseFrom marks every descriptor from first upwards close-on-exec, except
// those in keep, so that what a careless parent left open never reaches a child
// of ours. Descriptors that os/exec is told to pass are not concerned: it
// duplicates them. Call it first in main, before goroutines open anything.
func CloseFrom(first int, keep ...int) error {
	for _, gap := range gaps(first, keep) {
		if err := unix.CloseRange(gap[0], gap[1], unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("marking descriptors from %d close-on-exec: %w", gap[0], err)
		}
	}
	return nil
}

// gaps returns the ranges from first to the last possible descriptor that hold
// none of keep.
func gaps(first int, keep []int) [][2]uint {
	next := uint(max(first, 0))
	var out [][2]uint
	for _, fd := range slices.Sorted(slices.Values(keep)) {
		if fd < 0 || uint(fd) < next {
			continue
		}
		if uint(fd) > next {
			out = append(out, [2]uint{next, uint(fd) - 1})
		}
		next = uint(fd) + 1
	}
	return append(out, [2]uint{next, math.MaxUint32})
}

// CloseForeign closes every descriptor from first upwards but the anonymous
// inodes (epoll, eventfd) that the Go runtime opened for itself. A process that
// must hold a short, known list of descriptors calls it before it opens more.
func CloseForeign(first int) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing own descriptors: %w", err)
	}
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < first {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:") {
			continue // gone already (the listing's own), or the runtime's
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("closing inherited descriptor %d: %w", fd, err)
		}
	}
	return nil
}
