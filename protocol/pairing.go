package protocol

// ChallengeRequest is what the control plane sends to /veyra/connect/challenge.
type ChallengeRequest struct {
	Token     PairingToken `json:"token"`
	Challenge string       `json:"challenge"`
	// VeyraOrigin names the caller. When not empty it must be on the owner's
	// list: it is what shows a relay (attack case H08).
	VeyraOrigin string `json:"veyra_origin"`
}

// ChallengeReply proves who answers a challenge and what it can do.
type ChallengeReply struct {
	RuntimeID RuntimeID `json:"runtime_id"`
	Challenge string    `json:"challenge"`
	// Signature and PublicKey are base64url without padding.
	Signature       string       `json:"signature"`
	PublicKey       string       `json:"public_key"`
	RuntimeVersion  string       `json:"runtime_version"`
	ProtocolVersion int          `json:"protocol_version"`
	Provider        string       `json:"provider"`
	Model           string       `json:"model"`
	ProviderReady   bool         `json:"provider_ready"`
	ProviderMessage string       `json:"provider_message"`
	Capabilities    Capabilities `json:"capabilities"`
}

// Capabilities says what a host of one role does.
type Capabilities struct {
	Role             Role   `json:"role"`
	Coding           bool   `json:"coding"`
	Verification     bool   `json:"verification"`
	Testing          bool   `json:"testing"`
	Git              bool   `json:"git"`
	RepositoryAccess string `json:"repository_access"`
	JobTransport     string `json:"job_transport"`
}

// JobTransport names the way tasks travel: in the answers to our beats.
const JobTransport = "veyra-outbound-heartbeat-v1"

// CapabilitiesFor returns what a host of the given role offers. A role that is
// not VERIFIER counts as WORKER.
func CapabilitiesFor(role Role) Capabilities {
	c := Capabilities{
		Role: RoleWorker, Coding: true, Testing: true, Git: true,
		RepositoryAccess: "job-scoped-write", JobTransport: JobTransport,
	}
	if role == RoleVerifier {
		c.Role, c.Coding, c.Verification = RoleVerifier, false, true
		c.RepositoryAccess = "read-only"
	}
	return c
}

// ClaimRequest is what the control plane sends to /veyra/connect/claim: the
// binding that it offers.
type ClaimRequest struct {
	Token             PairingToken      `json:"token"`
	AgentID           AgentID           `json:"agent_id"`
	AgentName         string            `json:"agent_name"`
	RuntimeCredential RuntimeCredential `json:"runtime_credential"`
	HeartbeatURL      string            `json:"heartbeat_url"`
	ConfigurationURL  string            `json:"configuration_url"`
	ProtocolVersion   int               `json:"protocol_version"`
}

// ClaimReply answers a claim whose binding is durably stored (status 201).
type ClaimReply struct {
	Connected bool      `json:"connected"`
	RuntimeID RuntimeID `json:"runtime_id"`
	AgentID   AgentID   `json:"agent_id"`
}
