package headtail_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
)

// TestWhatIsKept: whatever the sizes of the writes, the result is the whole
// text, or its head and tail with the exact number of bytes between them.
func TestWhatIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 64).Draw(t, "limit")
		parts := rapid.SliceOf(rapid.StringMatching(`[a-z]{0,40}`)).Draw(t, "parts")
		b := headtail.New(limit)
		for _, part := range parts {
			if n, err := b.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("wrote %d of %d: %v", n, len(part), err)
			}
		}
		whole, half := strings.Join(parts, ""), limit/2
		got := b.String()
		if got == whole {
			if len(whole) > 3*half {
				t.Fatalf("%d bytes were kept with a limit of %d", len(whole), limit)
			}
			return
		}
		want := fmt.Sprintf("%s\n[%d bytes left out]\n%s", whole[:half], len(whole)-2*half, whole[len(whole)-half:])
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
