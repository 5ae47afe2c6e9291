package protocol

import "encoding/json"

// Version is the number of the protocol, in links and in messages.
const Version = 1

// HealthReply answers GET /veyra/health.
type HealthReply struct {
	OK              bool `json:"ok"`
	ProtocolVersion int  `json:"protocol_version"`
	Paired          bool `json:"paired"`
}

// ErrorBody is a refusal as text for people: ours on the public listener, and
// one of the two shapes the control plane uses (protocol section 2).
type ErrorBody struct {
	Detail string `json:"detail,omitempty"`
	// Error is the control plane's other shape.
	Error *ErrorDetail `json:"error,omitempty"`
}

// ErrorDetail is the inside of the longer error shape.
type ErrorDetail struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	RequestID string `json:"request_id"`
}

// Text returns what the body says for people, whichever shape it has. It is
// foreign text: cut and escape it before it is shown, never compare it.
func (b ErrorBody) Text() string {
	if b.Detail != "" || b.Error == nil {
		return b.Detail
	}
	return b.Error.Message
}

// Health is what a beat says about this host.
type Health string

// The two healths. UNHEALTHY stops new assignments and is answered 500 although
// it is stored (protocol section 4).
const (
	Healthy   Health = "HEALTHY"
	Unhealthy Health = "UNHEALTHY"
)

// JobStatus is the wire's job_status.
type JobStatus string

// The statuses of a job as a beat reports them (protocol section 4).
const (
	JobWaiting   JobStatus = "waiting"
	JobRunning   JobStatus = "running"
	JobSubmitted JobStatus = "submitted"
	JobFailed    JobStatus = "failed"
)

// HeartbeatRequest is the body of one beat. ProviderReady is a real boolean on
// the wire, everything else is text.
type HeartbeatRequest struct {
	AgentID        AgentID `json:"agent_id"`
	Health         Health  `json:"health"`
	ProviderReady  bool    `json:"provider_ready"`
	Provider       string  `json:"provider"`
	Model          string  `json:"model"`
	RuntimeVersion string  `json:"runtime_version"`
	Message        string  `json:"message"`
	JobProgress
	VerificationProgress
}

// JobProgress is the part of a beat that says how the current job goes. The
// control plane shows it only when the id is its current assignment's.
type JobProgress struct {
	// JobAssignmentID is empty when there is no job; then all else is, too.
	JobAssignmentID AssignmentID `json:"job_assignment_id,omitempty"`
	JobOnchainID    string       `json:"job_onchain_id,omitempty"`
	JobStatus       JobStatus    `json:"job_status,omitempty"`
	JobPhase        Phase        `json:"job_phase,omitempty"`
	JobMessage      string       `json:"job_message,omitempty"`
	// JobUpdatedAt is RFC 3339 with offset.
	JobUpdatedAt string `json:"job_updated_at,omitempty"`
}

// VerificationStatus is the wire's verification_status: one of these, or a
// verdict in lower case (Verdict.Status).
type VerificationStatus string

// The statuses of a verification without a verdict (protocol section 4).
const (
	VerificationWaiting    VerificationStatus = "waiting"
	VerificationRunning    VerificationStatus = "running"
	VerificationSubmitted  VerificationStatus = "submitted"
	VerificationUnfinished VerificationStatus = "failed"
)

// VerificationProgress is the part of a beat that says how the current
// verification goes.
type VerificationProgress struct {
	// VerificationAssignmentID is the verification's id, empty when there is
	// none; then all else is, too.
	VerificationAssignmentID AssignmentID       `json:"verification_assignment_id,omitempty"`
	VerificationStatus       VerificationStatus `json:"verification_status,omitempty"`
	VerificationPhase        VerificationPhase  `json:"verification_phase,omitempty"`
	VerificationMessage      string             `json:"verification_message,omitempty"`
	// VerificationUpdatedAt is RFC 3339 with offset.
	VerificationUpdatedAt string `json:"verification_updated_at,omitempty"`
}

// HeartbeatReply is the answer to a beat. Tasks stay raw, so that one broken
// task can't break the beat; Present tells a task from null.
type HeartbeatReply struct {
	OK                bool            `json:"ok"`
	AgentID           AgentID         `json:"agent_id"`
	ConnectionStatus  string          `json:"connection_status"`
	QualificationTask json.RawMessage `json:"qualification_task"`
	JobTask           json.RawMessage `json:"job_task"`
	VerificationTask  json.RawMessage `json:"verification_task"`
	DeliveryErrors    []DeliveryError `json:"delivery_errors"`
}

// Present tells whether a raw member of a reply holds anything: it is neither
// absent nor null.
func Present(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}

// DeliveryError is the control plane's word on what kept it from delivering a
// task. Foreign text: it goes to status, cut and escaped.
type DeliveryError struct {
	Stage   string `json:"stage"`
	Message string `json:"message"`
}

// Configuration answers GET configuration: what the owner chose for the agent.
type Configuration struct {
	Agent   AgentConfiguration   `json:"agent"`
	Runtime RuntimeConfiguration `json:"runtime"`
}

// AgentConfiguration holds the owner's settings at the control plane. They may
// tighten a job's policy, never widen it.
type AgentConfiguration struct {
	ID                      AgentID  `json:"id"`
	Name                    string   `json:"name"`
	AgentRole               Role     `json:"agent_role"`
	Specialisation          Text     `json:"specialisation"`
	Languages               Texts    `json:"languages"`
	Frameworks              Texts    `json:"frameworks"`
	TestingTools            Texts    `json:"testing_tools"`
	TaskTypes               Texts    `json:"task_types"`
	MaximumActiveJobs       int      `json:"maximum_active_jobs"`
	MaximumExecutionMinutes int      `json:"maximum_execution_minutes"`
	AllowNewDependencies    bool     `json:"allow_new_dependencies"`
	AllowDatabaseMigrations bool     `json:"allow_database_migrations"`
	ProtectedPaths          []string `json:"protected_paths"`
}

// RuntimeConfiguration is what the control plane knows of this host.
type RuntimeConfiguration struct {
	Provider        string `json:"provider"`
	Model           string `json:"model"`
	ProtocolVersion int    `json:"protocol_version"`
}

// CredentialRequest asks for access to a job's repository.
type CredentialRequest struct {
	AgentID      AgentID      `json:"agent_id"`
	AssignmentID AssignmentID `json:"assignment_id"`
	LeaseToken   LeaseToken   `json:"lease_token"`
}

// Credential is the access that was given. The same token is handed out again
// for 50 minutes, so a fresh answer may have ten minutes left.
type Credential struct {
	Token RepoToken `json:"token"`
	// ExpiresAt is RFC 3339 with offset.
	ExpiresAt   string            `json:"expires_at"`
	Repository  string            `json:"repository"`
	CloneURL    string            `json:"clone_url"`
	Permissions map[string]string `json:"permissions"`
	// WriteAccess is only told to a verifier, who must refuse true; nil: not
	// told.
	WriteAccess *bool `json:"write_access,omitempty"`
}

// VerifierCredentialRequest asks for read access to a submission's repository.
type VerifierCredentialRequest struct {
	AgentID        AgentID      `json:"agent_id"`
	VerificationID AssignmentID `json:"verification_id"`
	LeaseToken     LeaseToken   `json:"lease_token"`
}

// JobResultRequest delivers a sealed result. Only LeaseToken may differ between
// two sends of one result.
type JobResultRequest struct {
	AgentID      AgentID      `json:"agent_id"`
	AssignmentID AssignmentID `json:"assignment_id"`
	LeaseToken   LeaseToken   `json:"lease_token"`
	// Evidence is the exact canonical text that was hashed and signed.
	Evidence     json.RawMessage `json:"evidence"`
	EvidenceHash string          `json:"evidence_hash"`
	Signature    string          `json:"signature"`
}

// JobResultReply is the receipt for a result.
type JobResultReply struct {
	OK               bool         `json:"ok"`
	AssignmentID     AssignmentID `json:"assignment_id"`
	AssignmentStatus string       `json:"assignment_status"`
	QueueStatus      string       `json:"queue_status"`
}

// VerificationResultRequest delivers a sealed report. Only LeaseToken may differ
// between two sends of one report; its hash is not sent.
type VerificationResultRequest struct {
	AgentID        AgentID      `json:"agent_id"`
	VerificationID AssignmentID `json:"verification_id"`
	LeaseToken     LeaseToken   `json:"lease_token"`
	// Report is the exact canonical text that was hashed and signed.
	Report    json.RawMessage `json:"report"`
	Signature string          `json:"signature"`
}

// VerificationResultReply is the receipt for a report.
type VerificationResultReply struct {
	OK                 bool         `json:"ok"`
	VerificationID     AssignmentID `json:"verification_id"`
	Status             string       `json:"status"`
	Verdict            Verdict      `json:"verdict"`
	WorkerAssignmentID AssignmentID `json:"worker_assignment_id"`
}

// QualificationSubmission delivers the answer to a qualification: the files and
// the outcome of the test command, or RuntimeError when giving up.
type QualificationSubmission struct {
	AgentID         AgentID         `json:"agent_id"`
	QualificationID QualificationID `json:"qualification_id"`
	LeaseToken      LeaseToken      `json:"lease_token"`
	Provider        string          `json:"provider"`
	Model           string          `json:"model"`
	RuntimeVersion  string          `json:"runtime_version"`
	// Files is the canonical text of the list of files that was hashed and
	// signed: [{"content": ..., "path": ...}].
	Files          json.RawMessage `json:"files,omitempty"`
	TestReturnCode int             `json:"test_return_code"`
	TestOutput     string          `json:"test_output"`
	Signature      string          `json:"signature,omitempty"`
	// RuntimeError is a sentence of the table of failures. Sending it costs one
	// of the agent's two attempts (protocol section 5).
	RuntimeError string `json:"runtime_error,omitempty"`
}

// QualificationReply is the receipt for a qualification.
type QualificationReply struct {
	OK                  bool            `json:"ok"`
	QualificationID     QualificationID `json:"qualification_id"`
	QualificationStatus string          `json:"qualification_status"`
	Passed              bool            `json:"passed"`
	AgentStatus         string          `json:"agent_status"`
	ProvisioningStage   string          `json:"provisioning_stage"`
}
