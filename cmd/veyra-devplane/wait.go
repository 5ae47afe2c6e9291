package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// The usual and the longest wait of one long poll.
const (
	waitUsual = 30 * time.Second
	waitMost  = 10 * time.Minute
)

// getWait answers once what it waits for is so: paired or qualified, which
// agent=ID narrows to one agent; accepted, done, approved or verified, which
// job=N narrows to one job. 409: it can't become so any more; 504: not within
// timeout.
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
		return agentsAre(q.Get("agent"), "CONNECTED", "ACTIVE"), timeout, nil
	case "qualified":
		return agentsAre(q.Get("agent"), "ACTIVE"), timeout, nil
	case "accepted", "done":
		return func(v controlplanetest.View) outcome { return jobsAre(v, job, what == "accepted") }, timeout, nil
	case "approved", "verified":
		return func(v controlplanetest.View) outcome { return verdictsAre(v, job, what == "approved") }, timeout, nil
	}
	return nil, 0, errors.New("for is one of paired, qualified, accepted, done, approved, verified")
}

// agentsAre waits for the agent that is named, or for any: there is one runtime
// in most trials.
func agentsAre(id string, statuses ...string) func(controlplanetest.View) outcome {
	return func(v controlplanetest.View) outcome {
		dead, counted := 0, 0
		for _, a := range v.Agents {
			if id != "" && a.ID != id {
				continue
			}
			counted++
			if slices.Contains(statuses, a.Status) {
				return reached
			}
			if a.Status == "DEAD" {
				dead++
			}
		}
		if dead > 0 && dead == counted {
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

// verdictsAre wants every verification, or those of the job named, to have its
// verdict; approved wants it to be APPROVED. None yet is worth waiting for
// unless the jobs have failed for good.
func verdictsAre(v controlplanetest.View, job int64, approved bool) outcome {
	judged := waiting
	for _, r := range v.Verifications {
		switch {
		case job != 0 && r.JobID != job:
		case r.Status == "COMPLETED" && approved && r.Verdict != "APPROVED":
			return hopeless
		case r.Status != "COMPLETED":
			return waiting
		default:
			judged = reached
		}
	}
	if judged == waiting && jobsAre(v, job, true) == hopeless {
		return hopeless
	}
	return judged
}
