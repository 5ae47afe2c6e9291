package journal_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/journal"
)

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
