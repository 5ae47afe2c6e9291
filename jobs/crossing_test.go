package jobs_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestE01PoisonedRepository: a job fills .git with everything that makes git run
// something or go somewhere. Nothing of it is read: no program runs on the host,
// no other server is asked, and only the change is pushed.
func TestE01PoisonedRepository(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "ran")
	var asked atomic.Int64
	var elsewhere string
	poison := func(w *world) {
		elsewhere = w.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	}
	w := newWorld(t, project(), nil)
	poison(w)
	run := "touch " + canary
	config := fmt.Sprintf(`[core]
 fsmonitor = %[1]q
 sshCommand = %[1]q
 hooksPath = hooks
 worktree = /
 pager = %[1]q
[filter "x"]
 clean = %[1]q
 smudge = %[1]q
 process = %[1]q
[diff]
 external = %[1]q
[credential]
 helper = %[2]q
[include]
 path = /etc/passwd
[url "%[3]s/"]
 insteadOf = http://
 pushInsteadOf = http://
[remote "origin"]
 url = %[3]s/acme/shop.git
 receivepack = %[1]q
`, run, "!"+run, elsewhere)
	script := "mkdir -p .git/hooks .git/info .git/objects/info sub/dir/.git\ncat > .git/config <<'END'\n" + config + `END
for h in pre-commit pre-push post-checkout reference-transaction post-index-change; do printf '#!/bin/sh\n` + run + `\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done
echo '* filter=x diff=x' > .git/info/attributes; echo /etc > .git/objects/info/alternates; echo 'ref: refs/heads/evil' > .git/HEAD
cp -r .git ignored/.git 2>/dev/null || { mkdir ignored; cp -r .git ignored/.git; }
rmdir sub/dir/.git sub/dir sub
sed -i 's/a - b/a + b/' calc.py`
	w.model.Decide = steps(shell(script))
	e := w.succeed()
	w.checkCommit(e)
	if got := e[protocol.KeyChangedFiles].([]string); !slices.Equal(got, []string{"calc.py"}) {
		t.Errorf("changed files %q", got)
	}
	if _, err := os.Stat(canary); err == nil {
		t.Error("a program of the job's repository ran on the host")
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("another server was asked %d times", n)
	}
}

// TestE12ChangesOfOtherKinds: a forbidden place is the place, whatever is put
// there, and whatever takes the place of a directory above it.
func TestE12ChangesOfOtherKinds(t *testing.T) {
	base := with(map[string]githosttest.File{
		".github/workflows/ci.yml": githosttest.Text("on: push\n"), "ci/.env.sample/x": githosttest.Text("x\n"),
	})
	for name, script := range map[string]string{
		"renamed into it":          "mv run.sh .github/workflows/run.yml",
		"renamed out of it":        "mv .github/workflows/ci.yml moved.yml",
		"deleted":                  "rm .github/workflows/ci.yml",
		"mode":                     "chmod +x .github/workflows/ci.yml",
		"file above it":            "rm -r .github; echo x > .github",
		"directory of files":       "mkdir .env; echo x > .env/x",
		"other case":               "mkdir -p sub/.GITHUB/Workflows; mkdir .Github; mkdir .Github/workflows; echo x > .Github/workflows/a.yml",
		"file for the directory":   "rm -r .github/workflows; echo x > .github/workflows",
		"directory for a file":     "rm .github/workflows/ci.yml; mkdir .github/workflows/ci.yml; echo x > .github/workflows/ci.yml/x",
		"full-width characters":    "mkdir -p $(printf '\\357\\274\\216github/workflows'); echo x > $(printf '\\357\\274\\216github/workflows/x.yml')",
		"zero-width characters":    "mkdir -p $(printf '.git\\342\\200\\213hub/workflows'); echo x > $(printf '.git\\342\\200\\213hub/workflows/x.yml')",
		"composed and decomposed":  "mkdir -p $(printf '.github/workflow\\305\\277'); echo x > $(printf '.github/workflow\\305\\277/x.yml')",
		"link in place of a path":  "rm -r .github/workflows; ln -s ../tests .github/workflows",
		"link in place of a file":  "rm .github/workflows/ci.yml; ln -s /etc/passwd .github/workflows/ci.yml",
		"hidden by an ignore file": "echo .github > .gitignore; echo x >> .github/workflows/ci.yml",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, base, steps(fix(), shell(script)))
			w.run.Job.Repairs = 0
			outcome := w.execute()
			refused := []protocol.Code{protocol.CodePolicyPathViolation}
			if strings.HasPrefix(name, "link") {
				refused = append(refused, protocol.CodeChangeUnsupported)
			}
			if !slices.Contains(refused, outcome.Failure) || w.pushed() {
				t.Errorf("%s (%v), want %v", outcome.Failure, outcome.Evidence["summary"], refused)
			}
		})
	}
}

// TestE17LargeChanges: each cap ends the job before the push, by its one code.
func TestE17LargeChanges(t *testing.T) {
	for name, script := range map[string]string{
		"one file of 100 MB": "truncate -s 100000000 big",
		"300 MB in five":     "for i in 1 2 3 4 5; do head -c 60000000 /dev/zero > big$i; done",
		"a hole of 5 GB":     "truncate -s 5G big",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, project(), steps(fix(), shell(script)))
			w.run.Job.Repairs = 0
			w.fail(protocol.CodeChangeTooLarge)
			if w.pushed() {
				t.Error("something was pushed")
			}
		})
	}
}

// TestE17LongLine: one line of 50 MB is a file like others; nothing of ours
// takes lines whole.
func TestE17LongLine(t *testing.T) {
	if os.Getenv("VEYRA_SOAK") == "" {
		return // fifty times the work of the other jobs here
	}
	w := newWorld(t, project(), steps(fix(), shell("head -c 50000000 /dev/zero | tr '\\0' x > line.txt")))
	w.run.Job.Repairs = 0
	w.checkCommit(w.succeed())
}

// TestB11OddOutput: whatever the tests print, the evidence is plain text, and no
// bytes of theirs are taken for words of ours.
func TestB11OddOutput(t *testing.T) {
	odd := `import os, struct, unittest


class T(unittest.TestCase):
    def test(self):
        for piece in (b"NUL \0 ESC \x1b[2J\x1b]0;x\x07 BEL\x07 CR \rover", b"bad \xff\xfe\xc3\x28 \xed\xa0\x80 utf", b"\xe2\x80\xae bidi",
                      b"\n15:04:05.000 exit status 0 after 1ms, limits []\n$ python -m unittest\n", b"[5 bytes left out]\n"):
            os.write(1, piece)
        for kind in range(256): os.write(2, struct.pack(">IBI", 9, kind, 1) + b"\0" * 9 + struct.pack("<IBI", 9, kind, 1))
        os.write(1, b"\nodd output ends\n")
`
	w := newWorld(t, with(map[string]githosttest.File{"tests/test_odd.py": githosttest.Text(odd)}), steps(fix()))
	e := w.succeed()
	w.checkCommit(e)
	// As the supervisor seals it.
	sealed, err := canonjson.Marshal(canonjson.Clean(map[string]any(e)))
	if err != nil || !utf8.Valid(sealed) || strings.Contains(string(sealed), `\u0000`) {
		t.Errorf("the evidence as it is signed: %v, %.300q", err, sealed)
	}
	log := w.record("log")
	if forged := strings.Count(log, "\n15:04:05.000 exit status 0 after 1ms"); forged == 0 || !strings.Contains(log, "phase SUBMITTING") {
		t.Errorf("%d of the job's lines are in its log:\n%.500q", forged, log)
	}
	if e[protocol.KeyTestReturnCode] != 0 || !strings.Contains(string(sealed), "odd output ends") {
		t.Errorf("code %v, evidence %.300q", e[protocol.KeyTestReturnCode], sealed)
	}
}

// TestB10ReadLimitIsNamed: more than may be read ends the command by that name,
// never as failing tests, and what was read of it is told.
func TestB10ReadLimitIsNamed(t *testing.T) {
	endless := "import os, unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n" +
		"        os.write(1, b'IT BEGINS\\n')\n        while True: os.write(1, b'x' * 4096)\n"
	w := newWorld(t, with(map[string]githosttest.File{"tests/test_endless.py": githosttest.Text(endless)}), steps(fix()))
	w.config.Policy.Limits.OutputReadBytes, w.config.Policy.Limits.OutputKeepBytes = 4<<20, 1<<20
	w.run.Job.Repairs = 0
	e := w.fail(protocol.CodeSandboxOutput)
	output, _ := e[protocol.KeyTestOutput].(string)
	if !strings.Contains(output, "IT BEGINS") || !strings.Contains(output, "left out") || !slices.Contains(e[protocol.KeyLimitsHit].([]string), "output") {
		t.Errorf("limits %v, output %.300q", e[protocol.KeyLimitsHit], output)
	}
	if w.pushed() {
		t.Error("something was pushed")
	}
}
