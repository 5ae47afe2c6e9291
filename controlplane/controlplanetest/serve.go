package controlplanetest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// maxBody is what a request body must stay below.
const maxBody = 2_621_440

// htmlError is what the framework in front of the real control plane says.
const htmlError = "<!doctype html><html><head><title>Error</title></head><body><h1>Error</h1></body></html>"

// call is one authenticated request.
type call struct {
	agent *agent
	body  map[string]any
}

// text returns a member of the body that must be a string; anything else is
// the empty string.
func (c call) text(name string) string {
	s, _ := c.body[name].(string)
	return s
}

// reply is a status with a JSON body; html makes it the framework's error page.
type reply struct {
	status int
	body   any
	html   bool
}

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }

func refuse(status int, detail string, args ...any) reply {
	return reply{status: status, body: map[string]any{"detail": fmt.Sprintf(detail, args...)}}
}

func crash(status int) reply { return reply{status: status, html: true} }

// ServeHTTP answers the endpoints below Prefix.
func (p *Plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, found := strings.CutPrefix(r.URL.Path, Prefix)
	e := Endpoint(strings.TrimSuffix(name, "/"))
	serve := p.endpoint(e)
	if !found || serve == nil {
		crash(http.StatusNotFound).write(w)
		return
	}
	if !strings.HasSuffix(name, "/") {
		// As the framework does: the redirect turns a POST into a GET.
		http.Redirect(w, r, r.URL.Path+"/", http.StatusMovedPermanently)
		return
	}
	p.serveFaulty(w, r, e, func(w http.ResponseWriter, r *http.Request) {
		p.answer(w, r, e, serve)
	})
}

func (p *Plane) endpoint(e Endpoint) func(call) reply {
	switch e {
	case Heartbeat:
		return p.beat
	case Configuration:
		return p.configuration
	case Qualification:
		return p.submitQualification
	case JobCredential:
		return p.credential
	case JobResult:
		return p.result
	case VerificationCredential:
		return p.readCredential
	case VerificationResult:
		return p.verdict
	}
	return nil
}

// answer reads, authenticates and carries out one request under the lock, as a
// transaction of the real control plane would.
func (p *Plane) answer(w http.ResponseWriter, r *http.Request, e Endpoint, serve func(call) reply) {
	id := rand.Text()
	w.Header().Set("X-Request-ID", id)
	got := p.carryOut(r, e, serve)
	p.opts.Log.Info("control plane", "endpoint", string(e), "status", got.status, "request_id", id, "detail", got.detail())
	got.write(w)
}

func (p *Plane) carryOut(r *http.Request, e Endpoint, serve func(call) reply) reply {
	body, bad := readBody(r, e)
	if bad != nil {
		return *bad
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	a, bad := p.authenticate(r, body)
	if bad != nil {
		return *bad
	}
	return serve(call{agent: a, body: body})
}

func (r reply) detail() string {
	if m, isMap := r.body.(map[string]any); isMap {
		detail, _ := m["detail"].(string)
		return detail
	}
	return ""
}

func (r reply) write(w http.ResponseWriter) {
	if r.html {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(r.status)
		_, _ = io.WriteString(w, htmlError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	_ = json.NewEncoder(w).Encode(r.body)
}

// readBody checks method, size and type before anything else.
func readBody(r *http.Request, e Endpoint) (map[string]any, *reply) {
	method := http.MethodPost
	if e == Configuration {
		method = http.MethodGet
	}
	if r.Method != method {
		return nil, ref(refuse(http.StatusMethodNotAllowed, "Method %q not allowed.", r.Method))
	}
	if method == http.MethodGet {
		return map[string]any{}, nil
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil || len(raw) >= maxBody {
		return nil, ref(crash(http.StatusBadRequest))
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return nil, ref(refuse(http.StatusUnsupportedMediaType, "Unsupported media type in request."))
	}
	return parseBody(raw)
}

func parseBody(raw []byte) (map[string]any, *reply) {
	if !utf8.Valid(raw) {
		return nil, ref(refuse(http.StatusBadRequest, "JSON parse error"))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var body map[string]any
	if err := dec.Decode(&body); err != nil || body == nil {
		return nil, ref(refuse(http.StatusBadRequest, "JSON parse error"))
	}
	if holdsNUL(body) {
		// The database refuses U+0000 in text.
		return nil, ref(crash(http.StatusInternalServerError))
	}
	return body, nil
}

func ref(r reply) *reply { return &r }

func holdsNUL(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.ContainsRune(v, 0)
	case []any:
		for _, item := range v {
			if holdsNUL(item) {
				return true
			}
		}
	case map[string]any:
		for name, member := range v {
			if holdsNUL(name) || holdsNUL(member) {
				return true
			}
		}
	}
	return false
}

// authenticate finds the agent of the bearer and checks that query, body and
// header name no other. p.mu is held.
func (p *Plane) authenticate(r *http.Request, body map[string]any) (*agent, *reply) {
	if r.Header.Get("Origin") != "" || r.Header.Get("Cookie") != "" {
		return nil, ref(refuse(http.StatusForbidden, "CSRF Failed: Origin checking failed."))
	}
	bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return nil, ref(refuse(http.StatusUnauthorized, "Runtime credential missing."))
	}
	var a *agent
	for _, candidate := range p.order {
		if candidate.credential != "" && candidate.credential == bearer {
			a = candidate
		}
	}
	if a == nil {
		return nil, ref(refuse(http.StatusUnauthorized, "Runtime credential is unknown or revoked."))
	}
	if !sameAgent(a.id, r, body) {
		return nil, ref(refuse(http.StatusForbidden, "The agent ids of this request do not agree."))
	}
	return a, nil
}

func sameAgent(id string, r *http.Request, body map[string]any) bool {
	query, _ := url.ParseQuery(r.URL.RawQuery)
	if got := query.Get("agent_id"); got != "" && got != id {
		return false
	}
	if got, given := body["agent_id"]; given && got != id {
		return false
	}
	if r.Method == http.MethodPost && body["agent_id"] == nil {
		return false
	}
	return r.Header.Get("X-Veyra-Agent-ID") == id
}
