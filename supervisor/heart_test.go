package supervisor_test

import (
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

func TestBeatsKeepTheirInterval(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		l.pair()
		before := l.plane.View().Counts.Beats
		l.pass(100 * time.Second)
		if n := l.plane.View().Counts.Beats - before; n < 19 || n > 21 {
			t.Errorf("%d beats in 100 s, want 20", n)
		}
	})
}
