package main_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// crashPoint is a request at whose arrival the daemon dies. The request itself
// has no effect; what an earlier, lost answer did stays done.
type crashPoint struct {
	name string
	at   func(*http.Request) bool
	// nth counts matching requests from 1.
	nth int
	// lost makes what a request does stay done while its answer never comes.
	lost func(w *world)
	// group kills signer and runner in the same moment.
	group bool
	// anew says that the model is asked again after the restart.
	anew bool
}

func isModel(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/chat/completions") }
func isPush(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/git-receive-pack")
}

func isPull(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pulls")
}

func isResult(r *http.Request) bool {
	return r.URL.Path == controlplanetest.Prefix+string(controlplanetest.JobResult)+"/"
}

func isGit(r *http.Request) bool {
	return strings.Contains(r.URL.Path, ".git/") || strings.HasPrefix(r.URL.Path, restRoot)
}

// from matches a request and all later ones to the git host.
func from(first func(*http.Request) bool) func(*http.Request) bool {
	var begun atomic.Bool
	return func(r *http.Request) bool {
		if first(r) {
			begun.Store(true)
		}
		return isGit(r) && begun.Load()
	}
}

// loseGit lets the git host do its work without an answer.
func loseGit(at func(*http.Request) bool) func(*world) {
	return func(w *world) {
		w.git.Fault = func(r *http.Request) githosttest.Fault {
			if at(r) {
				return githosttest.Lose()
			}
			return githosttest.Pass()
		}
	}
}

func loseResult(w *world) {
	w.plane.FaultNext(controlplanetest.JobResult, controlplanetest.Fault{Effect: true, Lose: true})
}

// crashPoints are new for each run of the test: some of them count what has come.
func crashPoints() []crashPoint {
	return []crashPoint{
		{name: "between accept and seal", at: isModel, nth: 1, anew: true},
		{name: "between accept and seal, all processes", at: isModel, nth: 2, group: true, anew: true},
		{name: "right after the intent to publish", at: isPush, nth: 1},
		{name: "push done, answer lost", at: from(isPush), nth: 2, lost: loseGit(isPush)},
		{name: "before the pull request", at: isPull, nth: 1, group: true},
		{name: "pull request made, answer lost", at: from(isPull), nth: 2, lost: loseGit(isPull)},
		{name: "between seal and deliver", at: isResult, nth: 1},
		{name: "between seal and deliver, all processes", at: isResult, nth: 1, group: true},
		{name: "result taken, answer lost", at: isResult, nth: 2, lost: loseResult},
	}
}

// TestKilledAnywhere kills the daemon once in the middle of a job and starts it
// again: the control plane gets one result, GitHub one branch and one pull
// request, and what was signed once is never signed differently.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range crashPoints() {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			killAt(t, point)
		})
	}
}

func killAt(t *testing.T, point crashPoint) {
	w := newWorld(t, true)
	if point.lost != nil {
		point.lost(w)
	}
	p := w.newPlace()
	d := w.ready(p)
	died := w.dieAt(point, d)
	id := w.job("killed", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."})
	select {
	case <-died:
	case <-time.After(patience):
		t.Fatal("the daemon never came to the point where it is killed")
	}
	asked := len(w.model.Requests())

	again := w.start(p)
	if again.instance() != d.instance() {
		t.Errorf("instance %s became %s", d.instance(), again.instance())
	}
	j := w.accepted(id)
	if anew := len(w.model.Requests()) > asked; anew != point.anew {
		t.Errorf("the model was asked again: %v, want %v", anew, point.anew)
	}
	wantOneResult(t, w, j)
	again.statusUntil("nothing is left to deliver", func(st supervisor.Status) bool { return len(st.Outbox) == 0 && st.Running == nil })
	again.stop()
	wantNothingLeft(t, again.instance(), again.state)
}

// dieAt kills the daemon when the point's request arrives.
func (w *world) dieAt(point crashPoint, d *daemon) <-chan struct{} {
	died := make(chan struct{})
	var mu sync.Mutex
	seen := 0
	w.onRequest(func(_ http.ResponseWriter, r *http.Request) {
		if !point.at(r) {
			return
		}
		mu.Lock()
		seen++
		now := seen == point.nth
		mu.Unlock()
		if !now {
			return
		}
		if point.group {
			d.killAll()
		} else {
			d.kill()
		}
		close(died)
		panic(http.ErrAbortHandler)
	})
	return died
}

func wantOneResult(t *testing.T, w *world, j controlplanetest.JobView) {
	t.Helper()
	view := w.plane.View()
	if got := view.Counts; got.AcceptedResults != 1 || got.FailedResults != 0 || got.Leases != 1 {
		t.Errorf("counts %+v: want one accepted result of one lease", got)
	}
	if pulls, branches := w.pushed("killed"); pulls != 1 || branches != 1 {
		t.Errorf("%d pull requests and %d branches, want one of each", pulls, branches)
	}
	signatures := map[string]int{}
	for _, body := range w.sent(controlplanetest.JobResult) {
		var sent struct {
			Hash      string `json:"evidence_hash"`
			Signature string `json:"signature"`
		}
		if err := json.Unmarshal([]byte(body), &sent); err != nil {
			t.Fatal(err)
		}
		signatures[sent.Hash+" "+sent.Signature]++
	}
	if len(signatures) != 1 || signatures[j.Hash+" "+j.Signature] == 0 {
		t.Errorf("hashes and signatures that were sent: %v, taken: %s %s", slices.Sorted(slices.Values(keys(signatures))), j.Hash, j.Signature)
	}
}
