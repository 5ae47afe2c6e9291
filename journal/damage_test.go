package journal_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/journal"
)

// childArg makes the test binary a writer that says, after each call that came
// back, what must be there; the parent kills it.
const childArg = "__journal"

func contains(text, part string) bool { return strings.Contains(text, part) }

func playChild(mode, state string) int {
	open := journal.Open
	switch mode {
	case "confined":
		open = openConfined
	case "hidden":
		open = openHidden
	}
	j, err := open(state)
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	if mode == "hold" {
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	for n := os.Getpid() << 8; ; n++ { // no run of another writer
		if err := work(j, n); err != nil {
			fmt.Println("failed", err)
			return 1
		}
	}
}

// openHidden opens it by a relative name below a directory that the daemon's
// user can't pass.
func openHidden(state string) (*journal.Journal, error) {
	if err := errors.Join(os.Chmod(filepath.Dir(state), 0o700), os.Chdir(state)); err != nil {
		return nil, err
	}
	return openConfined(".")
}

// openConfined opens the journal as the supervisor does: lock first, then as
// another user behind Landlock and seccomp, with the journal's directory only.
func openConfined(state string) (*journal.Journal, error) {
	if _, err := journal.Lock(state); err != nil { // held until the child ends
		return nil, err
	}
	dir := filepath.Join(state, "journal")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(state, 4321, 4321), os.Chown(dir, 4321, 4321)); err != nil {
		return nil, err
	}
	_, err := confine.Lockdown{
		UID: 4321, GID: 4321, Rules: &confine.Rules{Write: []string{dir}}, Filter: confine.SupervisorFilter,
	}.Apply()
	if err != nil {
		return nil, err
	}
	return journal.OpenLocked(state)
}

// work takes one run through its life and prints each step that is durable.
func work(j *journal.Journal, n int) error {
	ctx, key, body := context.Background(), keyOf(n), fmt.Sprint("evidence ", n)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"accepted", func() error {
			_, _, err := j.Accept(ctx, key, []byte(strings.Repeat("task", n%700)+"!"), "token", someEnd, someTime)
			return err
		}},
		{"checkpoint", func() error { return j.Checkpoint(ctx, key, "step", []byte("value")) }},
		{"drafted", func() error { _, err := j.DraftEvidence(ctx, key, []byte(body), hashOf(body)); return err }},
		{"sealed", func() error { return j.Seal(ctx, key, hashOf(body), "signature") }},
		{"delivered", func() error { return j.Deliver(ctx, key, []byte("receipt")) }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		fmt.Println(step.name, n)
	}
	return nil
}

// spawn starts a child and returns it with its lines.
func spawn(t *testing.T, mode, state string) (*exec.Cmd, *bufio.Scanner, io.Closer) {
	t.Helper()
	child := exec.Command(os.Args[0], childArg, mode, state)
	stdin, err := child.StdinPipe()
	must(t, err)
	stdout, err := child.StdoutPipe()
	must(t, err, child.Start())
	return child, bufio.NewScanner(stdout), stdin
}

// killedWriter lets a child work for some lines, kills it and returns the last
// step that it said of each run.
func killedWriter(t *testing.T, mode, state string, lines int) map[int]string {
	t.Helper()
	child, output, _ := spawn(t, mode, state)
	done := map[int]string{}
	for seen := 0; output.Scan(); seen++ {
		var step string
		var n int
		if _, err := fmt.Sscan(output.Text(), &step, &n); err != nil {
			t.Fatalf("the writer says %q", output.Text())
		}
		done[n] = step
		if seen == lines {
			must(t, child.Process.Kill())
		}
	}
	_ = child.Wait()
	if len(done) == 0 {
		t.Fatal("the writer did nothing")
	}
	return done
}

// rank orders the steps of a run.
var rank = map[string]int{"accepted": 1, "checkpoint": 2, "drafted": 3, "sealed": 4, "delivered": 5}

func checkDone(t *testing.T, j *journal.Journal, done map[int]string) {
	t.Helper()
	for n, step := range done {
		rec, err := j.Get(t.Context(), keyOf(n))
		if err != nil {
			t.Fatalf("run %d was %s: %v", n, step, err)
		}
		steps, err := j.Checkpoints(t.Context(), keyOf(n))
		must(t, err)
		there := map[string]bool{
			"accepted": true, "checkpoint": len(steps) == 1, "drafted": rec.Draft != nil || rec.Seal != nil,
			"sealed": rec.Seal != nil, "delivered": rec.State == journal.Delivered,
		}
		for name, r := range rank {
			if r <= rank[step] && !there[name] {
				t.Errorf("run %d was %s, and %s is gone: %+v", n, step, name, rec)
			}
		}
	}
}

// TestJ01KilledWriterLosesNothing covers J01's half that lies in the journal.
func TestJ01KilledWriterLosesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		state := t.TempDir()
		done := killedWriter(t, "work", state, random.IntN(60))
		j, err := journal.Open(state)
		must(t, err)
		checkDone(t, j, done)
		must(t, j.Close())
	}
}

// TestJ03DamageIsSeen covers J03: cut or zeroed at page and frame borders and at
// random offsets, the journal holds all that was committed, or is ErrState and
// stays as it is.
func TestJ03DamageIsSeen(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	state := t.TempDir()
	done := killedWriter(t, "work", state, 1200) // beyond the first fold of the log into the file
	good := snapshot(t, state)
	refused := 0
	for _, hurt := range damages(random, good) {
		copied := t.TempDir()
		must(t, restore(copied, good, hurt))
		before := snapshot(t, copied)
		j, err := journal.Open(copied)
		if err == nil {
			checkDone(t, j, done)
			must(t, j.Close())
			if t.Failed() {
				t.Fatalf("undetected: %v", hurt)
			}
			continue
		}
		refused++
		if !errors.Is(err, journal.ErrState) {
			t.Fatalf("%v: got %v, want ErrState", hurt, err)
		}
		for name, text := range snapshot(t, copied) {
			if name != "lock" && !strings.HasSuffix(name, "-shm") && !bytes.Equal(text, before[name]) {
				t.Fatalf("%v: %s was changed", hurt, name)
			}
		}
	}
	if refused < 20 {
		t.Errorf("only %d damages were seen: is the test blind?", refused)
	}
}

// damage cuts a file at an offset, or zeroes some bytes from there.
type damage struct {
	file   string
	offset int
	zeroed int // 0 cuts
}

func damages(random *rand.Rand, files map[string][]byte) []damage {
	var all []damage
	for _, file := range []string{"journal/journal.db", "journal/journal.db-wal", "journal/written"} {
		size := len(files[file])
		if size == 0 {
			continue
		}
		var offsets []int
		for range 40 {
			border := random.IntN(size)/4096*4096 + 32*random.IntN(2) // pages, and frames behind their header
			offsets = append(offsets, border-1, border, border+1, random.IntN(size))
		}
		for _, offset := range append(offsets, 0, size-1) {
			if offset < 0 || offset >= size {
				continue
			}
			all = append(all, damage{file, offset, 0}, damage{file, offset, 1 + random.IntN(5000)})
		}
	}
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	if os.Getenv("VEYRA_SOAK") == "" { // each open syncs many times
		all = all[:min(len(all), 60)]
	}
	return all
}

func snapshot(t *testing.T, state string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(state, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "reserve" {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(state, path)
		files[name] = text
		return err
	})
	must(t, err)
	return files
}

// restore writes the files of a killed daemon, but for the shared memory, which
// a new boot does not have, and one of them damaged.
func restore(state string, files map[string][]byte, hurt damage) error {
	if err := errors.Join(os.Chmod(state, 0o700), os.Mkdir(filepath.Join(state, "journal"), 0o700)); err != nil {
		return err
	}
	for name, text := range files {
		if strings.HasSuffix(name, "-shm") {
			continue
		}
		text = bytes.Clone(text)
		if name == hurt.file && hurt.zeroed == 0 {
			text = text[:hurt.offset]
		} else if name == hurt.file {
			clear(text[hurt.offset:min(len(text), hurt.offset+hurt.zeroed)])
		}
		if err := os.WriteFile(filepath.Join(state, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// TestWorksBehindTheSupervisorsWalls shows that SQLite needs nothing that the
// supervisor gives up.
func TestWorksBehindTheSupervisorsWalls(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: switching to another uid needs root")
	}
	if confine.BuiltWithCgo() {
		t.Skip("not applicable: a cgo build can't confine its threads")
	}
	base, err := os.MkdirTemp("/tmp", "journal-") // another user must pass
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	state := filepath.Join(base, "state")
	must(t, os.Chmod(base, 0o755), os.Mkdir(state, 0o700))
	done := killedWriter(t, "confined", state, 40)
	j := open(t, state) // root reads it, as commands without a daemon do
	checkDone(t, j, done)
	accept(t, j, keyOf(1_000_000))
	must(t, j.Close())
	entries, err := os.ReadDir(filepath.Join(state, "journal"))
	must(t, err)
	for _, entry := range entries {
		info, err := entry.Info()
		must(t, err)
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 4321 {
			t.Errorf("after root's visit %s belongs to %d", entry.Name(), uid)
		}
	}
	killedWriter(t, "confined", state, 10)
	killedWriter(t, "hidden", state, 10)
}
