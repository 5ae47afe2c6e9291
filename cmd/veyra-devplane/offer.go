package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// offer asks for an independent verification of an accepted job.
type offer struct {
	// JobID is the job; 0: the newest one.
	JobID int64 `json:"job_id"`
	// FailCriterion replaces the job's own, for this and every later
	// verification of the job.
	FailCriterion *int `json:"fail_criterion"`
}

// funding is what an offer has to know of a job that was placed.
type funding struct {
	title    string
	criteria int
}

// readOffer reads one JSON object, or nothing for the newest job.
func readOffer(body io.Reader) (offer, error) {
	var o offer
	decoder := json.NewDecoder(io.LimitReader(body, maxLinkBytes))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil && !errors.Is(err, io.EOF) {
		return o, fmt.Errorf("reading the offer: %w", err)
	}
	if o.JobID < 0 {
		return o, fmt.Errorf("job_id %d is no number of a job", o.JobID)
	}
	return o, nil
}

// offer makes the verification and returns its id; it is refused for a job
// without an accepted success.
func (w *world) offer(o offer) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.JobID == 0 {
		o.JobID = int64(len(w.placed)) // the plane counts from 1
	}
	funded, known := w.placed[o.JobID]
	if !known {
		return "", fmt.Errorf("job %d was not placed", o.JobID)
	}
	if o.FailCriterion != nil {
		if err := checkCriterion(*o.FailCriterion, funded.criteria); err != nil {
			return "", err
		}
		w.scripts.fail(funded.title, *o.FailCriterion)
	}
	return w.plane.VerifyJob(o.JobID)
}
