package proof

import "testing"

// TestA10UseOfSwapIsNoChange: how much is used changes by itself, which areas
// there are does not.
func TestA10UseOfSwapIsNoChange(t *testing.T) {
	const path, head = "/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n"
	before := map[string]string{path: settled(path, head+"/dev/sda2 partition 1000 0 -2\n")}
	for line, want := range map[string]bool{
		"/dev/sda2 partition 1000 999 -2\n": true, "/dev/sda2 partition 2000 0 -2\n": false, "/tmp/swap file 1000 0 -2\n": false,
		"/dev/sda2 partition 1000 0 5\n": false, "": false, "/dev/sda2 partition 1000 0 -2\n/tmp/swap file 10 0 -3\n": false,
	} {
		c := settingsControl(before, map[string]string{path: settled(path, head+line)})
		if c.Enforced != want {
			t.Errorf("%q: %+v", line, c)
		}
	}
	if got := settled("/proc/sys/kernel/hostname", "a b c d e\n"); got != "a b c d e\n" {
		t.Errorf("another file became %q", got)
	}
}
