package supervisor

import (
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// What is wrong with a claim; read by people, status 400.
const (
	errAgentID    = refusal("agent_id is missing or not a UUID.")
	errCredential = refusal("runtime_credential is too short or holds characters that a header cannot carry.")
	errURLs       = refusal("heartbeat_url and configuration_url must be the fixed paths of one of the origins that this runtime's owner listed.")
)

const (
	maxCredential = 4096
	maxAgentName  = 200
)

// checkClaim returns the listed origin of a claim whose fields are all in order
// (attack case H05).
func (p *Public) checkClaim(c protocol.ClaimRequest) (protocol.Origin, error) {
	var none protocol.Origin
	if _, err := protocol.ParseUUID(string(c.AgentID)); err != nil {
		return none, errAgentID
	}
	credential := string(c.RuntimeCredential)
	if len(credential) < protocol.MinRuntimeCredential || len(credential) > maxCredential || !headerText(credential) {
		return none, errCredential
	}
	for _, o := range p.pairing.config.Origins {
		if c.HeartbeatURL == o.URL(protocol.PathHeartbeat) && c.ConfigurationURL == o.URL(protocol.PathConfiguration) {
			return o, nil
		}
	}
	return none, errURLs
}

// headerText tells whether a secret can stand in an Authorization header.
func headerText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
