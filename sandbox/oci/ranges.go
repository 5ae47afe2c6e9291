package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostlock"
)

const (
	// firstRange lies above what distributions give to users and below 2^31,
	// which some tools can't pass.
	firstRange = 1_879_048_192
	rangeSize  = 65_536
	rangeCount = (1<<31 - firstRange) / rangeSize
)

// idRange is a block of host ids that one job holds. The lock on its file ends
// with the runner, so a crash gives the range back.
type idRange struct {
	first uint32
	lock  *hostlock.Lock
}

// idSpace is where ranges are taken from.
type idSpace struct {
	first, count uint32 // the first id; how many ranges
	reserved     []span // not ours to give
}

// findIDs is the host's high ids as far as /etc/subuid and /etc/subgid leave them
// to us; or, as an ordinary user, what was mapped behind that user's own id.
func findIDs(rootless bool) (idSpace, error) {
	if rootless {
		return mappedIDs("/proc/self/uid_map")
	}
	reserved, err := readReserved("/etc/subuid", "/etc/subgid")
	return idSpace{firstRange, rangeCount, reserved}, err
}

// mappedIDs reads the line behind the one of our own id.
func mappedIDs(path string) (idSpace, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return idSpace{}, fmt.Errorf("reading the runner's ids: %w", err)
	}
	var own, outside, one, first, block, count uint32
	if n, err := fmt.Sscan(string(raw), &own, &outside, &one, &first, &block, &count); n != 6 || err != nil || first != 1 {
		return idSpace{}, fmt.Errorf("runner's ids %.80q: %w", raw, errNoRange)
	}
	return idSpace{first: first, count: count / rangeSize}, nil
}

// take locks the first free range. root is the run directory that all instances
// share.
func (s idSpace) take(root *os.Root) (*idRange, error) {
	for i := range s.count {
		first := s.first + i*rangeSize
		if overlaps(s.reserved, first) {
			continue
		}
		lock, err := hostlock.TakeIn(root, "ids", strconv.FormatUint(uint64(first), 10))
		if errors.Is(err, hostlock.ErrHeld) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &idRange{first: first, lock: lock}, nil
	}
	return nil, errNoRange
}

// span is a block of ids that belongs to somebody else.
type span struct{ first, count uint64 }

func overlaps(reserved []span, first uint32) bool {
	for _, s := range reserved {
		if uint64(first) < s.first+s.count && s.first < uint64(first)+rangeSize {
			return true
		}
	}
	return false
}

// readReserved reads what the host's administrators gave to users. A missing
// file reserves nothing; a line that can't be read is an error, since the ids
// of a user may not be taken by guess.
func readReserved(paths ...string) ([]span, error) {
	var all []span
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading subordinate ids: %w", err)
		}
		spans, err := parseReserved(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		all = append(all, spans...)
	}
	return all, nil
}

func parseReserved(f *os.File) ([]span, error) {
	var all []span
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, ":")
		if len(parts) != 3 {
			return nil, fmt.Errorf("line %q: %w", line, errReserved)
		}
		first, err := strconv.ParseUint(parts[1], 10, 32)
		count, err2 := strconv.ParseUint(parts[2], 10, 32)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("line %q: %w", line, errReserved)
		}
		all = append(all, span{first, count})
	}
	return all, lines.Err()
}

var (
	errNoRange  = errors.New("no free id range on this host")
	errReserved = errors.New("not name:first:count")
)
