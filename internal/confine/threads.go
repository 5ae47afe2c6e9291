package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Thread is what the kernel shows of one thread in /proc/PID/task/TID/status.
type Thread struct {
	ID int
	// UIDs and GIDs are the real, effective, saved and file system ids.
	UIDs, GIDs [4]int
	Groups     []int
	// Inheritable to Ambient are capability sets, bit n = capability n.
	Inheritable, Permitted, Effective, Bounding, Ambient uint64
	NoNewPrivs                                           bool
	// Seccomp is 0 for none and 2 for a filter.
	Seccomp int
}

// Threads reads the state of every thread of a process, also of another one.
// Threads that end meanwhile are left out.
func Threads(pid int) ([]Thread, error) {
	files, err := openThreads(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	return readThreads(files)
}

// openThreads opens the status file of every thread. An open file can still be
// read when Landlock and seccomp have closed /proc.
func openThreads(dir string) ([]*os.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing threads: %w", err)
	}
	var files []*os.File
	for _, entry := range entries {
		file, err := os.Open(dir + "/" + entry.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("opening a thread's status: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close() // only read from
	}
}

func readThreads(files []*os.File) ([]Thread, error) {
	var threads []Thread
	for _, file := range files {
		text := make([]byte, 16<<10)
		n, err := file.ReadAt(text, 0) // from 0: the kernel writes it anew
		if errors.Is(err, syscall.ESRCH) {
			continue
		}
		if n == 0 {
			return nil, fmt.Errorf("reading a thread's status: %w", err)
		}
		thread, err := parseThread(text[:n])
		if err != nil {
			return nil, err
		}
		threads = append(threads, thread)
	}
	if len(threads) == 0 {
		return nil, fmt.Errorf("reading threads: none is left: %w", fs.ErrNotExist)
	}
	return threads, nil
}

// parseThread takes the lines that it knows (proc_pid_status(5)) and wants all
// of them: a line that is missing must not read as "zero".
func parseThread(text []byte) (Thread, error) {
	var thread Thread
	fields := thread.fields()
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		set, known := fields[name]
		if !known {
			continue
		}
		if err := set(strings.TrimSpace(value)); err != nil {
			return Thread{}, fmt.Errorf("reading a thread's %s: %w", name, err)
		}
		delete(fields, name)
	}
	if len(fields) != 0 {
		return Thread{}, fmt.Errorf("reading a thread's status: %d lines are missing: %w", len(fields), ErrNotApplied)
	}
	return thread, nil
}

func (t *Thread) fields() map[string]func(string) error {
	return map[string]func(string) error{
		"Pid":        number(&t.ID),
		"Uid":        four(&t.UIDs),
		"Gid":        four(&t.GIDs),
		"Groups":     t.setGroups,
		"CapInh":     mask(&t.Inheritable),
		"CapPrm":     mask(&t.Permitted),
		"CapEff":     mask(&t.Effective),
		"CapBnd":     mask(&t.Bounding),
		"CapAmb":     mask(&t.Ambient),
		"Seccomp":    number(&t.Seccomp),
		"NoNewPrivs": t.setNoNewPrivs,
	}
}

func number(into *int) func(string) error {
	return func(text string) (err error) {
		*into, err = strconv.Atoi(text)
		return err
	}
}

func mask(into *uint64) func(string) error {
	return func(text string) (err error) {
		*into, err = strconv.ParseUint(text, 16, 64)
		return err
	}
}

func four(into *[4]int) func(string) error {
	return func(text string) error {
		words := strings.Fields(text)
		if len(words) != len(into) {
			return fmt.Errorf("%d ids: %w", len(words), strconv.ErrSyntax)
		}
		for i, word := range words {
			id, err := strconv.Atoi(word)
			if err != nil {
				return err
			}
			into[i] = id
		}
		return nil
	}
}

func (t *Thread) setGroups(text string) error {
	for _, word := range strings.Fields(text) {
		id, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		t.Groups = append(t.Groups, id)
	}
	return nil
}

func (t *Thread) setNoNewPrivs(text string) error {
	t.NoNewPrivs = text == "1"
	return nil
}
