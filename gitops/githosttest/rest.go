package githosttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// pull is a pull request: branches of one repository.
type pull struct {
	number     int
	title      string
	body       string
	head, base string
	state      string
	lag        int
	before     string // head id shown while lag lasts
}

// rest serves the pull request calls.
func (h *Host) rest(w http.ResponseWriter, r *http.Request, owner, name, rest string, a Access) {
	parts := strings.Split(rest, "/")
	switch {
	case r.Header.Get("User-Agent") == "":
		reply(w, http.StatusForbidden, map[string]string{"message": "a User-Agent is needed"})
	case a == None || parts[0] != "pulls":
		reply(w, http.StatusNotFound, map[string]string{"message": "Not Found"})
	case len(parts) == 1 && r.Method == http.MethodPost && a == Write:
		h.createPull(w, r, owner, name)
	case len(parts) == 1 && r.Method == http.MethodGet:
		h.listPulls(w, r, owner, name)
	case len(parts) >= 2 && r.Method == http.MethodGet:
		h.onePull(w, r, owner, name, parts[1:])
	default:
		reply(w, http.StatusForbidden, map[string]string{"message": "Resource not accessible"})
	}
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func invalid(w http.ResponseWriter, field, code, message string) {
	reply(w, http.StatusUnprocessableEntity, map[string]any{
		"message": "Validation Failed",
		"errors":  []map[string]string{{"resource": "PullRequest", "field": field, "code": code, "message": message}},
	})
}

func (h *Host) createPull(w http.ResponseWriter, r *http.Request, owner, name string) {
	var in struct{ Title, Head, Base, Body string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"message": "Problems parsing JSON"})
		return
	}
	head, base := h.tip(owner, name, in.Head), h.tip(owner, name, in.Base)
	h.mu.Lock()
	exists := false
	for _, p := range h.pulls[key(owner, name)] {
		exists = exists || p.state == "open" && p.head == in.Head && p.base == in.Base
	}
	h.mu.Unlock()
	switch {
	case head == "":
		invalid(w, "head", "invalid", "")
	case base == "":
		invalid(w, "base", "invalid", "")
	case exists:
		invalid(w, "", "custom", "A pull request already exists for "+owner+":"+in.Head+".")
	case head == base:
		invalid(w, "", "custom", "No commits between "+in.Base+" and "+in.Head)
	default:
		reply(w, http.StatusCreated, h.addPull(r, owner, name, &pull{
			title: in.Title, body: in.Body, head: in.Head, base: in.Base, state: "open", lag: h.Lag, before: base,
		}))
	}
}

func (h *Host) addPull(r *http.Request, owner, name string, p *pull) map[string]any {
	h.mu.Lock()
	list := h.pulls[key(owner, name)]
	p.number = len(list) + 1
	h.pulls[key(owner, name)] = append(list, p)
	h.mu.Unlock()
	head := h.tip(owner, name, p.head)
	_, _ = h.Git(owner, name, "update-ref", fmt.Sprintf("refs/pull/%d/head", p.number), head)
	return h.show(r, owner, name, p, head)
}

func (h *Host) tip(owner, name, branch string) string {
	id, err := h.Git(owner, name, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	if err != nil {
		return ""
	}
	return id
}

func (h *Host) show(r *http.Request, owner, name string, p *pull, head string) map[string]any {
	public := h.PublicURL
	if public == "" {
		public = "http://" + r.Host
	}
	repo := map[string]string{"full_name": owner + "/" + name}
	return map[string]any{
		"number": p.number, "state": p.state, "title": p.title, "body": p.body, "merged_at": nil,
		"html_url": fmt.Sprintf("%s/%s/%s/pull/%d", public, owner, name, p.number),
		"head":     map[string]any{"ref": p.head, "sha": head, "repo": repo},
		"base":     map[string]any{"ref": p.base, "sha": h.tip(owner, name, p.base), "repo": repo},
	}
}

func (h *Host) listPulls(w http.ResponseWriter, r *http.Request, owner, name string) {
	q := r.URL.Query()
	h.mu.Lock()
	list := append([]*pull(nil), h.pulls[key(owner, name)]...)
	h.mu.Unlock()
	out := []map[string]any{}
	for _, p := range list {
		head := q.Get("head")
		if (head == "" || head == owner+":"+p.head) && (q.Get("state") != "open" || p.state == "open") {
			out = append(out, h.show(r, owner, name, p, h.tip(owner, name, p.head)))
		}
	}
	reply(w, http.StatusOK, out)
}

func (h *Host) onePull(w http.ResponseWriter, r *http.Request, owner, name string, parts []string) {
	n, _ := strconv.Atoi(parts[0])
	h.mu.Lock()
	var p *pull
	if list := h.pulls[key(owner, name)]; n >= 1 && n <= len(list) {
		p = list[n-1]
	}
	h.mu.Unlock()
	switch {
	case p == nil:
		reply(w, http.StatusNotFound, map[string]string{"message": "Not Found"})
	case len(parts) == 1:
		reply(w, http.StatusOK, h.show(r, owner, name, p, h.shownTip(owner, name, p)))
	case parts[1] == "files":
		h.listFiles(w, r, owner, name, p)
	default:
		reply(w, http.StatusNotFound, map[string]string{"message": "Not Found"})
	}
}

// shownTip is the branch's tip, or what it was before while the lag lasts.
func (h *Host) shownTip(owner, name string, p *pull) string {
	h.mu.Lock()
	lagging := p.lag > 0
	p.lag = max(p.lag-1, 0)
	h.mu.Unlock()
	if lagging {
		return p.before
	}
	return h.tip(owner, name, p.head)
}

// ClosePull closes a pull request.
func (h *Host) ClosePull(owner, name string, number int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulls[key(owner, name)][number-1].state = "closed"
}
