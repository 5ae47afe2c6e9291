package supervisor

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Status is what the operator sees of a daemon.
type Status struct {
	Instance  string             `json:"instance"`
	RuntimeID protocol.RuntimeID `json:"runtime_id"`
	PublicKey string             `json:"public_key"`
	Version   string             `json:"version"`
	Role      protocol.Role      `json:"role"`
	Pairing   PairState          `json:"pairing"`
	AgentID   protocol.AgentID   `json:"agent_id,omitempty"`
	AgentName string             `json:"agent_name,omitempty"`
	Origin    string             `json:"origin,omitempty"`
	// Ready is one of the reasons of ready{reason}.
	Ready string `json:"ready"`
	// Why says in one sentence what happens, and why no job comes.
	Why            string                   `json:"why"`
	LastBeat       time.Time                `json:"last_beat,omitzero"`
	LastStored     time.Time                `json:"last_stored,omitzero"`
	BeatResult     string                   `json:"beat_result,omitempty"`
	DeliveryErrors []protocol.DeliveryError `json:"delivery_errors"`
	ClockOffset    float64                  `json:"clock_offset_seconds"`
	Running        *RunView                 `json:"running,omitempty"`
	Outbox         []OutboxView             `json:"outbox"`
	Draining       bool                     `json:"draining"`
	// Accepted are the advisories that the owner has accepted, a sentence each.
	Accepted []string `json:"accepted"`
	// Qualification is what the last one came to in this process.
	Qualification *protocol.QualificationReply `json:"qualification,omitempty"`
}

// RunView is the run that is being executed.
type RunView struct {
	Kind         string    `json:"kind"`
	ID           string    `json:"id"`
	Lease        string    `json:"lease"`
	JobID        int64     `json:"job_id,omitempty"`
	Phase        string    `json:"phase,omitempty"`
	Started      time.Time `json:"started"`
	LeaseSeconds int64     `json:"lease_seconds_left"`
}

// OutboxView is a sealed result that is not delivered yet.
type OutboxView struct {
	Kind     string    `json:"kind"`
	ID       string    `json:"id"`
	Lease    string    `json:"lease"`
	Sealed   time.Time `json:"sealed"`
	Sends    int       `json:"sends"`
	LastSaid string    `json:"last_said,omitempty"`
}

// JobView is a run as the journal knows it.
type JobView struct {
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	Lease string `json:"lease"`
	State string `json:"state"`
	// Reason says why it was abandoned, or "unknown" for a delivered verdict
	// that nobody answered before its lease was over.
	Reason   string    `json:"reason,omitempty"`
	Accepted time.Time `json:"accepted"`
	Ended    time.Time `json:"ended,omitzero"`
	Hash     string    `json:"hash,omitempty"`
	// Signature is empty for evidence that was kept and never sent.
	Signature string          `json:"signature,omitempty"`
	Receipt   json.RawMessage `json:"receipt,omitempty"`
	Deleted   bool            `json:"deleted,omitempty"`
	Evidence  json.RawMessage `json:"evidence,omitempty"`
}

var _ desk = (*Supervisor)(nil)

// note keeps a sentence for status until the next run starts.
func (s *Supervisor) note(sentence string) { s.noted.Store(&sentence) }

// readiness is what beats say: pairing doesn't count, since an agent is paired
// by a HEALTHY beat.
func (s *Supervisor) readiness(now time.Time) readiness {
	r := s.watch.now(now)
	switch mismatch := s.settings.mismatch(); {
	case s.draining.Load():
		r.Reason, r.Sentence = reasonDraining, "The host is draining: it finishes its work and takes no more."
	case mismatch != "":
		r.Reason, r.Sentence = reasonRole, mismatch
	}
	return r
}

// shown is the readiness that metric and status name.
func (s *Supervisor) shown(now time.Time) readiness {
	r := s.readiness(now)
	if s.parts.Pairing.State() != Paired && r.Reason != reasonDraining {
		r.Reason = reasonNotPaired
	}
	return r
}

// notReady is "" when work is taken, else why not; /readyz says it.
func (s *Supervisor) notReady() string {
	if r := s.shown(time.Now()); !r.ok() {
		return r.Reason
	}
	return ""
}

// unready tells why no run may begin now, as a code of the table, or "".
func (s *Supervisor) unready() (protocol.Code, string) {
	if s.parts.Pairing.State() != Paired {
		return protocol.CodeHostNotReady, "The pairing is not complete or was ended."
	}
	r := s.readiness(time.Now())
	if _, heard := s.settings.read(); r.ok() && !heard {
		return protocol.CodeHostNotReady, "The agent's configuration was not heard yet."
	}
	switch r.Reason {
	case reasonOK:
		return "", ""
	case reasonDraining:
		return protocol.CodeHostDraining, r.Sentence
	case "disk":
		return protocol.CodeHostDiskFloor, r.Sentence
	case "budget":
		return protocol.CodeHostBudget, r.Sentence
	}
	return protocol.CodeHostNotReady, r.Sentence
}

// Status tells what the daemon does. It waits for nothing but small locks.
func (s *Supervisor) Status() Status {
	now := time.Now()
	p := s.parts.Pairing
	st := Status{
		Instance: p.config.RuntimeID.Instance(), RuntimeID: p.config.RuntimeID, PublicKey: p.config.PublicKey,
		Version: s.config.Version, Role: s.config.Role, Pairing: p.State(), Ready: s.shown(now).Reason,
		Draining: s.draining.Load(), ClockOffset: s.clock.known().Seconds(), Outbox: s.outbox.views(),
		Qualification: s.lastReceipt.Load(), DeliveryErrors: []protocol.DeliveryError{},
		Accepted: append([]string{}, s.config.Accepted...),
	}
	if b := p.current.Load(); b != nil {
		st.AgentID, st.AgentName, st.Origin = b.AgentID, oneLine(b.AgentName, maxAgentName), b.Origin.String()
	}
	if v := s.heart.view.Load(); v != nil {
		st.LastBeat, st.LastStored, st.BeatResult = v.LastBeat, v.LastStored, v.Result
		st.DeliveryErrors = append(st.DeliveryErrors, v.DeliveryErrors...)
	}
	st.Running = s.runView()
	st.Why = s.why(st, now)
	return st
}

func (s *Supervisor) runView() *RunView {
	r := s.running.Load()
	if r == nil {
		return nil
	}
	v := &RunView{
		Kind: r.key.Kind, ID: r.key.ID, Lease: r.key.Lease, JobID: r.jobID, Started: r.started,
		LeaseSeconds: int64(r.lease.left().Seconds()),
	}
	if phase := r.phase.Load(); phase != nil {
		v.Phase = *phase
	}
	return v
}

// why says in one sentence what happens and why no job comes.
func (s *Supervisor) why(st Status, now time.Time) string {
	beat := s.heart.view.Load()
	switch st.Pairing {
	case Unpaired:
		return "Not paired: make a link with `veyra-sandboxd link` and paste it at the control plane."
	case Revoked:
		return "Disconnected: the control plane no longer knows this runtime; make a new link to connect the same agent again."
	case Claimed:
		if b := s.parts.Pairing.current.Load(); b != nil && now.Sub(b.ClaimedAt) > sayAfter {
			return "Claimed, but no beat was taken yet: the answer to the claim may have been lost; make a new link and connect again."
		}
		if r := s.readiness(now); !r.ok() {
			return "Claimed, but UNHEALTHY, and the control plane may take a HEALTHY beat only: " + r.Sentence
		}
		return "Claimed: waiting for the first beat to be taken."
	}
	switch r := s.readiness(now); {
	case st.Draining:
		return r.Sentence
	case !r.ok():
		return "UNHEALTHY, no job is assigned: " + r.Sentence
	case beat != nil && beat.Said != "":
		return "Beats are not taken: " + beat.Said
	case st.Running != nil:
		return fmt.Sprintf("Working on %s %s.", st.Running.Kind, st.Running.ID)
	}
	return s.whyIdle(st)
}

func (s *Supervisor) whyIdle(st Status) string {
	if noted := s.noted.Load(); noted != nil && *noted != "" {
		return *noted
	}
	switch q := st.Qualification; {
	case len(st.DeliveryErrors) > 0:
		return "The control plane could not deliver a task: " + st.DeliveryErrors[0].Message
	case len(st.Outbox) > 0:
		return "A finished result is being delivered: " + st.Outbox[0].LastSaid
	case q != nil && !q.Passed:
		return "Not qualified: the last qualification was not passed; the agent is " + oneLine(q.AgentStatus, 40) + "."
	}
	if s.config.Role == protocol.RoleVerifier {
		return "Ready: waiting for the control plane to assign a verification."
	}
	return "Ready: waiting for the control plane to assign a job."
}

func (o *outbox) views() []OutboxView {
	o.mu.Lock()
	defer o.mu.Unlock()
	views := []OutboxView{}
	for key, e := range o.entries {
		views = append(views, OutboxView{
			Kind: key.Kind, ID: key.ID, Lease: key.Lease, Sealed: e.sealed.at, Sends: e.sends, LastSaid: e.said,
		})
	}
	slices.SortFunc(views, func(a, b OutboxView) int { return a.Sealed.Compare(b.Sealed) })
	return views
}

// showDelivered tells the client that a result was taken.
func (s *Supervisor) showDelivered(key runKey, e sealed) {
	switch key.Kind {
	case journal.KindJob:
		s.showResult(key, e)
	case journal.KindVerification:
		s.showVerdict(key, e)
	}
}

func (s *Supervisor) showResult(key runKey, e sealed) {
	var said struct {
		JobID int64 `json:"job_id"`
	}
	_ = json.Unmarshal(e.body, &said) // our own text
	id := protocol.AssignmentID(key.ID)
	if succeeded(e.body) {
		s.board.show(id, said.JobID, protocol.JobSubmitted, protocol.PhaseSubmitted, "The result was accepted")
		return
	}
	s.board.show(id, said.JobID, protocol.JobFailed, protocol.PhaseFailed, "The failure was reported")
}

// qualified keeps what a qualification came to.
func (s *Supervisor) qualified(reply protocol.QualificationReply) {
	s.lastReceipt.Store(&reply)
	s.log.Info("qualification judged", "passed", reply.Passed, "agent_status", quoted(reply.AgentStatus))
}
