package coding

import (
	"crypto/sha256"

	"github.com/veyra-labs/veyra-sandboxd/provider"
)

// When the loop is taken to be stuck.
const (
	sameCalls    = 4  // one call with one result, in a row
	sameErrors   = 3  // one error, in a row
	sameCycles   = 6  // a cycle of two or three calls
	idleAfter    = 25 // calls after the first edit without an edit or a new result
	watchedCalls = 3 * sameCycles
)

// watch notices a model that repeats itself: one nudge, then the end.
type watch struct {
	recent  [][32]byte // of call and result
	errors  int
	lastErr string
	known   map[[32]byte]bool
	idle    int
	edited  bool
	nudged  bool
}

// see takes one call with what came of it. It returns advice for the model the
// first time and stuck the second.
func (w *watch) see(call provider.Call, o observation) (advice string, stuck bool) {
	w.add(call, o)
	advice = w.verdict()
	if advice == "" {
		return "", false
	}
	if w.nudged {
		return advice, true
	}
	w.nudged = true
	w.recent, w.errors, w.idle = nil, 0, 0
	return advice, false
}

func (w *watch) add(call provider.Call, o observation) {
	sum := sha256.Sum256([]byte(call.Name + "\x00" + string(call.Arguments) + "\x00" + o.text))
	w.recent = append(w.recent, sum)
	if len(w.recent) > watchedCalls {
		w.recent = w.recent[1:]
	}
	if o.failed && o.text == w.lastErr {
		w.errors++
	} else {
		w.errors = 1
	}
	if w.lastErr = ""; o.failed {
		w.lastErr = o.text
	}
	w.countIdle(sum, o)
}

func (w *watch) countIdle(sum [32]byte, o observation) {
	if w.known == nil {
		w.known = map[[32]byte]bool{}
	}
	fresh := !w.known[sum]
	w.known[sum] = true
	w.edited = w.edited || o.edited
	if o.edited || fresh || !w.edited {
		w.idle = 0
		return
	}
	w.idle++
}

func (w *watch) verdict() string {
	switch {
	case w.repeats(1, sameCalls):
		return "The same call gave the same result several times. Try something else, or call finish."
	case w.lastErr != "" && w.errors >= sameErrors:
		return "The same error came back several times. Try another way, or call finish."
	case w.repeats(2, sameCycles), w.repeats(3, sameCycles):
		return "The same few calls repeat in a circle. Try something else, or call finish."
	case w.idle >= idleAfter:
		return "Nothing was changed for a long time. Make the change, or call finish."
	}
	return ""
}

// repeats tells whether the newest period × times calls are one cycle.
func (w *watch) repeats(period, times int) bool {
	need := period * times
	if len(w.recent) < need {
		return false
	}
	tail := w.recent[len(w.recent)-need:]
	for i := period; i < need; i++ {
		if tail[i] != tail[i-period] {
			return false
		}
	}
	return true
}
