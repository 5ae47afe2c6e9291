// Command findings judges what govulncheck found: it reads the check's JSON
// from standard input and fails on every advisory whose code is called and that
// the list of accepted findings doesn't name.
//
//	govulncheck -format json ./... | findings [-due] ACCEPTED
//
// A line of the list is an id, a review date and the reason; # begins a
// comment. A line that no finding needs any more, or with -due one whose date
// is over, is a fault too: the list may only shrink by being looked at.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	args, due := os.Args[1:], false
	if len(args) > 0 && args[0] == "-due" {
		args, due = args[1:], true
	}
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: findings [-due] ACCEPTED <JSON")
		os.Exit(2)
	}
	list, err := os.Open(args[0])
	if err == nil {
		err = run(os.Stdin, list, os.Stdout, due, time.Now())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "findings:", err)
		os.Exit(1)
	}
}

func run(found, list io.Reader, out io.Writer, due bool, now time.Time) error {
	accepted, err := readAccepted(list)
	if err != nil {
		return err
	}
	called, scanned, err := calledAdvisories(found)
	if err != nil {
		return err
	}
	if !scanned {
		return errors.New("the check said nothing: it did not run to its end")
	}
	return judge(called, accepted, out, due, now)
}

func judge(called map[string]string, accepted map[string]entry, out io.Writer, due bool, now time.Time) error {
	faults := 0
	for _, id := range sorted(called) {
		e, known := accepted[id]
		switch {
		case !known:
			faults++
			fmt.Fprintf(out, "%s is reached: %s\n", id, called[id])
		case due && now.After(e.review):
			faults++
			fmt.Fprintf(out, "%s was accepted until %s: look again\n", id, e.review.Format(time.DateOnly))
		default:
			fmt.Fprintf(out, "%s accepted until %s: %s\n", id, e.review.Format(time.DateOnly), e.reason)
		}
	}
	for _, id := range sorted(accepted) {
		if _, needed := called[id]; !needed {
			faults++
			fmt.Fprintf(out, "%s is accepted, but no longer found: remove its line\n", id)
		}
	}
	if len(called) == 0 {
		fmt.Fprintln(out, "no advisory reaches our code")
	}
	if faults > 0 {
		return fmt.Errorf("%d findings", faults)
	}
	return nil
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

type entry struct {
	review time.Time
	reason string
}

func readAccepted(list io.Reader) (map[string]entry, error) {
	accepted := map[string]entry{}
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if len(words) < 3 {
			return nil, fmt.Errorf("accepted line %q: want id, review date and reason", lines.Text())
		}
		review, err := time.Parse(time.DateOnly, words[1])
		if err != nil {
			return nil, fmt.Errorf("accepted line %q: %w", lines.Text(), err)
		}
		accepted[words[0]] = entry{review, strings.Join(words[2:], " ")}
	}
	return accepted, lines.Err()
}

// calledAdvisories returns the advisories with a function of theirs in a trace,
// and whether the check came to its end: it says at which level it looked.
func calledAdvisories(found io.Reader) (map[string]string, bool, error) {
	called, scanned := map[string]string{}, false
	for decoder := json.NewDecoder(found); ; {
		var message struct {
			SBOM    json.RawMessage `json:"SBOM"`
			Finding *struct {
				OSV   string `json:"osv"`
				Trace []struct {
					Module   string `json:"module"`
					Version  string `json:"version"`
					Package  string `json:"package"`
					Function string `json:"function"`
				} `json:"trace"`
			} `json:"finding"`
		}
		err := decoder.Decode(&message)
		if errors.Is(err, io.EOF) {
			return called, scanned, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("reading the check's answer: %w", err)
		}
		scanned = scanned || message.SBOM != nil
		if f := message.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			called[f.OSV] = fmt.Sprintf("%s.%s of %s %s", f.Trace[0].Package, f.Trace[0].Function, f.Trace[0].Module, f.Trace[0].Version)
		}
	}
}
