package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// waitMost bounds one long poll.
const (
	waitUsual    = 30 * time.Second
	waitMost     = 10 * time.Minute
	maxLinkBytes = 8 << 10
)

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

// postLink pairs with the runtime that a link names: {"link": …, "agent_id": …};
// without an agent_id with a new agent.
func (w *world) postLink(rw http.ResponseWriter, r *http.Request) {
	var in struct {
		Link    string `json:"link"`
		AgentID string `json:"agent_id"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxLinkBytes)).Decode(&in); err != nil || in.Link == "" {
		refuse(rw, http.StatusBadRequest, errors.New(`the body is not {"link": "veyra-connect://…"}`))
		return
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

func (w *world) getState(rw http.ResponseWriter, _ *http.Request) {
	answer(rw, http.StatusOK, w.state(w.plane.View()))
}

// getWait answers once what it waits for is so: paired, qualified, accepted or
// done; job=N narrows the last two to one job. 409: it can't become so any
// more; 504: not within timeout.
func (w *world) getWait(rw http.ResponseWriter, r *http.Request) {
	verdict, timeout, err := readWait(r)
	if err != nil {
		refuse(rw, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	view, err := w.plane.Wait(ctx, func(v controlplanetest.View) bool { return verdict(v) != waiting })
	status := http.StatusOK
	switch {
	case err != nil:
		status = http.StatusGatewayTimeout
	case verdict(view) == hopeless:
		status = http.StatusConflict
	}
	answer(rw, status, w.state(view))
}

// outcome is what a view says about a wish.
type outcome int

const (
	waiting outcome = iota
	reached
	hopeless
)

func readWait(r *http.Request) (func(controlplanetest.View) outcome, time.Duration, error) {
	q := r.URL.Query()
	timeout := waitUsual
	if text := q.Get("timeout"); text != "" {
		var err error
		if timeout, err = time.ParseDuration(text); err != nil || timeout <= 0 || timeout > waitMost {
			return nil, 0, fmt.Errorf("timeout %q is not within 0 and %s, as in 30s", text, waitMost)
		}
	}
	job := int64(0)
	if text := q.Get("job"); text != "" {
		var err error
		if job, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, 0, fmt.Errorf("job %q is no number", text)
		}
	}
	switch what := q.Get("for"); what {
	case "paired":
		return agentsAre("CONNECTED", "ACTIVE"), timeout, nil
	case "qualified":
		return agentsAre("ACTIVE"), timeout, nil
	case "accepted", "done":
		return func(v controlplanetest.View) outcome { return jobsAre(v, job, what == "accepted") }, timeout, nil
	}
	return nil, 0, errors.New("for is one of paired, qualified, accepted, done")
}

// agentsAre waits for any agent: there is one runtime in most trials.
func agentsAre(statuses ...string) func(controlplanetest.View) outcome {
	return func(v controlplanetest.View) outcome {
		dead := 0
		for _, a := range v.Agents {
			for _, status := range statuses {
				if a.Status == status {
					return reached
				}
			}
			if a.Status == "DEAD" {
				dead++
			}
		}
		if dead > 0 && dead == len(v.Agents) {
			return hopeless
		}
		return waiting
	}
}

// jobsAre wants every job, or the one named, to have its result; accepted wants
// successes. A job that was failed and is given out again still waits.
func jobsAre(v controlplanetest.View, job int64, accepted bool) outcome {
	counted := 0
	for _, j := range v.Jobs {
		if job != 0 && j.JobID != job {
			continue
		}
		counted++
		switch {
		case j.Status == "FAILED" && accepted:
			return hopeless
		case j.Status != "ACCEPTED" && j.Status != "FAILED":
			return waiting
		}
	}
	if counted == 0 {
		return waiting
	}
	return reached
}
