package subids

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestLargestBlockOfOurs: others' blocks and lines that can't be read are none of
// ours, and the largest counts, whether it is by name or by number.
func TestLargestBlockOfOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	me, other := os.Getuid(), os.Getuid()+1
	for text, want := range map[string]Block{
		"": {}, "# nothing\n\n:::\n": {},
		fmt.Sprintf("%d:100000:65536\n%d:200000:131072\n", me, me):        {200000, 131072},
		fmt.Sprintf("%d:100000:900000\n%d:200000:65536", other, me):       {200000, 65536},
		fmt.Sprintf("%d:-1:65536\n%d:1:x\n%d:4294967296:9\n", me, me, me): {},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := largest(path); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	if _, err := largest(path + ".missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestBothKindsAreNeeded: the smaller block decides.
func TestBothKindsAreNeeded(t *testing.T) {
	if got := (Blocks{UIDs: Block{1, 9}, GIDs: Block{1, 4}}).Count(); got != 4 {
		t.Errorf("%d ids", got)
	}
}
