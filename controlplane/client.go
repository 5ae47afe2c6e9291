package controlplane

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Endpoint names a call in metrics and logs: a closed list.
type Endpoint string

// The calls.
const (
	EndpointHeartbeat          Endpoint = "heartbeat"
	EndpointConfiguration      Endpoint = "configuration"
	EndpointQualification      Endpoint = "qualification"
	EndpointCredential         Endpoint = "job_credential"
	EndpointResult             Endpoint = "job_result"
	EndpointVerifierCredential Endpoint = "verification_credential"
	EndpointVerifierResult     Endpoint = "verification_result"
)

const (
	// beatTimeout keeps the gap between two beats under ten seconds even when
	// one of them is never answered (protocol section 4).
	beatTimeout = 8 * time.Second
	// callTimeout is the total deadline of every other call (attack case G02).
	callTimeout = 15 * time.Second

	maxErrorBytes = 256 << 10
	maxReplyBytes = protocol.MaxReplyBytes
)

// Config says whom a Client talks to and as whom. A new binding needs a new
// Client.
type Config struct {
	Origin     protocol.Origin
	AgentID    protocol.AgentID
	Credential protocol.RuntimeCredential
	// Version of this program, for the User-Agent.
	Version string
	// Roots replaces the system's certificates; nil: the system's.
	Roots *x509.CertPool
	// Observe is told of every call, code 0 when no answer came; nil: nobody.
	Observe func(endpoint Endpoint, code int, took time.Duration)
	// Log gets the request id of every answer at debug level; nil: none.
	Log *slog.Logger
	// Transport replaces the network, for tests without one; nil: the network.
	Transport http.RoundTripper
	// Timeout, when not 0, replaces both total deadlines if it is shorter.
	Timeout time.Duration
}

// Client calls the control plane for one binding. All methods may run at once;
// beats have connections of their own, so that no other call can delay them.
type Client struct {
	config Config
	beats  *http.Client
	calls  *http.Client
}

// New makes a Client. It dials nothing.
func New(config Config) *Client {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{
		config: config,
		beats:  newHTTP(config, beatTimeout),
		calls:  newHTTP(config, callTimeout),
	}
}

// Close drops idle connections. The Client may still be used.
func (c *Client) Close() {
	c.beats.CloseIdleConnections()
	c.calls.CloseIdleConnections()
}

// Heartbeat sends one beat. An UNHEALTHY one is answered 500 although it was
// stored (protocol section 4): Class says ServerTrouble, the caller knows.
func (c *Client) Heartbeat(ctx context.Context, beat protocol.HeartbeatRequest) Answer[protocol.HeartbeatReply] {
	beat.AgentID = c.config.AgentID
	return exchange[protocol.HeartbeatReply](ctx, c, c.beats, call{
		endpoint: EndpointHeartbeat, method: http.MethodPost, path: protocol.PathHeartbeat, body: beat,
	})
}

// Configuration asks what the owner chose for this agent.
func (c *Client) Configuration(ctx context.Context) Answer[protocol.Configuration] {
	return exchange[protocol.Configuration](ctx, c, c.calls, call{
		endpoint: EndpointConfiguration, method: http.MethodGet, path: protocol.PathConfiguration,
	})
}

// SubmitQualification sends one submission.
func (c *Client) SubmitQualification(ctx context.Context, s protocol.QualificationSubmission) Answer[protocol.QualificationReply] {
	s.AgentID = c.config.AgentID
	return exchange[protocol.QualificationReply](ctx, c, c.calls, call{
		endpoint: EndpointQualification, method: http.MethodPost, path: protocol.PathQualification, body: s,
	})
}

// JobCredential asks for access to a job's repository. The answer is to be
// checked against the task by the caller.
func (c *Client) JobCredential(ctx context.Context, r protocol.CredentialRequest) Answer[protocol.Credential] {
	r.AgentID = c.config.AgentID
	return exchange[protocol.Credential](ctx, c, c.calls, call{
		endpoint: EndpointCredential, method: http.MethodPost, path: protocol.PathJobCredential, body: r,
	})
}

// SubmitJobResult sends a sealed result.
func (c *Client) SubmitJobResult(ctx context.Context, r protocol.JobResultRequest) Answer[protocol.JobResultReply] {
	r.AgentID = c.config.AgentID
	return exchange[protocol.JobResultReply](ctx, c, c.calls, call{
		endpoint: EndpointResult, method: http.MethodPost, path: protocol.PathJobResult, body: r,
	})
}

// VerificationCredential asks for read access to a submission's repository. That
// it gives no more is to be checked by the caller, before it is used.
func (c *Client) VerificationCredential(ctx context.Context, r protocol.VerifierCredentialRequest) Answer[protocol.Credential] {
	r.AgentID = c.config.AgentID
	return exchange[protocol.Credential](ctx, c, c.calls, call{
		endpoint: EndpointVerifierCredential, method: http.MethodPost, path: protocol.PathVerificationCredential, body: r,
	})
}

// SubmitVerificationResult sends a sealed report.
func (c *Client) SubmitVerificationResult(
	ctx context.Context, r protocol.VerificationResultRequest,
) Answer[protocol.VerificationResultReply] {
	r.AgentID = c.config.AgentID
	return exchange[protocol.VerificationResultReply](ctx, c, c.calls, call{
		endpoint: EndpointVerifierResult, method: http.MethodPost, path: protocol.PathVerificationResult, body: r,
	})
}
