// Command testsummary reads the JSON of `go test -json` and shows what a reader
// wants: a line a package as it ends, the whole output of what failed, and why
// a test could not run here. It ends with 1 when anything failed or nothing ran.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// spent is how long one test took, in seconds.
type spent struct {
	name
	seconds float64
}

type name struct{ pkg, test string }

// summary gathers events. Output is kept until its test has passed.
type summary struct {
	out                     io.Writer
	kept                    map[name][]string
	reasons                 map[string]bool
	slow                    []spent
	passed, failed, skipped int
	broken                  bool // a package that failed without a failing test
}

func main() {
	reasons := flag.String("reasons", "", "append the reasons of tests that did not run here to this file")
	flag.Parse()
	s := summary{out: os.Stdout, kept: map[name][]string{}, reasons: map[string]bool{}}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
	if err := s.close(*reasons); err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
	if s.failed > 0 || s.broken || s.passed == 0 {
		os.Exit(1)
	}
}

func (s *summary) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(s.out, lines.Text()) // words of the go command itself
			continue
		}
		s.take(e)
	}
	return lines.Err()
}

func (s *summary) take(e event) {
	key := name{e.Package, e.Test}
	switch e.Action {
	case "output":
		s.kept[key] = append(s.kept[key], e.Output)
		if e.Test == "" && (strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "FAIL\t")) {
			fmt.Fprint(s.out, e.Output)
		}
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "build-fail":
		s.broken = true
	case "pass":
		s.slow = append(s.slow, spent{key, e.Elapsed})
		s.ended(key, &s.passed)
	case "skip":
		s.skip(key)
	case "fail":
		s.fail(key)
	}
}

func (s *summary) ended(key name, count *int) {
	if key.test != "" {
		*count++
	}
	delete(s.kept, key)
}

const notApplicable = "not applicable: "

func (s *summary) skip(key name) {
	for _, line := range s.kept[key] {
		if i := strings.Index(line, notApplicable); i >= 0 {
			s.reasons[strings.TrimSpace(line[i:])] = true
		}
	}
	s.ended(key, &s.skipped)
}

// fail shows everything that the test said. A package fails with its tests; one
// that has no failing test (a panic, a time-out) shows its own output.
func (s *summary) fail(key name) {
	for _, line := range s.kept[key] {
		if key.test != "" || !strings.HasPrefix(line, "FAIL") {
			fmt.Fprint(s.out, line)
		}
	}
	s.broken = s.broken || key.test == ""
	s.ended(key, &s.failed)
}

// slowest shows where the time went: tests and their cases, the longest first,
// from six seconds on; a test holds the time of its cases, too.
func (s *summary) slowest() {
	slices.SortFunc(s.slow, func(a, b spent) int { return cmp.Compare(b.seconds, a.seconds) })
	shown := 0
	for _, t := range s.slow {
		if t.test == "" || t.seconds < 6 || shown == 25 {
			continue
		}
		shown++
		fmt.Fprintf(s.out, "%7.1f s  %s %s\n", t.seconds, path.Base(t.pkg), t.test)
	}
}

// close shows the totals and adds the reasons to a file.
func (s *summary) close(reasons string) error {
	s.slowest()
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	if reasons == "" {
		return nil
	}
	file, err := os.OpenFile(reasons, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	all := make([]string, 0, len(s.reasons))
	for reason := range s.reasons {
		all = append(all, reason+"\n")
	}
	slices.Sort(all)
	_, err = io.WriteString(file, strings.Join(all, ""))
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}
