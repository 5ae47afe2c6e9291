package jobs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestE16IgnoredIsLeftOutWhateverItIs: links, FIFOs and a repository below an
// ignored directory are left out, as are names no commit could hold.
func TestE16IgnoredIsLeftOutWhateverItIs(t *testing.T) {
	w := newWorld(t, project(), steps(fix(), shell("mkdir -p ignored/sub/.git/hooks; echo x > ignored/sub/.git/config; ln -s / ignored/root; mkfifo ignored/pipe; mkdir -p .git; echo x > .git/config")))
	e := w.succeed()
	w.checkCommit(e)
	if got := e[protocol.KeyChangedFiles].([]string); !slices.Equal(got, []string{"calc.py"}) {
		t.Errorf("changed files %q", got)
	}
}

// TestRepairAfterOddTrees: what a round left behind is handed to the next one,
// also where it holds what can't be delivered.
func TestRepairAfterOddTrees(t *testing.T) {
	for name, script := range map[string]string{
		"repositories inside": "mkdir -p .git/objects sub/.git ignored/x/.git; echo x > .git/config; echo x > ignored/x/.git/config; echo y > kept.py",
		"links and fifos":     "ln -s / ignored; rm run.sh; echo y > kept.py; chmod 000 old.py",
		"directory for file":  "rm old.py; mkdir old.py; echo y > old.py/a; rm -r tests; mkdir tests; echo > tests/__init__.py; echo y > kept.py",
		"closed directories":  "mkdir closed; echo x > closed/a.log; chmod 000 closed; echo y > kept.py",
	} {
		t.Run(name, func(t *testing.T) {
			wrong := steps(shell(script + "; echo 'def add(a, b): return 0' > calc.py"))
			right := steps(shell("test -f kept.py && printf 'def add(a, b):\\n    return a + b\\n' > calc.py && rm -rf old.py ignored && printf 'import unittest\\nfrom calc import add\\n\\n\\nclass T(unittest.TestCase):\\n    def test(self):\\n        self.assertEqual(add(2, 3), 5)\\n' > tests/test_calc.py; touch tests/__init__.py"))
			w := newWorld(t, project(), providertest.Repair(wrong, right, "The test"))
			w.run.Job.Repairs = 1
			outcome := w.execute()
			if outcome.Failure != "" && outcome.Failure != protocol.CodeChangeUnsupported {
				t.Fatalf("%s: %v\n%s", outcome.Failure, outcome.Evidence["summary"], w.record("log"))
			}
			if outcome.Failure == "" && w.show("kept.py") != "y" {
				t.Error("the first round's file is lost")
			}
		})
	}
}

// TestOddChangesAreTheJobsDoing (E08, E17): what a job brings about by odd
// trees is told as its change, never as trouble of this host.
func TestOddChangesAreTheJobsDoing(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   []protocol.Code
	}{
		"overlay attribute": {`python3 -c "import os; os.setxattr('calc.py', 'user.overlay.opaque', b'y')"`, []protocol.Code{protocol.CodeChangeUnsupported, protocol.CodeTestsFailedAfterRepair, protocol.CodeEmptyDiff}},
		"very deep":         {`python3 -c "import os; [(os.mkdir('d'), os.chdir('d')) for i in range(3000)]"`, []protocol.Code{protocol.CodeChangeTooLarge}},
		"many names":        {"mkdir ignored; cd ignored; seq 60000 | xargs touch", []protocol.Code{protocol.CodeChangeTooLarge}},
		"sparse giant":      {"truncate -s 1G big", []protocol.Code{protocol.CodeChangeTooLarge}},
		"submodule file":    {"echo '[submodule]' > .gitmodules", []protocol.Code{protocol.CodeProtectedFileChanged}},
		"edge space":        {"echo x > 'a '", []protocol.Code{protocol.CodeChangeUnsupported}},
		"not UTF-8":         {"echo x > $'a\\xff'", []protocol.Code{protocol.CodeChangeUnsupported}},
		"git by short name": {"mkdir git~1; echo x > git~1/config", []protocol.Code{protocol.CodeChangeUnsupported}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, project(), steps(shell(c.script)))
			w.run.Job.Repairs = 0
			outcome := w.execute()
			if !slices.Contains(c.want, outcome.Failure) || w.pushed() {
				t.Errorf("%s (%v), want %v\n%s", outcome.Failure, outcome.Evidence["summary"], c.want, w.record("log"))
			}
		})
	}
}

// flaky is a backend with trouble that passes.
type flaky struct {
	sandbox.Backend
	mu     sync.Mutex
	opens  []error
	starts []error
	runs   []error
	gone   bool
}

func take(mu *sync.Mutex, from *[]error) error {
	mu.Lock()
	defer mu.Unlock()
	if len(*from) == 0 {
		return nil
	}
	err := (*from)[0]
	*from = (*from)[1:]
	return err
}

func (f *flaky) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.Job, error) {
	if err := take(&f.mu, &f.opens); err != nil {
		return nil, err
	}
	job, err := f.Backend.OpenJob(ctx, spec)
	return flakyJob{job, f}, err
}

func (f *flaky) Sweep(ctx context.Context) (sandbox.Swept, error) {
	if f.gone {
		return nil, &sandbox.Error{Kind: sandbox.KindGone, Op: "sweeping"}
	}
	return f.Backend.Sweep(ctx)
}

type flakyJob struct {
	sandbox.Job
	f *flaky
}

func (j flakyJob) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := take(&j.f.mu, &j.f.starts); err != nil {
		return nil, err
	}
	place, err := j.Job.Create(ctx, spec)
	if err != nil || spec.Profile == sandbox.ProfileGit {
		return place, err
	}
	return flakySandbox{place, j.f}, nil
}

type flakySandbox struct {
	sandbox.Sandbox
	f *flaky
}

func (s flakySandbox) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	if err := take(&s.f.mu, &s.f.runs); err != nil {
		return sandbox.Exit{}, err
	}
	return s.Sandbox.Run(ctx, cmd)
}

// TestPassingTroubleOfTheHostIsWaitedOut: a failure told at once would bring the
// job back within seconds and use up its attempts.
func TestPassingTroubleOfTheHostIsWaitedOut(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.config.Backend = &flaky{
		Backend: backend.client,
		opens:   []error{&sandbox.Error{Kind: sandbox.KindNoRoom, Op: "opening job"}},
		starts:  []error{&sandbox.Error{Kind: sandbox.KindStart, Op: "starting"}},
		runs:    []error{&sandbox.Error{Kind: sandbox.KindCrashed, Op: "running"}},
	}
	w.checkCommit(w.succeed())
}

// TestJ15RunnerGoneWaitsForTheRestart: nothing is told about a host whose runner
// died; the run stays for the daemon's next start.
func TestJ15RunnerGoneWaitsForTheRestart(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	lost := &flaky{Backend: backend.client, gone: true, runs: []error{&sandbox.Error{Kind: sandbox.KindGone, Op: "running"}}}
	w.config.Backend = lost
	ctx, cancel := context.WithCancel(t.Context())
	// The restart comes only once the run says that it waits for it.
	w.ports.onPhase = func(message string) {
		if message == protocol.Lookup(protocol.CodeHostNotReady).Sentence {
			cancel()
		}
	}
	if outcome := w.executeIn(ctx); outcome.Abandoned != "CANCELLED" || w.pushed() {
		t.Errorf("%+v", outcome)
	}
}

// scripted is an engine that does what a test says.
type scripted func(ctx context.Context, place coding.Place, brief coding.Brief) (coding.Result, error)

func (s scripted) Change(ctx context.Context, place coding.Place, brief coding.Brief, _ coding.Meter) (coding.Result, error) {
	return s(ctx, place, brief)
}

func inside(ctx context.Context, place coding.Place, script string) error {
	exit, err := place.Run(ctx, sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Timeout: time.Minute})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("exit status %d", exit.Code)
	}
	return err
}

// TestEngineLeavesTimeForTheTests: a round that uses all of its time is still
// tested with the share that tests have.
func TestEngineLeavesTimeForTheTests(t *testing.T) {
	w := newWorld(t, project(), nil)
	var deadline time.Time
	w.config.Engine = scripted(func(ctx context.Context, place coding.Place, brief coding.Brief) (coding.Result, error) {
		deadline = brief.Deadline
		return coding.Result{Ended: coding.BudgetTime}, inside(ctx, place, "sed -i 's/a - b/a + b/' calc.py")
	})
	w.succeed()
	// 20 minutes: one is kept for the end, five for a run of the tests.
	if latest := w.run.Started.Add(14 * time.Minute); deadline.After(latest) {
		t.Errorf("the engine may work until %s after the start", deadline.Sub(w.run.Started))
	}
}

// TestI11BudgetThatEndsTheRepairsIsNamed: no further round without tokens, and
// no word about funded repairs that never were.
func TestI11BudgetThatEndsTheRepairsIsNamed(t *testing.T) {
	w := newWorld(t, project(), nil)
	rounds := 0
	w.config.Engine = scripted(func(ctx context.Context, place coding.Place, _ coding.Brief) (coding.Result, error) {
		rounds++
		return coding.Result{Ended: coding.BudgetTokens}, inside(ctx, place, "echo '# more' >> calc.py")
	})
	w.run.Job.Repairs = 3
	w.fail(protocol.CodeTokenBudgetExhausted)
	if rounds != 1 {
		t.Errorf("%d rounds without tokens", rounds)
	}
}

// TestRecordsOutliveARestart: what the first execution wrote is still there,
// the hash is over all of it, and no spooled change set stays.
func TestRecordsOutliveARestart(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	ctx, cancel := context.WithCancel(t.Context())
	w.ports.onSave = func(name string) {
		if name == "publish" {
			cancel()
		}
	}
	w.executeIn(ctx)
	first := w.record("log") + w.record("transcript")
	e := w.succeed()
	if !strings.Contains(first, "assistant") || !strings.HasPrefix(w.record("transcript"), "{") || !strings.Contains(w.record("log"), "phase BASELINE_VALIDATION") {
		t.Errorf("the first execution's record is gone:\n%s", w.record("log"))
	}
	if sum := sha256Hex(w.record("log")); e[protocol.KeyLogSHA256] != sum {
		t.Errorf("log_sha256 %v, the file's is %s", e[protocol.KeyLogSHA256], sum)
	}
	if left, _ := filepath.Glob(filepath.Join(w.run.Dir, "change-*.tree")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestSummaryNamesNoPlaceOfTheHost: a fault of ours is told without the
// directories of the machine.
func TestSummaryNamesNoPlaceOfTheHost(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.ports.onSave = func(name string) {
		if name == "publish" {
			_ = os.Remove(filepath.Join(w.run.Dir, "commit.pack"))
		}
	}
	e := w.fail(protocol.CodeInternalError)
	if summary := e[protocol.KeySummary].(string); strings.Contains(summary, w.run.Dir) || !strings.Contains(summary, "commit.pack") {
		t.Errorf("summary %q", summary)
	}
}

// TestE09CaseOnlyRenameShownTwice: the control plane takes the two names for
// one, so that its list could never equal the host's.
func TestE09CaseOnlyRenameShownTwice(t *testing.T) {
	w := newWorld(t, project(), steps(fix(), shell("rm old.py; seq 100 > OLD.py")))
	w.fail(protocol.CodeChangeUnsupported)
}

// TestSlowHostIsTheHostsTrouble (F09): a pack that comes too slowly for the
// set-up's share of the time is no limit of a sandbox.
func TestSlowHostIsTheHostsTrouble(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	w.config.Policy.Limits.SetupPercent, w.run.Job.Minutes = 1, 3 // 1.8 s
	w.config.GitOrigins = w.origins(w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !bytes.Contains(body, []byte("command=fetch")) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			w.git.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		_, _ = io.WriteString(rw, "000dpackfile\n0006\x02.") // the start, and then nothing
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	})))
	w.fail(protocol.CodeRepositoryUnreachable)
}
