// Package attack is what a hostile program inside a sandbox reports of its
// attempts, one a line. veyra-init holds the program (its mode "attack"),
// sandbox/proof starts it and judges. The package knows names and the form of a
// line only; it must stay small, since PID 1 of every sandbox carries it, and
// Parse must stand anything, since whoever owns a sandbox can write its output.
// Start reading at Try.
package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Mode is the word that makes veyra-init attack: [InitPath, Mode, NAME, ARG…].
const Mode = "attack"

// Names of the attacks. What each tries stands where it is carried out, what
// must come of it in sandbox/proof.
const (
	Identity    = "identity"    // who am I, which rights have I
	Descriptors = "descriptors" // what was left open
	Environment = "environment" // what was left in the environment
	Namespaces  = "namespaces"  // make or enter a namespace, then mount
	Mounts      = "mounts"      // the mount interface, old and new
	Calls       = "calls"       // system calls that reach into the kernel or the host
	Families    = "families"    // socket families and protocols, high bits set as well
	Doors       = "doors"       // the kernel's other entries: 32-bit, x32

	Network   = "network"    // leave by any protocol
	Sockets   = "sockets"    // sockets of the host or of a neighbour
	Terminal  = "terminal"   // type into a terminal
	Init      = "init"       // read, signal, trace or write PID 1 and its file
	Devices   = "devices"    // make device nodes wherever files can be made
	SetID     = "set-id"     // run set-id programs and file capabilities from there
	Plain     = "plain"      // what such a program finds out about itself
	Settings  = "settings"   // write settings of the kernel and the cgroups
	Masked    = "masked"     // read what tells of the host
	Paths     = "paths"      // look for paths of the host
	Root      = "root"       // write to what is not the job's
	Schedule  = "schedule"   // get more of the processor than is due
	PIDs      = "pids"       // fork without end
	Memory    = "memory"     // touch more memory than there is
	Disk      = "disk"       // fill the disk with bytes
	Inodes    = "inodes"     // fill it with files
	Tmpfs     = "tmpfs"      // fill file systems that are memory
	OpenFiles = "open-files" // open without end
	Core      = "core"       // raise the limit of core files
	Stubborn  = "stubborn"   // outlive a deadline
	Flood     = "flood"      // write output without end
	Linger    = "linger"     // leave a process behind that writes on
	Alone     = "alone"      // who else is here
)

// Results of a Try that are no errno. An attempt that a signal ended has the
// signal's name, for example "SIGSYS".
const (
	// Done: the attack worked.
	Done = "done"
	// Nothing: it was carried out and gave nothing, for example an empty file.
	Nothing = "nothing"
	// Seen: no attempt but a fact, told by Detail.
	Seen = "seen"
)

// Try is one attempt: what was tried, what came of it, and in Detail what helps
// to understand it.
type Try struct {
	Name   string // for example "setns" or "mem@/workspace"
	Result string // Done, Nothing, Seen, the name of an errno or of a signal
	Detail string // any bytes, often ""
}

// Bounds of a report. Line counts the bytes of one line with its end.
const (
	MaxTries  = 4096
	MaxName   = 200
	MaxDetail = 1000
	MaxLine   = 8 << 10
	MaxReport = 1 << 20
)

// ErrReport is in the chain of every error about a report that has not the form.
var ErrReport = errors.New("malformed report of an attack")

// Write writes one line: name, result and quoted detail, a space between.
func Write(w io.Writer, t Try) error {
	detail := t.Detail[:min(len(t.Detail), MaxDetail)]
	_, err := fmt.Fprintf(w, "%s %s %s\n", t.Name, t.Result, strconv.QuoteToASCII(detail))
	return err
}

// Parse reads a whole report. Its output is printable and bounded, whatever
// wrote the input: one line that has not the form spoils the report.
func Parse(r io.Reader) ([]Try, error) {
	lines := bufio.NewScanner(io.LimitReader(r, MaxReport+1))
	lines.Buffer(make([]byte, 0, MaxLine), MaxLine)
	var all []Try
	read := 0
	for lines.Scan() {
		if read += len(lines.Bytes()) + 1; read > MaxReport || len(all) == MaxTries {
			return nil, fmt.Errorf("more than %d bytes or %d lines: %w", MaxReport, MaxTries, ErrReport)
		}
		t, err := parseLine(lines.Text())
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading: %w: %w", err, ErrReport)
	}
	return all, nil
}

func parseLine(line string) (Try, error) {
	name, rest, _ := strings.Cut(line, " ")
	result, quoted, _ := strings.Cut(rest, " ")
	detail, err := strconv.Unquote(quoted)
	// strconv.Unquote takes back quotes, too, which could hide the end of a line.
	if err != nil || !strings.HasPrefix(quoted, `"`) || len(detail) > MaxDetail ||
		!word(name, MaxName, "-_./@:+") || !word(result, 32, "_") {
		return Try{}, fmt.Errorf("line %.80q: %w", line, ErrReport)
	}
	return Try{name, result, detail}, nil
}

// word reports whether s has letters, digits and the given others only.
func word(s string, most int, others string) bool {
	if s == "" || len(s) > most {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	}) < 0
}

// Safe makes a name of any text: what a name can't hold becomes "_".
func Safe(text string) string {
	name := strings.Map(func(r rune) rune {
		if word(string(r), 4, "-_./@:+") {
			return r
		}
		return '_'
	}, text[:min(len(text), MaxName)])
	if name == "" {
		return "_"
	}
	return name
}
