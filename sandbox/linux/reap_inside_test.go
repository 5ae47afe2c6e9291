package linux

import "testing"

func TestStraysAreDeadChildrenOfAnotherSession(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (runc:[2:INIT]) Z 10 7 7 0 -1":      true,
		"7 (a) Z 11 (b) c) Z 10 7 7 0 -1":      true,  // a name that imitates the line
		"7 (mkfs.ext4) Z 10 10 5 0 -1":         false, // our own program, still to be waited for
		"7 (runc:[2:INIT]) S 10 7 7 0 -1":      false, // alive
		"7 (runc:[2:INIT]) Z 11 7 7 0 -1":      false, // another's child
		"7 (sh) S 11 7 7) Z 10 7 5 0 -1 extra": false,
		"":                                     false,
		"7 (x) Z":                              false,
	} {
		if got := isStray(stat, 10, 5); got != want {
			t.Errorf("%q: %t", stat, got)
		}
	}
}
