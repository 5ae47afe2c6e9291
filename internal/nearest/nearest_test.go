package nearest_test

import (
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/nearest"
)

func TestIndexFindsWhatWasMeant(t *testing.T) {
	known := []string{"memory", "pids", "disk", "open_files"}
	for word, want := range map[string]int{
		"memroy": 0, "memory": 0, "pid": 1, "dsk": 2, "open-files": 3, "openfiles": 3, "network": -1, "xxxx": -1,
	} {
		if got := nearest.Index(word, known); got != want {
			t.Errorf("%q is taken for number %d, want %d", word, got, want)
		}
	}
	if got := nearest.Index("a", nil); got != -1 {
		t.Errorf("of nothing: %d", got)
	}
}
