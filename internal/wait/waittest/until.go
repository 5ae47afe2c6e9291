// Package waittest waits for what comes by itself and tells nobody. It is for
// tests only. Start reading at Until.
package waittest

import (
	"reflect"
	"testing"
	"time"
)

// Patience is more than a slow and busy machine needs for anything: nothing but a
// failing test ever waits that long.
const Patience = 4 * time.Minute

// pause is between two looks.
const pause = 20 * time.Millisecond

// Until looks again and again until holds says yes. A condition that never comes
// ends the test with what it was; so it may only be called by the test's own
// goroutine.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s until this: %s", Patience, what)
		}
	}
}

// Rest returns what look sees once it has seen the same for a second. What comes to
// rest late, as anything may on a busy machine, needs a condition of its own.
func Rest[T any](t testing.TB, what string, look func() T) T {
	t.Helper()
	now, since := look(), time.Now()
	Until(t, what+" is at rest", func() bool {
		if next := look(); !reflect.DeepEqual(now, next) {
			now, since = next, time.Now()
		}
		return time.Since(since) >= time.Second
	})
	return now
}

// For waits until a channel is closed or gives something. One on which nothing
// comes ends the test as Until does.
func For[T any](t testing.TB, what string, c <-chan T) (got T) {
	t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case got = <-c:
	case <-late.C:
		t.Fatalf("waited in vain for %s until this: %s", Patience, what)
	}
	return got
}
