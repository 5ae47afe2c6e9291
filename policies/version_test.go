package policies

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPackageOrderIsAnOrder: for any texts, turned round it is turned round, and
// what lies between two lies between them.
func TestPackageOrderIsAnOrder(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("0129a.b~^+-:rc")), 0, 10, -1)
	rapid.Check(t, func(t *rapid.T) {
		system := rapid.SampledFrom([]string{SystemDeb, SystemRPM}).Draw(t, "system")
		a, b, c := text.Draw(t, "a"), text.Draw(t, "b"), text.Draw(t, "c")
		ab, bc, ac := comparePackages(system, a, b), comparePackages(system, b, c), comparePackages(system, a, c)
		if sign(ab) != -sign(comparePackages(system, b, a)) || comparePackages(system, a, a) != 0 {
			t.Errorf("%s: %q and %q: %d", system, a, b, ab)
		}
		if ab <= 0 && bc <= 0 && ac > 0 {
			t.Errorf("%s: %q ≤ %q ≤ %q, but not %q ≤ %q", system, a, b, c, a, c)
		}
	})
}

// FuzzVersions: what programs and packages say is foreign text.
func FuzzVersions(f *testing.F) {
	for _, seed := range []string{"1.4.0-rc.2+dev", "release-20260914.0", "1:1.1.5+ds1-1+deb12u1", "4:1.2.5-3.el9_6", "~^~^", "é.1"} {
		f.Add(seed, "1.0")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, errX := parseRelease(a)
		y, errY := parseRelease(b)
		if errX == nil && errY == nil && sign(x.compare(y)) != -sign(y.compare(x)) {
			t.Errorf("%q and %q", a, b)
		}
		for _, system := range []string{SystemDeb, SystemRPM} {
			if sign(comparePackages(system, a, b)) != -sign(comparePackages(system, b, a)) {
				t.Errorf("%s: %q and %q", system, a, b)
			}
		}
	})
}
