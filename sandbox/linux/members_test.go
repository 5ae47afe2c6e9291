package linux

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestMembersTakeEachNameOnceAndNoneAfterTheirEnd(t *testing.T) {
	var m Members[string, int]
	if m.Ever() || len(m.All()) > 0 || m.Has("a") {
		t.Error("the zero value is not empty")
	}
	if !m.Add("a", 1) || m.Add("a", 2) || !m.Add("b", 3) {
		t.Error("a free name was refused, or a taken one was given")
	}
	ran := false
	if err := m.WhileEmpty(func() error { ran = true; return nil }); ran || err != nil {
		t.Errorf("ran with two members: %t, %v", ran, err)
	}
	if left := m.Shut(); len(left) != 2 || m.Add("c", 4) {
		t.Errorf("%v were left, or one more was taken", left)
	}
	m.Remove("a")
	m.Remove("b")
	m.Remove("b")
	failed := errors.New("failed")
	if err := m.WhileEmpty(func() error { return failed }); !errors.Is(err, failed) || !m.Ever() {
		t.Errorf("without members: %v, ever %t", err, m.Ever())
	}
}

func TestClosingGoesOnUntilItSucceeds(t *testing.T) {
	var c Closing
	if c.Unfinished() {
		t.Error("one that has not begun is unfinished")
	}
	calls := 0
	step := func() error {
		calls++
		if calls < 3 {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	for want := 1; want < 3; want++ {
		if err := c.Do(step); err == nil || !c.Unfinished() {
			t.Errorf("call %d: %v, unfinished %t", want, err, c.Unfinished())
		}
	}
	for range 2 {
		if err := c.Do(step); err != nil || c.Unfinished() {
			t.Errorf("at its end: %v, unfinished %t", err, c.Unfinished())
		}
	}
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
	var going Closing
	_ = going.Do(func() error {
		if going.Unfinished() {
			t.Error("one that goes on has failed")
		}
		return nil
	})
}

// TestBasesAreBuiltOnce and are gone afterwards; one that could not be built leaves
// nothing, and is tried again.
func TestBasesAreBuiltOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not applicable: needs root")
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	stage, n := t.TempDir(), 0
	path := func() string { n++; return filepath.Join(stage, strconv.Itoa(n)) }
	bases := Bases{First: 1_879_048_192, Programs: Binaries{Init: program}, Path: path}
	if err := os.Mkdir(filepath.Join(stage, "1"), 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	if got, err := bases.Get(true); err == nil {
		t.Fatalf("built over another: %s", got)
	}
	for _, bare := range []bool{true, false, true, false} {
		got, err := bases.Get(bare)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(got, "etc", "passwd")); (err == nil) != bare {
			t.Errorf("bare %t: %v", bare, err)
		}
	}
	if n != 3 {
		t.Errorf("%d were begun", n)
	}
	if err := bases.Drop(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(stage); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
