package main

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// The roots of the parts that don't lie at the origin itself.
const (
	restRoot  = "/api/v3"
	modelRoot = "/v1"
	driveRoot = "/devplane/"
)

type worldOptions struct {
	Origin, Dir, Model, Key string
	Qualified, Verify       bool
	Attempts                int
}

// world is the control plane, the git host and the model as one http.Handler,
// with the endpoints that scripts drive them by. Anything may be called at
// once.
type world struct {
	origin  string
	dir     string
	plane   *controlplanetest.Plane
	git     *githosttest.Host
	model   *providertest.Model
	passes  *passes
	scripts *scripts
	mux     *http.ServeMux

	mu     sync.Mutex
	names  map[string]bool   // repositories that exist
	placed map[int64]funding // by job number
}

// newWorld wires the parts. The directory must exist and belong to this user:
// git refuses to serve another user's repositories.
func newWorld(o worldOptions) *world {
	w := &world{
		origin: o.Origin, dir: o.Dir, git: githosttest.New(o.Dir), scripts: newScripts(),
		names: map[string]bool{}, placed: map[int64]funding{},
	}
	w.git.PublicURL = o.Origin
	w.passes = newPasses(w.git, time.Now)
	w.model = &providertest.Model{Key: o.Key, Name: o.Model, Decide: w.scripts.decide}
	w.plane = controlplanetest.New(controlplanetest.Options{
		Origin: o.Origin, GitHub: pullReader{w.git, w.passes}, RepoToken: w.passes.issue, ReadToken: w.passes.lend,
		Qualified: o.Qualified, Verify: o.Verify, Attempts: o.Attempts,
	})
	w.mux = w.routes()
	return w
}

func (w *world) routes() *http.ServeMux {
	mux := http.NewServeMux()
	hosted := w.passes.guard(w.git)
	mux.Handle(controlplanetest.Prefix, w.plane)
	mux.Handle(restRoot+"/", http.StripPrefix(restRoot, hosted))
	mux.Handle(modelRoot+"/", w.model)
	mux.HandleFunc("POST "+driveRoot+"link", own(w.postLink))
	mux.HandleFunc("POST "+driveRoot+"jobs", own(w.postJob))
	mux.HandleFunc("POST "+driveRoot+"verifications", own(w.postVerification))
	mux.HandleFunc("GET "+driveRoot+"state", own(w.getState))
	mux.HandleFunc("GET "+driveRoot+"wait", own(w.getWait))
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		// Git's paths only: the REST calls have their root.
		if !strings.Contains(r.URL.Path, ".git/") {
			http.NotFound(rw, r)
			return
		}
		hosted.ServeHTTP(rw, r)
	})
	return mux
}

// ServeHTTP answers every part's requests.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) { w.mux.ServeHTTP(rw, r) }

// addresses is what a runtime has to be told.
func (w *world) addresses() map[string]string {
	return map[string]string{
		"control_plane": w.origin, "git": w.origin, "api": w.origin + restRoot, "model": w.origin + modelRoot,
		"model_name": w.model.Name, "dir": w.dir,
	}
}
