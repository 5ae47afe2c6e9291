package journal_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
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
	"time"

	"github.com/veyra-labs/veyra-sandboxd/journal"
)

// childArg makes the test binary a writer that says, after each call that came
// back, what must be there; the parent kills it.
const childArg = "__journal"

func contains(text, part string) bool { return strings.Contains(text, part) }

func playChild(mode, state string) int {
	j, err := journal.Open(state)
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	if mode == "hold" {
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	for n := 0; ; n++ {
		if err := work(j, n); err != nil {
			fmt.Println("failed", err)
			return 1
		}
	}
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
func killedWriter(t *testing.T, state string, lines int) map[int]string {
	t.Helper()
	child, output, _ := spawn(t, "work", state)
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
		done := killedWriter(t, state, random.IntN(60))
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
	done := killedWriter(t, state, 1200) // beyond the first fold of the log into the file
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
	if testing.Short() && len(all) > 60 {
		all = all[:60]
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

// TestJ05UnusableFilesAreKept covers J05 and H10 for the journal.
func TestJ05UnusableFilesAreKept(t *testing.T) {
	for name, spoil := range map[string]func(dir, file string) error{
		"empty":       func(_, file string) error { return os.Truncate(file, 0) },
		"JSON":        func(_, file string) error { return os.WriteFile(file, []byte(`{"runs":[]}`), 0o600) },
		"a directory": func(_, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"a link": func(dir, file string) error {
			return errors.Join(os.Rename(file, dir+"/x"), os.Symlink(dir+"/x", file))
		},
		"a FIFO":              func(_, file string) error { return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)) },
		"1 GB":                func(_, file string) error { return errors.Join(os.Truncate(file, 0), os.Truncate(file, 1<<30)) },
		"missing":             func(_, file string) error { return os.Remove(file) },
		"open for a group":    func(_, file string) error { return os.Chmod(file, 0o640) },
		"directory is open":   func(dir, _ string) error { return os.Chmod(dir, 0o750) },
		"directory is a link": func(dir, _ string) error { return errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir)) },
		"another's database":  func(_, file string) error { return raw(file, "PRAGMA application_id = 7") },
		"a row is changed":    func(_, file string) error { return raw(file, "UPDATE runs SET lease_token = 'x'") },
		"a body is gone":      func(_, file string) error { return raw(file, "DROP TRIGGER bodies_stay; DELETE FROM bodies") },
		"an older copy":       func(_, file string) error { return raw(file, "UPDATE tally SET writes = writes - 1") },
		"no schema":           func(_, file string) error { return raw(file, "PRAGMA user_version = 0") },
		"the mark is not one": func(dir, _ string) error { return os.WriteFile(dir+"/written", []byte("9"), 0o600) },
		"the mark is no file": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/written"), os.Mkdir(dir+"/written", 0o700))
		},
		"a later build's file": func(_, file string) error { return raw(file, "PRAGMA user_version = 99") },
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			j := open(t, state)
			seal(t, j, someKey, "evidence")
			must(t, j.Close())
			dir := filepath.Join(state, "journal")
			must(t, spoil(dir, filepath.Join(dir, "journal.db")))
			names, err := os.ReadDir(dir)
			must(t, err)
			j, err = journal.Open(state)
			if !errors.Is(err, journal.ErrState) {
				t.Fatalf("got %v, %v; want ErrState", j, err)
			}
			after, err := os.ReadDir(dir)
			must(t, err)
			if len(names) > len(after) {
				t.Errorf("files were %v, are %v", names, after)
			}
		})
	}
}

// raw changes a closed journal behind its back.
func raw(file, statements string) error {
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		return err
	}
	_, err = db.Exec(statements)
	return errors.Join(err, db.Close())
}

func TestSealedRowsCanNotBeChanged(t *testing.T) {
	state := t.TempDir()
	j := open(t, state)
	seal(t, j, keyOf(1), "sealed")
	seal(t, j, keyOf(2), "delivered")
	must(t, j.Answer(t.Context(), keyOf(1), "refused", 409, someTime), j.Deliver(t.Context(), keyOf(2), nil), j.Close())
	file := filepath.Join(state, "journal", "journal.db")
	for _, statement := range []string{
		"UPDATE evidence SET signature = 'x'", "UPDATE evidence SET hash = 'x'", "DELETE FROM evidence",
		"UPDATE bodies SET body = x'00'", "DELETE FROM bodies", "DELETE FROM runs", "UPDATE runs SET id = 'x'",
		"UPDATE runs SET accepted = 1", "UPDATE runs SET task = x'00'",
		"UPDATE runs SET state = 'accepted' WHERE state = 'sealed'", "UPDATE runs SET state = 'abandoned' WHERE state = 'delivered'",
		"UPDATE answers SET class = 'x'", "DELETE FROM answers", "UPDATE runs SET state = 'other'",
	} {
		if err := raw(file, statement); err == nil {
			t.Errorf("%s went through", statement)
		}
	}
	open(t, state) // still whole
}

// TestJ06SecondDaemonIsToldWhoHoldsTheState covers J06.
func TestJ06SecondDaemonIsToldWhoHoldsTheState(t *testing.T) {
	state := t.TempDir()
	child, output, stdin := spawn(t, "hold", state)
	if !output.Scan() || output.Text() != "open" {
		t.Fatalf("the holder says %q", output.Text())
	}
	for name, path := range map[string]string{"same path": state, "bind mount": bindMount(t, state)} {
		if path == "" {
			continue
		}
		_, err := journal.Open(path)
		if !errors.Is(err, journal.ErrLocked) || !contains(err.Error(), fmt.Sprint(child.Process.Pid)) {
			t.Errorf("%s: got %v, want ErrLocked with %d", name, err, child.Process.Pid)
		}
	}
	must(t, child.Process.Kill())
	_ = child.Wait()
	_ = stdin.Close()
	open(t, state)
}

// bindMount shows a directory at another place, or returns "" without root.
func bindMount(t *testing.T, dir string) string {
	t.Helper()
	place := t.TempDir()
	if os.Geteuid() != 0 || syscall.Mount(dir, place, "", syscall.MS_BIND, "") != nil {
		return ""
	}
	t.Cleanup(func() { must(t, syscall.Unmount(place, 0)) })
	return place
}

// TestJ12Migrations covers J12: forward with a copy, whole or not at all, and
// never back.
func TestJ12Migrations(t *testing.T) {
	state := t.TempDir()
	j := open(t, state)
	seal(t, j, someKey, "evidence")
	must(t, j.Close())

	if _, err := journal.OpenNewer(state, "CREATE TABLE later (x INTEGER) STRICT; SELECT no_such_function()"); err == nil {
		t.Fatal("a migration that fails went through")
	}
	j = open(t, state) // still the old version
	must(t, j.Close())

	j, err := journal.OpenNewer(state, "CREATE TABLE later (x INTEGER) STRICT")
	must(t, err)
	rec, err := j.Get(t.Context(), someKey)
	if err != nil || rec.State != journal.Sealed {
		t.Errorf("after the migration: %+v, %v", rec, err)
	}
	must(t, j.Close())
	file := filepath.Join(state, "journal", "journal.db")
	before, err := os.ReadFile(file)
	must(t, err)
	if _, err := journal.Open(state); !errors.Is(err, journal.ErrState) {
		t.Fatalf("downgrade: got %v, want ErrState", err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the refused journal changed: %v", err)
	}
	backup := filepath.Join(state, "journal", "journal-v1.bak")
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("copy before the migration: %v, %v", info, err)
	}
	// The copy is a journal: put back on purpose, it opens.
	must(t, os.Rename(backup, file), os.Remove(filepath.Join(state, "journal", "written")))
	if rec, err := open(t, state).Get(t.Context(), someKey); err != nil || rec.Seal == nil {
		t.Errorf("from the copy: %+v, %v", rec, err)
	}
}

func TestDeletedRunsLeaveHashesOnly(t *testing.T) {
	state, ctx := t.TempDir(), t.Context()
	j := open(t, state)
	body := strings.Repeat("canary of the evidence ", 900)
	seal(t, j, someKey, body)
	must(t, j.Checkpoint(ctx, someKey, "step", []byte("canary of a step")), j.Deliver(ctx, someKey, []byte("r")))
	must(t, j.Delete(ctx, someKey), j.Delete(ctx, someKey))
	rec, err := j.Get(ctx, someKey)
	if err != nil || !rec.Deleted || rec.Task != nil || rec.Seal.Body != nil || rec.Seal.Hash != hashOf(body) || rec.Seal.Signature == "" {
		t.Errorf("deleted: %+v, %v", rec, err)
	}
	if fresh, _, err := j.Accept(ctx, someKey, []byte("task"), "token", someEnd, someTime); fresh || err != nil {
		t.Errorf("a deleted run counts as new: %v, %v", fresh, err)
	}
	if known, err := j.KnowsEvidence(ctx, journal.Key{Kind: journal.KindJob, ID: someID}, hashOf(body)); !known || err != nil {
		t.Errorf("its hash is not known: %v", err)
	}
	for name, text := range snapshot(t, state) {
		if bytes.Contains(text, []byte("canary")) {
			t.Errorf("%s still holds the client's text", name)
		}
	}
	must(t, j.Close())
	open(t, state)
}

// TestJ04FullDiskStillSeals covers J04 on a file system of 24 MiB.
func TestJ04FullDiskStillSeals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: mounting a small file system needs root")
	}
	state := t.TempDir()
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
		t.Skip("not applicable: no mounts here: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(state, syscall.MNT_DETACH)) })
	ctx := t.Context()
	j := open(t, state)
	accept(t, j, keyOf(1))
	filler := filepath.Join(state, "filler")
	_ = os.WriteFile(filler, make([]byte, 24<<20), 0o600) // takes what is left
	value, err := make([]byte, 1<<20), error(nil)
	for n := 0; err == nil && n < 20; n++ {
		err = j.Checkpoint(ctx, keyOf(1), fmt.Sprint("step-", n), value)
	}
	if !errors.Is(err, journal.ErrFull) {
		t.Fatalf("a checkpoint on a full disk: got %v, want ErrFull", err)
	}
	seal(t, j, keyOf(1), strings.Repeat("evidence", 250_000))
	must(t, j.Answer(ctx, keyOf(1), "sent", 0, time.Now()), j.Deliver(ctx, keyOf(1), nil))
	_ = os.WriteFile(filler+"2", make([]byte, 24<<20), 0o600)
	if _, _, err := j.Accept(ctx, keyOf(2), []byte("task"), "token", someEnd, someTime); !errors.Is(err, journal.ErrFull) {
		t.Fatalf("a new run on a full disk: got %v, want ErrFull", err)
	}
	must(t, os.Remove(filler), os.Remove(filler+"2"))
	accept(t, j, keyOf(2))
	if rec, err := j.Get(ctx, keyOf(1)); err != nil || rec.State != journal.Delivered {
		t.Errorf("%+v, %v", rec, err)
	}
}
