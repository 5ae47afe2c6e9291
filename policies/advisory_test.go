package policies

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestReleasesAreOrdered: each is below the next.
func TestReleasesAreOrdered(t *testing.T) {
	order := []string{
		"1.0.0-dev", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0~rc93+ds1", "1.0.0-rc95", "1.0.0", "1.1.5+ds1", "1.1.12-0ubuntu2~22.04.1",
		"1.2.7", "v1.2.8", "1.3.0-rc.1", "1.3.0-rc.2+dev", "1.3", "1.3.2", "1.4.0-rc.1", "1.4.0-rc.3", "1.4.0", "1.19", "1.30",
		"20.10.24+dfsg1", "29.5.1", "release-20260914.0",
	}
	for i := range order {
		for j := range order {
			a, errA := parseRelease(order[i])
			b, errB := parseRelease(order[j])
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if got, want := sign(a.compare(b)), sign(i-j); got != want {
				t.Errorf("%s and %s: %d, want %d", order[i], order[j], got, want)
			}
		}
	}
	for _, text := range []string{"", "unknown", "rc1", "99999999999.1", "x1.2"} {
		if r, err := parseRelease(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

func TestPackagesAreOrdered(t *testing.T) {
	for system, order := range map[string][]string{
		SystemDeb: {
			"1.0.0~rc93+ds1-5", "1.0.0~rc93+ds1-5+deb11u3", "1.0.0-1", "1.1.5+ds1-1", "1.1.5+ds1-1+b1", "1.1.5+ds1-1+deb12u1",
			"1.1.5+ds1-1+deb12u2", "1.1.5+ds1-1+deb12u10", "1.1.5+ds1-2", "1.1.15a-1", "1.1.15+ds1-2+b4", "1:0.1-1",
		},
		SystemRPM: {
			"1.0~rc1-1.el9", "1.0-1.el9", "1.0^git1-1.el9", "1.0.a-1.el9", "1.0.1-1.el9", "1.1.12-1.el9", "1.1.12-3.el9_3", "1.1.12-10.el9",
			"4:1.1.12-1.el9",
		},
	} {
		for i := range order {
			for j := range order {
				if got, want := sign(comparePackages(system, order[i], order[j])), sign(i-j); got != want {
					t.Errorf("%s: %s and %s: %d, want %d", system, order[i], order[j], got, want)
				}
			}
		}
	}
	if comparePackages(SystemRPM, "1.0_1-1", "1.0.1-1") != 0 || comparePackages(SystemDeb, "01.0-1", "0:1.0-1") != 0 {
		t.Error("what separates an RPM's words, or a leading zero, counts")
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func deb(name, version string) *Package { return &Package{SystemDeb, name, version} }

// TestA07VersionsAgainstTheTable: what each version is affected by.
func TestA07VersionsAgainstTheTable(t *testing.T) {
	const leak, masked, link = "CVE-2024-21626", "CVE-2025-31133 CVE-2025-52565 CVE-2025-52881", "CVE-2026-41579"
	for _, c := range []struct {
		software Software
		want     string
	}{
		{Software{"runc", "1.1.11", nil}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.12-rc.1", nil}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.12", nil}, masked + " " + link},
		{Software{"runc", "1.2.7", nil}, masked + " " + link},
		{Software{"runc", "1.2.8", nil}, link},
		{Software{"runc", "1.3.0-rc.1", nil}, masked + " " + link},
		{Software{"runc", "1.3.2", nil}, masked + " " + link},
		{Software{"runc", "1.3.3", nil}, link},
		{Software{"runc", "1.3.6", nil}, ""},
		{Software{"runc", "1.4.0-rc.2+dev", nil}, masked + " " + link},
		{Software{"runc", "1.4.0-rc.3", nil}, link},
		{Software{"runc", "1.4.2", nil}, link},
		{Software{"runc", "1.4.3", nil}, ""},
		{Software{"runc", "1.5.0-rc.2", nil}, link},
		{Software{"runc", "1.5.0-rc.3", nil}, ""},
		{Software{"runc", "1.5.3", nil}, ""},
		{Software{"runc", "garbage", nil}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.5+ds1", nil}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.5+ds1", deb("runc", "1.1.5+ds1-1+b1")}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.5+ds1", deb("runc", "1.1.5+ds1-1+deb12u1")}, masked + " " + link},
		{Software{"runc", "1.1.5+ds1", deb("runc", "1.1.5+ds1-1+deb12u2+b1")}, masked + " " + link},
		{Software{"runc", "1.1.5", deb("runc", "1.1.5-0ubuntu1~22.04.1")}, leak + " " + masked + " " + link},
		{Software{"runc", "1.1.11", deb("runc", "2.0-1")}, leak + " " + masked + " " + link},
		{Software{"runc", "1.3.4-0ubuntu1~22.04.1", deb("runc", "1.3.4-0ubuntu1~22.04.1")}, link},
		{Software{"crun", "1.8.1", deb("crun", "1.8.1-1+deb12u1")}, "CVE-2026-88264 CVE-2026-88265"},
		{Software{"crun", "1.19", nil}, "CVE-2026-88264 CVE-2026-88265 CVE-2026-30892"},
		{Software{"crun", "1.26", nil}, "CVE-2026-88264 CVE-2026-88265 CVE-2026-30892"},
		{Software{"crun", "1.27", nil}, "CVE-2026-88264 CVE-2026-88265"},
		{Software{"crun", "1.30", nil}, ""},
		{Software{"docker", "20.10.24+dfsg1", nil}, "CVE-2026-41567 CVE-2026-41568 CVE-2026-42306 docker-default-seccomp"},
		{Software{"docker", "29.5.1", nil}, "docker-default-seccomp"},
		{Software{"runsc", "release-20260914.0", nil}, ""},
	} {
		found, err := Advise([]Software{c.software}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, f := range found {
			ids = append(ids, f.ID)
		}
		if got := strings.Join(ids, " "); got != c.want {
			t.Errorf("%+v: %s, want %s", c.software, got, c.want)
		}
		if c.software.Package == nil && Affects(c.software.Name, c.software.Version) != (c.want != "") {
			t.Errorf("%+v: Affects differs", c.software)
		}
	}
}

// TestA07OnlyStrictRefuses, no engine for its age, and nothing that was accepted.
func TestA07OnlyStrictRefuses(t *testing.T) {
	old := []Software{{"runc", "1.1.11", nil}, {"crun", "0.1", nil}, {"docker", "20.10.0", nil}}
	for _, c := range []struct {
		extends  string
		accepted []string
		want     []string
	}{
		{"strict", nil, []string{"CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}},
		{"strict", []string{"CVE-2024-21626", "CVE-2025-52565"}, []string{"CVE-2025-31133", "CVE-2025-52881"}},
		{"strict", []string{"CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, nil},
		{"standard", nil, nil},
		{"relaxed", nil, nil},
	} {
		found, err := Advise(old, c.accepted)
		if err != nil {
			t.Fatal(err)
		}
		var refused []string
		for _, f := range found {
			if f.Refuses(Policy{Name: "any", Extends: c.extends}) {
				refused = append(refused, f.ID)
			}
			if f.Accepted != slices.Contains(c.accepted, f.ID) || f.Accepted != strings.Contains(f.Sentence(), "accepted by the owner") {
				t.Errorf("%s accepted: %t", f.ID, f.Accepted)
			}
		}
		if !slices.Equal(refused, c.want) {
			t.Errorf("%s with %v accepted refuses %v, want %v", c.extends, c.accepted, refused, c.want)
		}
	}
}

// TestRPMBackportsCountByRelease of the same distribution.
func TestRPMBackportsCountByRelease(t *testing.T) {
	table := []Advisory{{
		Component: "x", IDs: []string{"ID"}, Affected: []versionRange{{Below: "1.3"}}, Strict: VerdictRefuse,
		Packages: []fixedPackage{{SystemRPM, "4:1.2.5-3.el9_6"}},
	}}
	for version, fixed := range map[string]bool{
		"4:1.2.5-3.el9_6": true, "4:1.2.5-4.el9": true, "4:1.2.5-2.el9_6": false, "4:1.2.5-5.el8": false, "1.2.5-4.el9": false, "4:1.2.4-9.el9": false,
	} {
		found := advise(table, []Software{{"x", "1.2.5", &Package{SystemRPM, "x", version}}}, nil)
		if (len(found) == 0) != fixed {
			t.Errorf("%s: %v", version, found)
		}
	}
}

func TestUpstreamOfPackages(t *testing.T) {
	for version, want := range map[string]string{
		"1.1.5+ds1-1+deb12u1": "1.1.5+ds1", "4:1.2.5-3.el9_6": "1.2.5", "5:29.5.1-1~debian.12~bookworm": "29.5.1", "1.0": "1.0",
	} {
		if got := (Package{SystemDeb, "x", version}).Upstream(); got != want {
			t.Errorf("%s packages %s, want %s", version, got, want)
		}
	}
}

func TestAdvisoryTableIsWhole(t *testing.T) {
	ids, err := AdvisoryIDs()
	if err != nil || !slices.Contains(ids, "CVE-2024-21626") || slices.Contains(ids, "CVE-2026-41579") {
		t.Errorf("%v, %v", ids, err)
	}
	good := "- {component: c, ids: [i], affected: [{below: 1.0}], fixed: x, what: w, reachable: partly, why: y, strict: warn}\n"
	if _, err := parseAdvisories([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{
		"component: c, ": "", "ids: [i], ": "", "affected: [{below: 1.0}], ": "", "below: 1.0": "below: new", "reachable: partly": "reachable: maybe",
		"strict: warn": "strict: ignore", "fixed: x": "fixed: x, other: y",
	} {
		if _, err := parseAdvisories([]byte(strings.Replace(good, old, changed, 1))); !errors.Is(err, ErrPolicyInvalid) {
			t.Errorf("%q for %q: %v", changed, old, err)
		}
	}
}
