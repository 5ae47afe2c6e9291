package waittest_test

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/wait/waittest"
)

// watched is a test whose end is looked at.
type watched struct {
	testing.TB
	said string
}

func (w *watched) Helper() {}

func (w *watched) Fatalf(format string, args ...any) {
	w.said = format
	for _, a := range args {
		if text, ok := a.(string); ok {
			w.said += " " + text
		}
	}
	runtime.Goexit()
}

// ended runs what waits to its end and returns what it said, and when.
func ended(f func(testing.TB)) (said string, after time.Duration) {
	w, began, done := &watched{}, time.Now(), make(chan struct{})
	go func() { defer close(done); f(w) }()
	<-done
	return w.said, time.Since(began)
}

func TestWaitsUntilItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		said, _ := ended(func(t testing.TB) { waittest.Until(t, "it", func() bool { looks++; return looks == 3 }) })
		if said != "" || looks != 3 {
			t.Errorf("%q after %d looks", said, looks)
		}
		said, after := ended(func(t testing.TB) { waittest.Until(t, "what never comes", func() bool { return false }) })
		if !strings.Contains(said, "what never comes") || after < waittest.Patience {
			t.Errorf("%q after %s", said, after)
		}
	})
}

func TestRestIsASecondWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := waittest.Rest(t, "a clock that stops", func() time.Duration { return min(time.Since(began), 5*time.Second) })
		if took := time.Since(began); got != 5*time.Second || took < 6*time.Second {
			t.Errorf("%s after %s", got, took)
		}
	})
}

func TestWaitsForAChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(chan int, 1)
		c <- 7
		if said, _ := ended(func(t testing.TB) {
			if got := waittest.For(t, "a number", c); got != 7 {
				t.Fatalf("%s", "another number")
			}
		}); said != "" {
			t.Error(said)
		}
		said, after := ended(func(t testing.TB) { waittest.For(t, "what never comes", c) })
		if !strings.Contains(said, "what never comes") || after != waittest.Patience {
			t.Errorf("%q after %s", said, after)
		}
	})
}
