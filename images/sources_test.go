package images_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

const debian12 = `# comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

func TestHostsOwnSourcesBecomeThoseOfTheSuite(t *testing.T) {
	three := []string{
		"deb http://mirror.example/debian stable main",
		"deb http://mirror.example/debian stable-updates main",
		"deb http://mirror.example/debian-security stable-security main",
	}
	for _, c := range []struct {
		name, text string
		deb822     bool
		want       []string
	}{
		{"deb822", debian12, true, three},
		{
			"one line", "deb http://mirror.example/debian trixie main\ndeb-src http://mirror.example/debian trixie main\n" +
				"deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian/ stable-updates contrib main # x\n", false,
			[]string{"deb http://mirror.example/debian stable main", "deb http://mirror.example/debian/ stable-updates main"},
		},
		{"doubles", "deb http://m.example/debian trixie main\ndeb http://m.example/debian stable main", false, []string{"deb http://m.example/debian stable main"}},
		{
			"mirror list", "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n", true,
			[]string{"deb mirror+file:///etc/apt/mirrors/debian.list stable main"},
		},
		{"disabled", "Enabled: no\n" + debian12[len("# comment\n"):], true, nil},
		{"only security", debian12[strings.Index(debian12, "Types: deb\n"):], true, nil},
		{"another key", "Types: deb\nURIs: https://apt.example\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/example.gpg\n", true, nil},
		{"inline key", "Types: deb\nURIs: https://apt.example/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n", true, nil},
		{"another vendor", "deb https://apt.example/linux bookworm main", false, nil},
		{"ubuntu", "deb http://archive.example/ubuntu noble main universe", false, nil},
		{"other components", "deb http://m.example/debian bookworm stable", false, nil},
		{"sid", "deb http://m.example/debian sid main", false, nil},
		{"cdrom", "deb cdrom:[Debian]/debian bookworm main", false, nil},
		{"nonsense", "deb\ndeb [\n: :\n   x\n", false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, images.MirrorLines(c.text, c.deb822)); diff != "" {
				t.Errorf("mirrors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHostMirrorsReadsEveryFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sources.list": "deb http://a.example/debian bookworm main\n", "sources.list.d/b.list": "deb http://b.example/debian-security bookworm-security main\n",
		"sources.list.d/c.sources":  "Types: deb\nURIs: http://c.example/debian\nSuites: bookworm-updates\nComponents: main\n",
		"sources.list.d/d.disabled": "deb http://d.example/debian bookworm main\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	found, err := images.HostMirrors(dir)
	if err != nil || len(found) != 3 {
		t.Errorf("mirrors: %v, %v", found, err)
	}
	if found, err := images.HostMirrors(filepath.Join(dir, "absent")); err != nil || len(found) != 0 {
		t.Errorf("mirrors of a host without apt: %v, %v", found, err)
	}
}

func TestAptSettingsOfTheHostAreTakenOver(t *testing.T) {
	lines, unchecked := images.AptOptions("Acquire=\nAcquire::Check-Valid-Until=false\nAcquire::http::Proxy=http://proxy.example:3128\n" +
		"Acquire::https::Proxy=x\"; DPkg::Post-Invoke {\"id\";};\nAcquire::AllowInsecureRepositories=1\n")
	want := []string{`Acquire::Check-Valid-Until "false"`, `Acquire::http::Proxy "http://proxy.example:3128"`}
	if diff := cmp.Diff(want, lines); diff != "" || !unchecked {
		t.Errorf("unchecked %v, options (-want +got):\n%s", unchecked, diff)
	}
	if lines, unchecked := images.AptOptions("Acquire::Check-Valid-Until=true\n"); len(lines) > 0 || unchecked {
		t.Errorf("options of a host that checks: %v, %v", lines, unchecked)
	}
}

func FuzzMirrorLines(f *testing.F) {
	f.Add(debian12, true)
	f.Add("deb [a=b] http://m.example/debian bookworm main", false)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		for _, line := range images.MirrorLines(text, deb822) {
			words := strings.Fields(line)
			if len(words) != 4 || words[0] != "deb" || !strings.HasPrefix(words[2], "stable") || words[3] != "main" {
				t.Errorf("line %q", line)
			}
		}
	})
}
