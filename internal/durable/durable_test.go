package durable_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// These make the test binary a process that holds a lock, or one that writes
// until it is killed.
const (
	holdEnv  = "DURABLE_TEST_HOLD"
	writeEnv = "DURABLE_TEST_WRITE"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(holdEnv); path != "" {
		hold(path)
		return
	}
	if path := os.Getenv(writeEnv); path != "" {
		writeForEver(path)
		return
	}
	os.Exit(m.Run())
}

// generation is a text that shows by itself whether it is whole.
func generation(n int) string {
	return strings.Repeat(fmt.Sprintf("%08d\n", n), 20_000)
}

// writeForEver says each generation that is durable.
func writeForEver(path string) {
	for n := 0; ; n++ {
		if err := durable.WriteFile(path, []byte(generation(n)), 0o600); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// TestKilledWriterLeavesAWholeFile kills a writer at some point of its work,
// again and again: what it said it wrote is there, or the next, whole.
func TestKilledWriterLeavesAWholeFile(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for range 10 {
		said := killWriter(t, self, path)
		got, err := durable.ReadFile(path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != generation(said) && string(got) != generation(said+1) {
			t.Fatalf("%d bytes that begin with %.9q, after generation %d", len(got), got, said)
		}
		if err := durable.Sweep(dir); err != nil {
			t.Fatal(err)
		}
		checkNames(t, dir, "state")
	}
}

// killWriter lets a process write a few generations and returns the last that
// it said before it was killed.
func killWriter(t *testing.T, self, path string) int {
	t.Helper()
	child := exec.Command(self)
	child.Env = append(os.Environ(), writeEnv+"="+path)
	out, err := child.StdoutPipe()
	if err := errors.Join(err, child.Start()); err != nil {
		t.Fatal(err)
	}
	last := -1
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Errorf("child says %q", lines.Text())
		}
		if last == 3 {
			// What it says between here and its end is read by this loop, too.
			_ = child.Process.Kill()
		}
	}
	_ = child.Wait()
	return last
}

// hold takes the lock, says so, and keeps it until its stdin ends.
func hold(path string) {
	if _, err := durable.Lock(path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestWriteFileReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := durable.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := durable.ReadFile(path, 100)
		if err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	checkNames(t, dir, "state")
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func checkNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestWriteFileIgnoresUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "f")
	if err := durable.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestWriteFileFailsClean has a directory where the file should go: the rename
// fails and nothing may be left behind.
func TestWriteFileFailsClean(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "state"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	checkNames(t, dir, "state")
	err := durable.WriteFile(filepath.Join(dir, "none", "f"), nil, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v", err)
	}
}

// TestWriteFileConcurrently checks that readers see one of the texts, whole.
func TestWriteFileConcurrently(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	texts := []string{strings.Repeat("a", 5000), strings.Repeat("b", 9000)}
	var writers sync.WaitGroup
	for _, text := range texts {
		writers.Go(func() {
			for range 20 {
				if err := durable.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	got, err := durable.ReadFile(path, 1<<20)
	if err != nil || string(got) != texts[0] && string(got) != texts[1] {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	checkNames(t, dir, "f")
}

func TestSweepRemovesTemporariesOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".durable-123", ".other", "state"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := durable.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, ".other", "state")
}

func TestReadFileRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(file, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := map[string]error{
		file: durable.ErrTooLarge, link: syscall.ELOOP, fifo: fs.ErrInvalid, dir: fs.ErrInvalid,
		filepath.Join(dir, "none"): fs.ErrNotExist,
	}
	for path, want := range tests {
		if _, err := durable.ReadFile(path, 4); !errors.Is(err, want) {
			t.Errorf("%s: error = %v, want %v", filepath.Base(path), err, want)
		}
	}
	if got, err := durable.ReadFile(file, 5); err != nil || string(got) != "12345" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for range 2 {
		if err := durable.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("mode %v, %v", info, err)
	}
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, below := range []string{file, filepath.Join(file, "d")} {
		if err := durable.MkdirAll(below, 0o700); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: error = %v", below, err)
		}
	}
}

func TestRemoveTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReserveFileAllocates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reserve")
	const size = 1 << 20
	for range 2 {
		if err := durable.ReserveFile(path, size); err != nil {
			t.Fatal(err)
		}
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Size != size || stat.Blocks*512 < size {
			t.Errorf("size %d, %d allocated", stat.Size, stat.Blocks*512)
		}
	}
}

func TestReserveFileFailsClean(t *testing.T) {
	dir := t.TempDir()
	if err := durable.ReserveFile(filepath.Join(dir, "reserve"), 1<<60); err == nil {
		t.Error("an exbibyte was reserved")
	}
	checkNames(t, dir)
}
