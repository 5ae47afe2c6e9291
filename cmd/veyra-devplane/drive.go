package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// maxLinkBytes bounds what is read of a link or an offer.
const maxLinkBytes = 8 << 10

// own keeps web pages out: a browser sends Origin with what a page posts, and
// the page's name as Host when that name was bent to point here.
func own(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		ip := net.ParseIP(host)
		if r.Header.Get("Origin") != "" || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			answer(w, http.StatusForbidden, map[string]string{"error": "this is for local scripts only"})
			return
		}
		next(w, r)
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, map[string]string{"error": err.Error()})
}

// postLink pairs with the runtime that a link names: {"link": …, "agent_id": …}
// with an agent that is there, {"link": …, "role": "VERIFIER"} with a new one of
// that role, which is WORKER unless it is said.
func (w *world) postLink(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		Link    string `json:"link"`
		AgentID string `json:"agent_id"`
		Role    string `json:"role"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxLinkBytes)).Decode(&in); err != nil || in.Link == "" {
		refuse(rw, http.StatusBadRequest, errors.New(`the body is not {"link": "veyra-connect://…"}`))
		return
	}
	if in.Role != "" && (in.AgentID != "" || in.Role != "WORKER" && in.Role != "VERIFIER") {
		refuse(rw, http.StatusBadRequest, errors.New("role is WORKER or VERIFIER, and for new agents only"))
		return
	}
	if in.AgentID == "" {
		in.AgentID = w.plane.AddAgent(controlplanetest.AgentSpec{Role: in.Role})
	}
	id, err := w.plane.PairWith(r.Context(), in.Link, controlplanetest.PairOptions{AgentID: in.AgentID})
	if err != nil {
		refuse(rw, http.StatusBadGateway, err)
		return
	}
	answer(rw, http.StatusOK, map[string]string{"agent_id": id})
}

// postJob places the job that the body describes, or the sample.
func (w *world) postJob(rw http.ResponseWriter, r *http.Request) {
	o, err := readOrder(r.Body)
	if err != nil {
		refuse(rw, http.StatusBadRequest, err)
		return
	}
	id, err := w.place(o)
	if err != nil {
		refuse(rw, http.StatusConflict, err)
		return
	}
	answer(rw, http.StatusCreated, map[string]int64{"job_id": id})
}

// postVerification offers an accepted job to a verifier.
func (w *world) postVerification(rw http.ResponseWriter, r *http.Request) {
	o, err := readOffer(r.Body)
	if err != nil {
		refuse(rw, http.StatusBadRequest, err)
		return
	}
	id, err := w.offer(o)
	if err != nil {
		refuse(rw, http.StatusConflict, err)
		return
	}
	answer(rw, http.StatusCreated, map[string]string{"verification_id": id})
}

func (w *world) getState(rw http.ResponseWriter, _ *http.Request) {
	answer(rw, http.StatusOK, w.state(w.plane.View()))
}
