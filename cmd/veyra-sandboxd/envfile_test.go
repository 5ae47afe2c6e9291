package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEnvFileSyntax(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []assignment
	}{
		"nothing":            {"", nil},
		"plain":              {"A=b\n", []assignment{{"A", "b"}}},
		"no line end":        {"A=b", []assignment{{"A", "b"}}},
		"empty":              {"A=\nB=\n", []assignment{{"A", ""}, {"B", ""}}},
		"windows":            {"\uFEFFA=b\r\n\r\n# c\r\nB=d\r\n", []assignment{{"A", "b"}, {"B", "d"}}},
		"export":             {"export A=b\n  export\tB = c\n", []assignment{{"A", "b"}, {"B", "c"}}},
		"named export":       {"export=1\n", []assignment{{"export", "1"}}},
		"white space":        {"  A \t=  b c \t\n", []assignment{{"A", "b c"}}},
		"comments":           {"# A=1\n  # B=2\nC=d # e\nF=g#h\nI=#j\nK= # l\n", []assignment{{"C", "d"}, {"F", "g#h"}, {"I", "#j"}, {"K", ""}}},
		"equal signs":        {"A=b=c==\n", []assignment{{"A", "b=c=="}}},
		"no value":           {"A\nexport B # x\nC=d\n", []assignment{{"C", "d"}}},
		"single quotes":      {`A='b "c" # \n \'d\' \\' # e`, []assignment{{"A", `b "c" # \n 'd' \`}}},
		"double quotes":      {`A="b 'c' # \"d\" \\ \t$ \q"` + "\n", []assignment{{"A", "b 'c' # \"d\" \\ \t$ \\q"}}},
		"quotes inside":      {"A=b'c\"d\n", []assignment{{"A", `b'c"d`}}},
		"several lines":      {"A=\"b\nc\"\nD=e\n", []assignment{{"A", "b\nc"}, {"D", "e"}}},
		"nothing is run":     {"A=$(id)`id`${HOME}$HOME\nB=\"$HOME\"\n", []assignment{{"A", "$(id)`id`${HOME}$HOME"}, {"B", "$HOME"}}},
		"twice":              {"A=1\nA=2\n", []assignment{{"A", "1"}, {"A", "2"}}},
		"lone carriage feed": {"A=b\rB=c\n", []assignment{{"A", "b\rB=c"}}},
	} {
		got, err := parseEnvFile(c.text)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(assignment{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	for text, line := range map[string]int{
		"A='b\nc\n": 1, "\n\nB=\"c": 3, "A=1\nB='c' d\n": 2, "A b=c\n": 1, "1A=b\n": 1, "=b\n": 1, "Ä=b\n": 1,
		"A=\"b\nc\"\n\nsome words\n": 4, "A=b\x00": 1, "export A B=c\n": 1,
	} {
		_, err := parseEnvFile(text)
		var at *envError
		if !errors.As(err, &at) || at.line != line {
			t.Errorf("%q: %v, want a fault in line %d", text, err, line)
		}
	}
}

// FuzzEnvFile: whatever the file holds, names are names, and what was read is
// read again as the same when it is written in quotes.
func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{
		"A=b\nexport C='d' # e\r\nF=\"g\\n\"", "A", "A=", "=", "'", "A='", "A=\"\\", "export", "export A", "#", "A=\"b\nc\" #\nD=e", "\uFEFFA = b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseEnvFile(text)
		if err != nil {
			return
		}
		var again strings.Builder
		quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
		for _, a := range found {
			if !envName(a.name) || strings.ContainsAny(a.value, "\x00") {
				t.Errorf("%q was read from %q", a, text)
			}
			again.WriteString("export " + a.name + "='" + quote.Replace(a.value) + "'\n")
		}
		second, err := parseEnvFile(again.String())
		if err != nil || len(second) != len(found) {
			t.Fatalf("written again: %v, %d of %d\n%q", err, len(second), len(found), again.String())
		}
		for i, a := range found {
			// A carriage return before a line end is part of that line's end.
			if want := strings.ReplaceAll(a.value, "\r\n", "\n"); second[i].name != a.name || second[i].value != want {
				t.Errorf("%q came back as %q", a, second[i])
			}
		}
	})
}

// inEnvironment reads settings with nothing but this in the environment.
func inEnvironment(t *testing.T, o options, pairs ...string) (*Settings, error) {
	t.Helper()
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		known := strings.HasPrefix(name, "VEYRA_")
		for _, v := range variables {
			known = known || v.name == name
		}
		if known {
			t.Setenv(name, value) // is set back at the end
			_ = os.Unsetenv(name)
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
	return o.settings()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func notes(s *Settings, part string) int {
	n := 0
	for _, note := range s.notes {
		if strings.Contains(note, part) {
			n++
		}
	}
	return n
}

// The reference runtime's own example, with every name that it knows.
const dropIn = `# Veyra runtime
AI_PROVIDER=some provider
AI_MODEL="some-model"
AI_BASE_URL=https://api.provider.example/v1/
AI_API_KEY='sk-0123456789abcdef'
RUNTIME_BIND_HOST=127.0.0.1
RUNTIME_PORT=9200
RUNTIME_PUBLIC_HOST=worker.example.net
RUNTIME_PUBLIC_PORT=443
CONNECTION_LINK_TTL_SECONDS=900
VEYRA_HEARTBEAT_SECONDS=10
VEYRA_RUNTIME_ROLE=worker
VEYRA_RUNTIME_STATE_DIR=/srv/state
VEYRA_RUNTIME_WORKSPACE_ROOT=/tmp/work
GITHUB_API_URL=https://github.example/api/v3
AI_HEALTHCHECK_MODE=Mock
VEYRA_MODEL_TIMEOUT_SECONDS=240
VEYRA_MODEL_CONTEXT_CHARACTERS=180000
SOMETHING_ELSE=1
`

func TestReferenceRuntimesFileWorks(t *testing.T) {
	path := write(t, ".env", strings.ReplaceAll(dropIn, "\n", "\r\n"))
	s, err := inEnvironment(t, options{envFile: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.readKey(); err != nil {
		t.Fatal(err)
	}
	got := []any{
		s.provider(), s.Provider.Model, s.Provider.BaseURL, s.key, s.Public.Listen, s.Public.Host, s.Public.LinkTTL, s.ControlPlane.Heartbeat,
		s.Role, s.StateDir, s.Git.API, s.skipProbe, s.Provider.Timeout, s.Provider.ContextCharacters,
	}
	want := []any{
		"some provider", "some-model", "https://api.provider.example/v1/", "sk-0123456789abcdef", "127.0.0.1:9200", "worker.example.net",
		15 * time.Minute, 10 * time.Second,
		"WORKER", "/srv/state", "https://github.example/api/v3", true, 4 * time.Minute, 180000,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(s.notes) != 1 || notes(s, "WORKSPACE_ROOT is ignored") != 1 {
		t.Errorf("notes %q", s.notes)
	}
}

func TestSettingsHaveAnOrder(t *testing.T) {
	config := write(t, "mine.yaml", "policy: relaxed\nprovider: {model: of-file, base_url: https://file.example, key_file: /no/such/file}\n"+
		"public: {host: file.example}\ncache_dir: /srv/cache\n")
	env := write(t, ".env", "AI_MODEL=of-env-file\nAI_BASE_URL=https://env-file.example\nVEYRA_POLICY=standard\nAI_API_KEY=key-of-env-file\n"+
		"RUNTIME_PUBLIC_HOST=env-file.example\n")
	s, err := inEnvironment(t, options{config: config, envFile: env, policy: "strict"},
		"AI_BASE_URL", "https://environment.example", "RUNTIME_PUBLIC_PORT", "9300", "VEYRA_POLICY", "relaxed", "AI_MODEL", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.readKey(); err != nil {
		t.Fatal(err)
	}
	got := []string{s.Policy, s.Provider.BaseURL, s.Provider.Model, s.Public.Host, s.CacheDir, s.key}
	want := []string{"strict", "https://environment.example", "of-env-file", "env-file.example:9300", "/srv/cache", "key-of-env-file"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flag, environment, env file, environment beside env file, file, key:\n%s", diff)
	}
}

func TestKeyFileCountsBeforeKey(t *testing.T) {
	key := write(t, "key", "key-of-file\n")
	s, err := inEnvironment(t, options{envFile: write(t, ".env", "AI_API_KEY_FILE="+key+"\nAI_API_KEY=key-of-line\n")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.readKey(); err != nil || s.key != "key-of-file" {
		t.Errorf("key %q, %v", s.key, err)
	}
}

func TestUnusableEnvFilesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"too long": "# " + strings.Repeat("x", maxEnvFile), "no assignment": "A b c\n", "a port": "RUNTIME_PORT=nine\n",
		"a line end": "AI_MODEL=\"a\nb\"\n", "another role": "VEYRA_RUNTIME_ROLE=JUDGE\n", "a bell": "RUNTIME_PUBLIC_HOST=\"a\\ab\"\n",
	} {
		path := write(t, ".env", text)
		if _, err := inEnvironment(t, options{envFile: path}); !errors.Is(err, errSettings) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := inEnvironment(t, options{envFile: "/no/such/file"}); !errors.Is(err, errSettings) {
		t.Errorf("no file: %v", err)
	}
	whole := write(t, ".env", "#"+strings.Repeat("x", maxEnvFile-1))
	if _, err := inEnvironment(t, options{envFile: whole}); err != nil {
		t.Errorf("64 KiB: %v", err)
	}
}

func TestOtherDefaultsAreSaidOnce(t *testing.T) {
	const part = "defaults here are not the reference runtime's"
	s, err := inEnvironment(t, options{envFile: write(t, ".env", "RUNTIME_BIND_HOST=127.0.0.1\nAI_MODEL=m\n")})
	if err != nil || notes(s, part) != 1 {
		t.Fatalf("%v, notes %q", err, s.notes)
	}
	for _, name := range []string{"RUNTIME_PUBLIC_HOST", "CONNECTION_LINK_TTL_SECONDS 900 (there: 86400)", "AI_BASE_URL none: set it"} {
		if notes(s, name) != 1 {
			t.Errorf("%s is not said: %q", name, s.notes)
		}
	}
	for _, name := range []string{"RUNTIME_BIND_HOST", "AI_MODEL", "RUNTIME_PORT"} {
		if notes(s, name) != 0 {
			t.Errorf("%s is said: %q", name, s.notes)
		}
	}
	if s, err := inEnvironment(t, options{}); err != nil || notes(s, part) != 0 {
		t.Errorf("without an env file: %v, %q", err, s.notes)
	}
}

func TestOddNamesAreNotedOnce(t *testing.T) {
	env := write(t, ".env", "VEYRA_NO_SUCH=1\nVEYRA_NO_SUCH=2\nVEYRA_OTHER=\nAI_API_KEY=PASTE_OWNER_PAID_KEY_HERE\n")
	s, err := inEnvironment(t, options{envFile: env}, "VEYRA_NO_SUCH", "3")
	if err != nil {
		t.Fatal(err)
	}
	if s.key != "" || notes(s, "VEYRA_NO_SUCH") != 1 || notes(s, "VEYRA_OTHER") != 0 || notes(s, "placeholder") != 1 {
		t.Errorf("key %q, notes %q", s.key, s.notes)
	}
}

func TestReadableKeysAreNoted(t *testing.T) {
	env := write(t, ".env", "AI_API_KEY=sk-0123456789abcdef\n")
	if s, err := inEnvironment(t, options{envFile: env}); err != nil || notes(s, "chmod 0600") != 0 {
		t.Errorf("0600: %v, %q", err, s.notes)
	}
	if err := os.Chmod(env, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := inEnvironment(t, options{envFile: env})
	if err != nil || notes(s, "chmod 0600") != 1 {
		t.Errorf("0644: %v, %q", err, s.notes)
	}
	for _, note := range s.notes {
		if strings.Contains(note, "sk-0123456789abcdef") {
			t.Errorf("the key is in %q", note)
		}
	}
}
