package policies

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// release is an upstream version: numbers, and what comes before the release.
type release struct {
	numbers []int
	before  int // rank of a pre-release, released for none
}

const released = math.MaxInt

// releaseText takes what programs print and what packages carry before their own
// revision: 1.4.0-rc.2+dev, 1.0.0~rc93, v1.30, 20.10.24+dfsg1, release-20260914.0.
// What follows is a packager's and does not count.
var releaseText = regexp.MustCompile(`^(?:v|release-)?(\d+(?:\.\d+){0,5})(?:[-~]?(alpha|beta|dev|rc)[.-]?(\d{0,6}))?`)

// preRanks order the kinds of pre-releases; each has room for its numbers.
var preRanks = map[string]int{"dev": 0, "alpha": 1_000_000, "beta": 2_000_000, "rc": 3_000_000}

func parseRelease(text string) (release, error) {
	found := releaseText.FindStringSubmatch(strings.TrimSpace(text))
	if found == nil {
		return release{}, fmt.Errorf("version %.60q has no numbers", text)
	}
	r := release{before: released}
	for _, word := range strings.Split(found[1], ".") {
		n, err := strconv.Atoi(word)
		if err != nil || len(word) > 9 {
			return release{}, fmt.Errorf("version %.60q has a number that no version has", text)
		}
		r.numbers = append(r.numbers, n)
	}
	if found[2] != "" {
		n, _ := strconv.Atoi("0" + found[3])
		r.before = preRanks[found[2]] + n
	}
	return r, nil
}

// compare orders by Semantic Versioning, for any count of numbers.
func (r release) compare(other release) int {
	for i := range max(len(r.numbers), len(other.numbers)) {
		if c := cmp.Compare(numberAt(r.numbers, i), numberAt(other.numbers, i)); c != 0 {
			return c
		}
	}
	return cmp.Compare(r.before, other.before)
}

func numberAt(numbers []int, i int) int {
	if i < len(numbers) {
		return numbers[i]
	}
	return 0
}

// comparePackages orders versions of packages of one system: deb by
// deb-version(7), rpm by rpm-version(7). Both have epoch:upstream-revision.
func comparePackages(system, a, b string) int {
	ea, ua, ra := splitPackage(a)
	eb, ub, rb := splitPackage(b)
	order := compareDeb
	if system == SystemRPM {
		order = compareRPM
	}
	return cmp.Or(order(ea, eb), order(ua, ub), order(ra, rb))
}

// splitPackage cuts at the first colon and the last dash. No epoch is 0, and no
// revision is an empty one.
func splitPackage(version string) (epoch, upstream, revision string) {
	epoch, rest, found := strings.Cut(version, ":")
	if !found {
		epoch, rest = "0", version
	}
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		return epoch, rest[:i], rest[i+1:]
	}
	return epoch, rest, ""
}

// Upstream is the version of what was packaged, which the program mostly says of
// itself.
func (p Package) Upstream() string {
	_, upstream, _ := splitPackage(p.Version)
	return upstream
}

// compareDeb takes turns of text without digits and of numbers. In the text "~"
// comes before the end, letters before all else.
func compareDeb(a, b string) int {
	for a != "" || b != "" {
		textA, textB := before(&a, isDigit), before(&b, isDigit)
		if c := slices.Compare(debRanks(textA), debRanks(textB)); c != 0 {
			return c
		}
		if c := compareDigits(before(&a, notDigit), before(&b, notDigit)); c != 0 {
			return c
		}
	}
	return 0
}

// debRanks ends with the rank of an end, so that "~" is less than nothing.
func debRanks(text string) []int {
	ranks := make([]int, 0, len(text)+1)
	for _, c := range []byte(text) {
		switch {
		case c == '~':
			ranks = append(ranks, -1)
		case c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z':
			ranks = append(ranks, int(c))
		default:
			ranks = append(ranks, int(c)+256)
		}
	}
	return append(ranks, 0)
}

// compareRPM takes turns of words; what separates them does not count, but "~"
// comes before the end and "^" after it. A number is above a word of letters.
func compareRPM(a, b string) int {
	for {
		before(&a, isWord)
		before(&b, isWord)
		tildeA, tildeB := strings.HasPrefix(a, "~"), strings.HasPrefix(b, "~")
		caretA, caretB := strings.HasPrefix(a, "^"), strings.HasPrefix(b, "^")
		switch {
		case tildeA && tildeB, caretA && caretB:
			a, b = a[1:], b[1:]
			continue
		case tildeA:
			return -1
		case tildeB:
			return 1
		case a == "" || b == "":
			return cmp.Compare(len(a), len(b))
		case caretA: // below anything that goes on
			return -1
		case caretB:
			return 1
		}
		if c := compareWords(&a, &b); c != 0 {
			return c
		}
	}
}

func compareWords(a, b *string) int {
	digitsA, digitsB := isDigit((*a)[0]), isDigit((*b)[0])
	switch {
	case digitsA && digitsB:
		return compareDigits(before(a, notDigit), before(b, notDigit))
	case digitsA:
		return 1
	case digitsB:
		return -1
	}
	return strings.Compare(before(a, notLetter), before(b, notLetter))
}

// before takes the bytes up to the first that ends them off the text.
func before(text *string, ends func(byte) bool) string {
	for i := range len(*text) {
		if ends((*text)[i]) {
			head := (*text)[:i]
			*text = (*text)[i:]
			return head
		}
	}
	head := *text
	*text = ""
	return head
}

func isDigit(c byte) bool   { return c >= '0' && c <= '9' }
func notDigit(c byte) bool  { return !isDigit(c) }
func isLetter(c byte) bool  { return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' }
func notLetter(c byte) bool { return !isLetter(c) }

// isWord ends what only separates.
func isWord(c byte) bool { return isDigit(c) || isLetter(c) || c == '~' || c == '^' }

// compareDigits orders numbers of any length.
func compareDigits(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
