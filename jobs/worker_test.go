package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

func shell(script string) providertest.Step { return providertest.Step{Shell: script} }

func steps(all ...providertest.Step) func(providertest.Conversation) providertest.Step {
	return providertest.Steps(append(all, providertest.Step{Finish: "add adds now; see @someone and https://example.com"})...)
}

// TestPaidJobIsPublished: a change, a new file, a deletion and a mode change
// arrive as one commit of exactly the tested tree.
func TestPaidJobIsPublished(t *testing.T) {
	w := newWorld(t, project(), steps(fix(), shell("printf 'y = 2\\n' > new.py; rm old.py; chmod -x run.sh; mkdir -p ignored; echo z > ignored/z; echo z > a.log; python -m unittest discover -s tests")))
	e := w.succeed()
	if got := e[protocol.KeyChangedFiles]; !slices.Equal(got.([]string), []string{"calc.py", "new.py", "old.py", "run.sh"}) {
		// a host may list the deletion and the addition as a rename
		t.Logf("changed files as the host lists them: %v", got)
	}
	if w.show("calc.py") != "def add(a, b):\n    return a + b" || w.show("new.py") != "y = 2" {
		t.Errorf("calc.py = %q", w.show("calc.py"))
	}
	tree, _ := w.git.Git("acme", "shop", "ls-tree", "-r", w.run.Job.Delivery.Branch)
	for _, want := range []string{"100644 blob", "run.sh"} {
		if !strings.Contains(tree, want) {
			t.Errorf("tree:\n%s", tree)
		}
	}
	if strings.Contains(tree, "old.py") || strings.Contains(tree, "ignored") || strings.Contains(tree, "100755") || strings.Contains(tree, "pycache") {
		t.Errorf("tree:\n%s", tree)
	}
	w.checkCommit(e)
	w.checkEvidence(e)
}

func (w *world) checkCommit(e protocol.Evidence) {
	w.t.Helper()
	head, _ := w.git.Git("acme", "shop", "rev-parse", w.run.Job.Delivery.Branch)
	treeID, _ := w.git.Git("acme", "shop", "rev-parse", w.run.Job.Delivery.Branch+"^{tree}")
	parent, _ := w.git.Git("acme", "shop", "rev-parse", w.run.Job.Delivery.Branch+"^")
	if e[protocol.KeyCommitSHA] != head || e[protocol.KeyTreeSHA] != treeID || e[protocol.KeyBaseCommitSHA] != parent || parent != w.base {
		w.t.Errorf("evidence names commit %v, tree %v, base %v; the host has %s, %s, %s", e[protocol.KeyCommitSHA], e[protocol.KeyTreeSHA], e[protocol.KeyBaseCommitSHA], head, treeID, parent)
	}
	who, _ := w.git.Git("acme", "shop", "log", "-1", "--format=%an <%ae> %at %cn %ct %B", head)
	if want := "Veyra Agent <agent@veyra.local> 1793527200 Veyra Agent 1793527200 Veyra job 7: Make add add"; strings.TrimSpace(who) != want {
		w.t.Errorf("commit by %q, want %q", who, want)
	}
}

func (w *world) checkEvidence(e protocol.Evidence) {
	w.t.Helper()
	for key, want := range map[string]any{
		protocol.KeyOutcome: "SUCCEEDED", protocol.KeyTestReturnCode: 0, protocol.KeyBaselineReturnCode: 1,
		protocol.KeyCleanRoom: true, protocol.KeyPolicy: "strict", protocol.KeyBranch: w.run.Job.Delivery.Branch,
		protocol.KeyValidationSource: protocol.SourceFunded, protocol.KeyPullRequestNumber: int64(1),
	} {
		if got := fmt.Sprint(e[key]); got != fmt.Sprint(want) {
			w.t.Errorf("evidence %s = %s, want %v", key, got, want)
		}
	}
	if out := e[protocol.KeyTestOutput].(string); !strings.HasPrefix(out, "$ python -m unittest discover -s tests\n") || !strings.Contains(out, "OK") {
		w.t.Errorf("test output %q", out)
	}
	if _, err := canonjson.Hash(map[string]any(e)); err != nil {
		w.t.Errorf("evidence has no canonical text: %v", err)
	}
	if limits := fmt.Sprint(e[protocol.KeyLimitsHit]); limits != "[]" {
		w.t.Errorf("limits hit: %v", limits)
	}
}

// TestTreesThatChangeShape: directories for files and the reverse, emptied and
// made anew; the measured tree is the commit's or the job fails.
func TestTreesThatChangeShape(t *testing.T) {
	for name, script := range map[string]string{
		"directory made anew":   "rm -r tests; mkdir tests; printf '' > tests/__init__.py; printf 'import unittest\\n\\n\\nclass T(unittest.TestCase):\\n    def test(self):\\n        pass\\n' > tests/test_new.py",
		"file to directory":     "rm run.sh; mkdir -p run.sh/deep; echo x > run.sh/deep/x",
		"directory to file":     "rm -r docs; echo x > docs",
		"directory is gone":     "rm -r docs",
		"moved":                 "mv docs papers",
		"touched and rewritten": "touch docs/a.md; cat old.py > /tmp/o; rm old.py; cat /tmp/o > old.py; chmod +x old.py",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, with(map[string]githosttest.File{"docs/a.md": githosttest.Text("a\n"), "docs/sub/b.md": githosttest.Text("b\n")}), steps(fix(), shell(script)))
			w.run.Job.Repairs = 0
			w.checkCommit(w.succeed())
		})
	}
}

// TestDetectedCommands: without funded commands the repository's own are found.
func TestDetectedCommands(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.run.Job.Policy.RequiredCommands = nil
	e := w.succeed()
	if e[protocol.KeyValidationSource] != protocol.SourceDetected || !slices.Equal(e[protocol.KeyValidationCommands].([]string), []string{"python -m pytest -q"}) {
		t.Errorf("%v %v", e[protocol.KeyValidationSource], e[protocol.KeyValidationCommands])
	}
}

// TestRepairGetsTheOutput: the failing round's output goes back to the model,
// in a new sandbox on the last tree.
func TestRepairGetsTheOutput(t *testing.T) {
	wrong := steps(shell("sed -i 's/a - b/a * b/' calc.py; echo kept > kept.py"))
	right := steps(shell("grep -q kept kept.py && sed -i 's/a . b/a + b/' calc.py"))
	w := newWorld(t, project(), providertest.Repair(wrong, right, "The tests failed"))
	e := w.succeed()
	if e[protocol.KeyRepairAttempts] != 1 || w.show("kept.py") != "kept" {
		t.Errorf("repairs %v", e[protocol.KeyRepairAttempts])
	}
	last := w.model.Requests()[2]
	if !strings.Contains(last.User, "AssertionError: 6 != 5") {
		t.Errorf("the repair's prompt lacks the output:\n%s", last.User)
	}
	if !slices.Contains(w.ports.phases, protocol.PhaseRepairing) {
		t.Errorf("phases %v", w.ports.phases)
	}
}

// TestChangesThatMustNotBeDelivered: each ends in its code, before the push.
func TestChangesThatMustNotBeDelivered(t *testing.T) {
	cases := map[string]struct {
		script string
		want   protocol.Code
	}{
		"nothing":           {"true", protocol.CodeEmptyDiff},
		"only ignored":      {"mkdir ignored; echo x > ignored/x", protocol.CodeEmptyDiff},
		"workflow":          {"mkdir -p .GitHub/Workflows; echo x > .GitHub/Workflows/ci.yml", protocol.CodePolicyPathViolation},
		"env file":          {"echo x > .env.prod", protocol.CodePolicyPathViolation},
		"agent file E13":    {"echo x > AGENTS.md", protocol.CodeProtectedFileChanged},
		"dependency":        {"echo requests > requirements.txt", protocol.CodeProtectedFileChanged},
		"migration":         {"mkdir migrations; echo x > migrations/0001.py", protocol.CodeProtectedFileChanged},
		"link E04":          {"ln -s /etc/passwd leak", protocol.CodeChangeUnsupported},
		"fifo E06":          {"rm calc.py; mkfifo calc.py", protocol.CodeChangeUnsupported},
		"hard link E05":     {"ln calc.py twin.py", protocol.CodeChangeUnsupported},
		"backslash E09":     {"echo x > 'a\\b'", protocol.CodeChangeUnsupported},
		"case twins E09":    {"echo x > new.py; echo y > NEW.py", protocol.CodeChangeUnsupported},
		"nested git E01":    {"mkdir -p sub/.git/hooks; echo x > sub/.git/hooks/pre-push", protocol.CodeChangeUnsupported},
		"tests still fail":  {"echo x > other.py", protocol.CodeTestsFailedAfterRepair},
		"too many files":    {"for i in $(seq 901); do echo x > f$i; done", protocol.CodeChangeTooLarge},
		"names too long":    {"d=$(printf 'x%.0s' $(seq 200)); p=$d/$d/$d/$d/$d/$d/$d; mkdir -p $p; for i in $(seq 850); do echo x > $p/$i; done", protocol.CodeChangeTooLarge},
		"tests are removed": {"rm -r tests; mkdir tests; touch tests/__init__.py", protocol.CodeTestsFailedAfterRepair},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, project(), steps(shell(c.script)))
			w.run.Job.Repairs = 0
			e := w.fail(c.want)
			if w.pushed() {
				t.Error("something was pushed")
			}
			if strings.Contains(e[protocol.KeySummary].(string), "\n") {
				t.Errorf("summary %q", e[protocol.KeySummary])
			}
		})
	}
}

// TestD09SecretInAChange: an exact secret of this host, in any encoding.
func TestD09SecretInAChange(t *testing.T) {
	for name, script := range map[string]string{
		"raw": "echo " + providerKey + " > notes.txt", "base64": "printf %s xx" + repoToken + " | base64 -w0 > notes.txt",
	} {
		w := newWorld(t, project(), steps(shell(script)))
		e := w.fail(protocol.CodeSecretsFound)
		text, _ := json.Marshal(e)
		for _, secret := range []string{providerKey, repoToken} {
			if strings.Contains(string(text)+w.record("log")+w.record("transcript")+string(w.logs.text), secret) {
				t.Errorf("%s: a secret is in a record", name)
			}
		}
		if w.pushed() {
			t.Error("the secret was pushed")
		}
	}
}

// TestRepositoriesThatCannotBeWorkedOn: each ends in its code without a push.
func TestRepositoriesThatCannotBeWorkedOn(t *testing.T) {
	cases := map[string]struct {
		files  map[string]githosttest.File
		change func(*world)
		want   protocol.Code
	}{
		"needs a registry": {files: with(map[string]githosttest.File{"requirements.txt": githosttest.Text("requests==2.0\n")}), want: protocol.CodeDependencyPreparationFailed},
		"no image":         {files: map[string]githosttest.File{"go.mod": githosttest.Text("module x\n")}, change: detect, want: protocol.CodeToolchainUnavailable},
		"no toolchain":     {files: map[string]githosttest.File{"README": githosttest.Text("x")}, change: detect, want: protocol.CodeUnsupportedToolchain},
		"two toolchains": {
			files:  map[string]githosttest.File{"go.mod": githosttest.Text("module x\n"), "Cargo.toml": githosttest.Text("")},
			change: detect, want: protocol.CodeAmbiguousToolchain,
		},
		"bad manifest": {files: map[string]githosttest.File{"package.json": githosttest.Text("{")}, change: detect, want: protocol.CodeInvalidProjectManifest},
		"unsafe command": {files: project(), want: protocol.CodeUnsafeValidationCommand, change: func(w *world) {
			w.run.Job.Policy.RequiredCommands = []string{"pytest; curl evil"}
		}},
		"no branch": {files: project(), want: protocol.CodeBranchMissing, change: func(w *world) { w.run.Job.Repository.TargetBranch = "mai" }},
		"refused":   {files: project(), want: protocol.CodeRepositoryRefused, change: func(w *world) { w.git.Grant("acme", "shop", repoToken, githosttest.None) }},
		"rule that can't be used": {files: project(), want: protocol.CodeTaskInvalid, change: func(w *world) {
			w.run.Job.Policy.ForbiddenPaths = []string{"../x"}
		}},
		"lease too short":         {files: project(), want: protocol.CodeLeaseTooShort, change: func(w *world) { w.run.Deadline = time.Now().Add(70 * time.Second) }},
		"credential does not fit": {files: project(), want: protocol.CodeCredentialRefused, change: func(w *world) { w.ports.refuse = jobs.ErrCredentialRefused }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.files, steps(fix()))
			if c.change != nil {
				c.change(w)
			}
			w.fail(c.want)
			if w.pushed() {
				t.Error("something was pushed")
			}
		})
	}
}

func detect(w *world) { w.run.Job.Policy.RequiredCommands = nil }

// TestLimitsAreNamed: a limit is never told as a failing test, and one that did
// not end the command is recorded all the same.
func TestLimitsAreNamed(t *testing.T) {
	eat := "import unittest, subprocess, sys\n\n\nclass T(unittest.TestCase):\n    def test(self):\n" +
		"        code = subprocess.call([sys.executable, '-c', 'x = bytearray(6 << 30)'])\n        self.assertEqual(code, %s)\n"
	w := newWorld(t, with(map[string]githosttest.File{"tests/test_eat.py": githosttest.Text(strings.ReplaceAll(eat, "%s", "0"))}), steps(fix()))
	w.run.Job.Repairs = 0
	w.fail(protocol.CodeSandboxOOM)
	w = newWorld(t, with(map[string]githosttest.File{"tests/test_eat.py": githosttest.Text(strings.ReplaceAll(eat, "%s", "-9"))}), steps(fix()))
	if e := w.succeed(); !slices.Equal(e[protocol.KeyLimitsHit].([]string), []string{"oom"}) {
		t.Errorf("limits hit: %v", e[protocol.KeyLimitsHit])
	}
}

// TestNoTestsRun (I07): a detected command that runs nothing is no pass.
func TestNoTestsRun(t *testing.T) {
	w := newWorld(t, map[string]githosttest.File{"pyproject.toml": githosttest.Text("[project]\nname='x'\nversion='1'\n"), "x.py": githosttest.Text("x = 1\n")},
		steps(shell("echo 'x = 2' > x.py")))
	w.run.Job.Policy.RequiredCommands, w.run.Job.Repairs = nil, 0
	w.fail(protocol.CodeNoTestsRun)
}

// TestI06EndedRunnerIsNoPass (I06): a model's change that ends the runner with 0
// is not delivered; told of it, the model may mend it.
func TestI06EndedRunnerIsNoPass(t *testing.T) {
	cheat := steps(shell("printf 'import os\\nos._exit(0)\\n' > calc.py"))
	for _, command := range []string{"python -m unittest discover -s tests", pytest} {
		w := newWorld(t, project(), cheat)
		w.run.Job.Policy.RequiredCommands, w.run.Job.Repairs = []string{command}, 0
		if w.fail(protocol.CodeTestsFailedAfterRepair); w.pushed() {
			t.Error("something was pushed")
		}
	}
	right := steps(shell("printf 'def add(a, b):\\n    return a + b\\n' > calc.py"))
	if e := newWorld(t, project(), providertest.Repair(cheat, right, "told a result")).succeed(); e[protocol.KeyRepairAttempts] != 1 {
		t.Errorf("repairs %v", e[protocol.KeyRepairAttempts])
	}
}

// TestTestsSeeNoSecretAndNoNetwork (invariant 1): what the tests print of their
// surroundings holds no canary, and they reach nothing.
func TestTestsSeeNoSecretAndNoNetwork(t *testing.T) {
	probe := `import glob, os, socket, unittest


class T(unittest.TestCase):
    def test_surroundings(self):
        seen = [repr(dict(os.environ))]
        for name in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/run/**', recursive=True):
            try:
                seen.append(name + open(name, 'rb').read(100000).decode('latin1'))
            except OSError as e:
                seen.append(repr(e))
        caps = [l for l in open('/proc/self/status') if l.startswith('Cap')]
        seen += caps
        for address in [('169.254.169.254', 80), ('127.0.0.1', 9100), ('10.0.0.1', 443)]:
            try:
                socket.create_connection(address, 2).close()
                seen.append('REACHED')
            except OSError as e:
                seen.append(repr(e))
        print('\n'.join(seen))
        self.assertEqual(sorted({l.split()[1] for l in caps}), ['0000000000000000'])
`
	w := newWorld(t, with(map[string]githosttest.File{"tests/test_probe.py": githosttest.Text(probe)}), steps(fix()))
	e := w.succeed()
	out := e[protocol.KeyTestOutput].(string) + w.record("log")
	for _, canary := range []string{providerKey, repoToken, leaseToken, "[redacted]", "REACHED"} {
		if strings.Contains(out, canary) {
			t.Errorf("the tests saw %q", canary)
		}
	}
	if !strings.Contains(out, "HOME") {
		t.Errorf("the probe printed nothing of use: %s", out)
	}
}

// TestTestsCannotChangeTheCommit (E21): a test that writes over tests, plants
// conftest.py and deletes sources changes neither the commit nor the next
// command's output or code.
func TestTestsCannotChangeTheCommit(t *testing.T) {
	evil := "import os, subprocess, unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n" +
		"        open('conftest.py', 'w').write('raise SystemExit(0)')\n        open('tests/test_calc.py', 'w').write('')\n" +
		"        os.path.exists('run.sh') and os.remove('run.sh')\n        which = 'SECOND' if os.path.exists('/tmp/ran') else 'FIRST'\n        open('/tmp/ran', 'w').close()\n" +
		"        subprocess.Popen(['sh', '-c', 'while :; do echo FORGED BY THE %s; sleep 0.01; done' % which], start_new_session=True)\n"
	w := newWorld(t, with(map[string]githosttest.File{"tests/test_evil.py": githosttest.Text(evil)}), steps(fix()))
	w.run.Job.Policy.RequiredCommands = []string{"python -m unittest discover -s tests", "python -m unittest discover -s tests -p test_evil.py"}
	e := w.succeed()
	second := e[protocol.KeyTestOutput].(string)
	second = second[strings.Index(second, "$ python -m unittest discover -s tests -p test_evil.py"):]
	if strings.Contains(second, "FORGED BY THE FIRST") || !strings.Contains(w.record("log"), "FORGED BY THE FIRST") {
		t.Errorf("the first command's left-over wrote into the second's output, or never ran:\n%s", w.record("log"))
	}
	if !strings.Contains(w.show("tests/test_calc.py"), "test_add") || w.show("run.sh") == "" {
		t.Error("the tests changed the commit")
	}
	if !strings.Contains(w.record("log"), `the tests changed "conftest.py"`) {
		t.Errorf("what the tests changed is not told:\n%s", w.record("log"))
	}
	w.checkCommit(e)
}

// TestRestartGoesOnFromTheIntent: killed after the intent, the next execution
// needs neither model nor sandbox and makes the same commit, once.
func TestRestartGoesOnFromTheIntent(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	ctx, cancel := context.WithCancel(t.Context())
	w.ports.onSave = func(name string) {
		if name == "publish" {
			cancel()
		}
	}
	if first := w.executeIn(ctx); first.Abandoned != "CANCELLED" || w.pushed() {
		t.Fatalf("%+v, pushed %v", first, w.pushed())
	}
	asked := len(w.model.Requests())
	w.config.Backend = nil // a sandbox would panic
	e := w.succeed()
	if len(w.model.Requests()) != asked {
		t.Error("the model was asked again")
	}
	w.checkCommit(e)
	w.checkEvidence(e)
}

// TestLostAnswersPublishOnce: the push and the creation of the pull request
// arrived, their answers did not.
func TestLostAnswersPublishOnce(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	lost := map[string]bool{}
	w.git.Fault = func(r *http.Request) githosttest.Fault {
		for _, path := range []string{"git-receive-pack", "/pulls"} {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, path) && !lost[path] {
				lost[path] = true
				return githosttest.Lose()
			}
		}
		return githosttest.Pass()
	}
	e := w.succeed()
	if len(lost) != 2 || e[protocol.KeyPullRequestNumber] != int64(1) {
		t.Errorf("lost %v, pull request %v", lost, e[protocol.KeyPullRequestNumber])
	}
	w.checkCommit(e)
}

// TestLostLeasePushesNothing: while the credential is refused nothing is
// pushed, and nothing is submitted.
func TestLostLeasePushesNothing(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.ports.onSave = func(name string) {
		if name == "publish" {
			w.ports.mu.Lock()
			w.ports.refuse = errors.Join(jobs.ErrLeaseLost)
			w.ports.mu.Unlock()
		}
	}
	if outcome := w.execute(); outcome.Abandoned != "LEASE_LOST" || w.pushed() {
		t.Errorf("%+v, pushed %v", outcome, w.pushed())
	}
}

// TestF07DivergedBranch: another commit on the leased branch stays.
func TestF07DivergedBranch(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	if _, err := w.git.Commit("acme", "shop", w.run.Job.Delivery.Branch, map[string]githosttest.File{"x": githosttest.Text("x")}); err != nil {
		t.Fatal(err)
	}
	w.fail(protocol.CodeRemoteDiverged)
	if w.show("x") != "x" {
		t.Error("the branch was overwritten")
	}
}

// TestF07BranchThatAppearsLate: the branch was not there when the tests ran, and
// is when its push is due.
func TestF07BranchThatAppearsLate(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.ports.onSave = func(name string) {
		if name != "publish" {
			return
		}
		if w.pushed() {
			t.Error("something was pushed before the intent was journaled")
		}
		if _, err := w.git.Commit("acme", "shop", w.run.Job.Delivery.Branch, map[string]githosttest.File{"x": githosttest.Text("x")}); err != nil {
			t.Error(err)
		}
	}
	w.fail(protocol.CodeRemoteDiverged)
	if w.show("x") != "x" {
		t.Error("the branch was overwritten")
	}
}

// TestProviderFailuresHaveTheirCode: what the model's side does wrong.
func TestProviderFailuresHaveTheirCode(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.model.Key = "another key"
	w.fail(protocol.CodeProviderAuthFailed)
	if w.ports.phases[len(w.ports.phases)-1] != protocol.PhaseFailed {
		t.Errorf("phases %v", w.ports.phases)
	}
}
