package githosttest

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Access is what a token may do with a repository.
type Access int

// The kinds of access.
const (
	None Access = iota
	Read
	Write
)

// Request is one request as it came in, for tests that count credentials.
type Request struct {
	Method string
	Path   string
	Query  string
	Token  string // as sent, Basic or Bearer
}

// Host is the git host: an http.Handler that serves
// /<owner>/<name>.git/… and /repos/<owner>/<name>/…. All methods may be
// called at any time from any goroutine.
type Host struct {
	dir string

	// Fault, when set before serving, is asked for every request and may take
	// it over; see Lose, Break and Status.
	Fault func(r *http.Request) Fault
	// PublicURL is the start of html_url values; "" means the request's host.
	PublicURL string
	// OldProtocol makes the host ignore Git-Protocol, as an old server does.
	OldProtocol bool
	// NoPreviousName leaves previous_filename out of file lists.
	NoPreviousName bool
	// Lag is how many times a new pull request is shown with the head that it
	// had before the push.
	Lag int

	mu        sync.Mutex
	tokens    map[string]map[string]Access // repository → token → access
	protected map[string]bool              // full ref names, in every repository
	pulls     map[string][]*pull           // repository → its pull requests
	requests  []Request
}

// New makes a host with its repositories below dir, which must exist.
func New(dir string) *Host {
	return &Host{
		dir: dir, tokens: map[string]map[string]Access{},
		protected: map[string]bool{}, pulls: map[string][]*pull{},
	}
}

func key(owner, name string) string { return strings.ToLower(owner + "/" + name) }

// Bare is the path of a repository.
func (h *Host) Bare(owner, name string) string {
	return filepath.Join(h.dir, strings.ToLower(owner), strings.ToLower(name)+".git")
}

// Grant lets a token into a repository; None takes it out again.
func (h *Host) Grant(owner, name, token string, a Access) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := key(owner, name)
	if h.tokens[k] == nil {
		h.tokens[k] = map[string]Access{}
	}
	h.tokens[k][token] = a
}

// Protect refuses pushes to a full ref name with "ng", status 200.
func (h *Host) Protect(ref string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.protected[ref] = true
}

// Requests gives what came in so far.
func (h *Host) Requests() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Request(nil), h.requests...)
}

func (h *Host) access(owner, name, token string) Access {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tokens[key(owner, name)][token]
}

func (h *Host) isProtected(ref string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.protected[ref]
}

var (
	gitPath  = regexp.MustCompile(`^/([^/]+)/([^/]+?)\.git/(info/refs|git-upload-pack|git-receive-pack)$`)
	restPath = regexp.MustCompile(`^/repos/([^/]+)/([^/]+)/(.*)$`)
)

// ServeHTTP serves git and REST.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := requestToken(r)
	h.mu.Lock()
	h.requests = append(h.requests, Request{r.Method, r.URL.Path, r.URL.RawQuery, token})
	h.mu.Unlock()
	w, done := h.faulty(w, r)
	if done {
		return
	}
	defer finish(w)
	if m := restPath.FindStringSubmatch(r.URL.Path); m != nil {
		h.rest(w, r, m[1], m[2], m[3], h.access(m[1], m[2], token))
		return
	}
	m := gitPath.FindStringSubmatch(r.URL.Path)
	if m == nil {
		http.NotFound(w, r)
		return
	}
	h.git(w, r, m[1], m[2], m[3], token)
}

func requestToken(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// git checks access as a private repository's host does: no token is 401, a
// token without access 404, one that may only read 403.
func (h *Host) git(w http.ResponseWriter, r *http.Request, owner, name, rest, token string) {
	write := rest == "git-receive-pack" || r.URL.Query().Get("service") == "git-receive-pack"
	switch a := h.access(owner, name, token); {
	case token == "":
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "credential needed", http.StatusUnauthorized)
	case a == None:
		http.NotFound(w, r)
	case write && a != Write:
		http.Error(w, "read only", http.StatusForbidden)
	case rest == "git-receive-pack":
		h.receive(w, r, owner, name)
	default:
		h.backend(w, r, owner, name, rest, r.Body)
	}
}

func (h *Host) repoError(op, owner, name string, err error, out []byte) error {
	return fmt.Errorf("%s %s/%s: %w: %s", op, owner, name, err, out)
}
