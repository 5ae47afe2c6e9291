package controlplanetest

import "maps"

// Counts are effects, not requests: what a runtime's repeats must not multiply.
type Counts struct {
	Challenges      int // challenges answered well
	Claims          int // claims answered 201
	Beats           int // beats stored, UNHEALTHY ones too
	Qualifications  int // submissions judged
	TokensIssued    int // credential answers given
	AcceptedResults int // SUCCEEDED results taken for the first time
	FailedResults   int // FAILED results taken for the first time
	Leases          int // leases given for jobs
	Reviews         int // leases given for verifications
	Verdicts        int // reports taken for the first time
}

// View is a copy of what a control plane knows.
type View struct {
	Counts Counts
	// Calls counts requests by endpoint, faulty ones too.
	Calls  map[Endpoint]int
	Agents []AgentView
	Jobs   []JobView
	// Verifications are in the order in which they were made.
	Verifications []VerificationView
}

// AgentView is one agent.
type AgentView struct {
	ID, RuntimeID string
	// Role is WORKER or VERIFIER.
	Role string
	// Status is PENDING, CONNECTED, ACTIVE, DEAD or DISCONNECTED.
	Status string
	// LastBeat is the last beat's body.
	LastBeat map[string]any
	// Qualifications are the ones given so far, the newest last.
	Qualifications []QualificationView
}

// QualificationView is one qualification.
type QualificationView struct {
	ID      string
	Attempt int
	// Status is PENDING, PASSED or FAILED; RuntimeError what a failed one said.
	Status, RuntimeError string
}

// JobView is one job.
type JobView struct {
	JobID                          int64
	AgentID, AssignmentID, LeaseID string
	Attempt                        int
	// Status is QUEUED, LEASED, ACCEPTED, FAILED or EXPIRED.
	Status string
	Branch string
	// Phases lists the phases that beats named, repeats left out.
	Phases []string
	// Evidence is the last evidence taken.
	Evidence map[string]any
	// Signature and Hash belong to Evidence.
	Signature, Hash string
	// Refusal is the detail of the last refused result.
	Refusal string
}

// VerificationView is one verification.
type VerificationView struct {
	ID                   string
	JobID                int64
	AgentID, LeaseID     string
	WorkerAssignmentID   string
	Leases               int // how often it was given out
	Status               string
	Verdict              string
	Phases               []string
	LastStatus, LastSaid string // of the beats about it
	// Report is the one taken; Signature and Hash belong to it.
	Report          map[string]any
	Signature, Hash string
	// Refusal is the detail of the last refused report.
	Refusal string
}

func (p *Plane) view() View {
	v := View{Counts: p.counts, Calls: maps.Clone(p.calls)}
	for _, a := range p.order {
		v.Agents = append(v.Agents, a.view())
	}
	for _, j := range p.jobs {
		v.Jobs = append(v.Jobs, j.view(p.opts.Now()))
	}
	for _, r := range p.reviews {
		v.Verifications = append(v.Verifications, r.view(p.opts.Now()))
	}
	return v
}

func (a *agent) view() AgentView {
	v := AgentView{ID: a.id, RuntimeID: a.runtimeID, Role: a.role, Status: a.status, LastBeat: maps.Clone(a.lastBeat)}
	for _, q := range a.qualifications {
		v.Qualifications = append(v.Qualifications, QualificationView{
			ID: q.id, Attempt: q.attempt, Status: q.status, RuntimeError: q.runtimeError,
		})
	}
	return v
}
