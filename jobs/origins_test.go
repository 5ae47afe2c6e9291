package jobs_test

import (
	"net/http"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestJobDialsTheHostThatItNames: of several pinned hosts a job dials the one of
// its clone_url and no other; a host that is not listed is never dialled.
func TestJobDialsTheHostThatItNames(t *testing.T) {
	w := newWorld(t, project(), steps(fix()))
	other := w.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another pinned host was asked for %s", r.URL)
	}))
	named := w.config.GitOrigins[0]
	w.config.GitOrigins = append(w.origins(other), named)
	w.run.Job.Repository.CloneURL = named.URL("/acme/shop.git")
	w.succeed()
	if !w.pushed() {
		t.Error("nothing was pushed to the host that was named")
	}
	w.lease()
	w.config.GitOrigins = w.origins(other)
	w.run.Job.Repository.CloneURL = named.URL("/acme/shop.git")
	w.fail(protocol.CodeTaskInvalid)
}
