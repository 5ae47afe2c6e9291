package supervisor_test

import (
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func job() controlplanetest.JobSpec {
	return controlplanetest.JobSpec{
		Owner: "o", Name: "n", Title: "Change a file", Description: "Do it.",
		RequiredCommands: []string{"pytest"}, Minutes: 30,
	}
}

func accepted(n int) func(controlplanetest.View) bool {
	return func(v controlplanetest.View) bool { return v.Counts.AcceptedResults >= n }
}

// The whole way: link, challenge, claim, beats, qualification, a paid job, its
// accepted result.
func TestFromLinkToAcceptedResult(t *testing.T) {
	h := newHouse(t, controlplanetest.Options{})
	h.boot()
	h.pair()
	view := h.wait("the agent is active", func(v controlplanetest.View) bool { return v.Agents[0].Status == "ACTIVE" })
	if view.Counts.Qualifications != 1 {
		t.Errorf("%d qualifications judged, want 1", view.Counts.Qualifications)
	}
	h.plane.AddJob(job())
	view = h.wait("a result is accepted", accepted(1))
	if view.Jobs[0].Status != "ACCEPTED" || view.Counts.TokensIssued != 1 {
		t.Errorf("job %+v, counts %+v", view.Jobs[0], view.Counts)
	}
	h.until("the outbox is empty", func(s supervisor.Status) bool { return len(s.Outbox) == 0 && s.Running == nil })
}
