package main_test

import (
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// TestJobsInGVisor goes the way of both roles with each sandbox in a kernel of
// its own: the result is accepted, the verdict is given, and both say what the
// walls were. A seccomp profile of ours binds no command there, so none is named.
func TestJobsInGVisor(t *testing.T) {
	t.Parallel()
	runtimesIn(t, map[string]string{"runsc": ""})
	w := newWorld(t, true)
	p := w.newPlace()
	p.env = append(p.env, "VEYRA_SANDBOX_RUNTIME=runsc")
	d := w.start(p)
	d.pair(w)
	done := w.accepted(w.job("guest", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."}))
	wantEvidence(t, done, "funded_policy")
	wantGuest(t, done.Evidence["sandbox"])
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)

	p = w.newVerifierPlace()
	p.env = append(p.env, "VEYRA_SANDBOX_RUNTIME=runsc")
	d = w.verifier(p)
	w.script("Judge the good one", judgement(true))
	id := w.submission("judged", "Judge the good one", good, nil)
	v := w.reviewed(id, "it has a verdict", func(v controlplanetest.VerificationView) bool { return v.Verdict != "" })
	if v.Verdict != "APPROVED" || v.Leases != 1 {
		t.Errorf("%s after %d leases\n%s", v.Verdict, v.Leases, pretty(v))
	}
	d.stop()
	wantNothingLeft(t, d.instance(), d.state)
}

func wantGuest(t *testing.T, said any) {
	t.Helper()
	walls, _ := said.(map[string]any)
	_, profile := walls["seccomp_digest"]
	if walls["isolation"] != "gvisor" || walls["backend"] != "oci" || profile {
		t.Errorf("evidence says of the sandbox: %v", said)
	}
}
