package policies

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// size is a number of bytes as people write it in a policy: "4GiB", "64 MiB"
// or a bare number. Only binary units are known, since only they are exact.
type size int64

var sizeUnits = []struct {
	suffix string
	shift  uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}

// UnmarshalYAML reads the scalar; anything else is an error with its position.
func (s *size) UnmarshalYAML(decode func(any) error) error {
	var text string
	if err := decode(&text); err != nil {
		return err
	}
	n, err := parseSize(text)
	*s = size(n)
	return err
}

func parseSize(text string) (int64, error) {
	digits, shift := strings.TrimSpace(text), uint(0)
	for _, u := range sizeUnits {
		if rest, found := strings.CutSuffix(digits, u.suffix); found {
			digits, shift = strings.TrimSpace(rest), u.shift
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q: not a number of bytes, KiB, MiB, GiB or TiB", text)
	}
	return n << shift, nil
}
