package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/signer"
)

const (
	// maxPublicBody bounds what a stranger may send to the public listener.
	maxPublicBody = 64 << 10
	// publicTime bounds a whole call of the public listener.
	publicTime = 15 * time.Second
)

// Signer signs typed statements; signer.Client is the real one.
type Signer interface {
	Sign(ctx context.Context, s signer.Statement) (signer.Signature, error)
}

// Introduction is what a challenge's answer says of this host besides its
// identity.
type Introduction struct {
	Role            protocol.Role
	Version         string
	Provider, Model string
	// Provide tells whether the provider is ready, and why not. It answers at
	// once, from what is known: no provider is called for a stranger.
	Provide func() (ready bool, message string)
}

// Public serves the routes that the control plane calls once to pair, and
// health. Everything else is 404.
type Public struct {
	pairing *Pairing
	signer  Signer
	intro   Introduction
	// behindProxy believes X-Forwarded-For of a loopback or private peer.
	behindProxy bool
	wrong       *addressLimits
	log         *slog.Logger
	mux         *http.ServeMux
}

// NewPublic makes the handler of the public listener. behindProxy says that TLS
// ends before us, so that a near peer's X-Forwarded-For names the caller.
func NewPublic(pairing *Pairing, s Signer, intro Introduction, behindProxy bool, log *slog.Logger) *Public {
	p := &Public{
		pairing: pairing, signer: s, intro: intro, behindProxy: behindProxy,
		wrong: newAddressLimits(), log: log, mux: http.NewServeMux(),
	}
	p.mux.HandleFunc("POST "+protocol.PathChallenge, p.challenge)
	p.mux.HandleFunc("POST "+protocol.PathClaim, p.claim)
	p.mux.HandleFunc("GET "+protocol.PathHealth, p.health)
	return p
}

// PublicServer makes a server with time-outs and caps for strangers (attack
// case H09). The caller limits the number of connections at the listener.
func PublicServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: publicTime,
		WriteTimeout: publicTime, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// ServeHTTP answers one request of a stranger.
func (p *Public) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	r.Body = http.MaxBytesReader(w, r.Body, maxPublicBody)
	ctx, cancel := context.WithTimeout(r.Context(), publicTime)
	defer cancel()
	p.mux.ServeHTTP(w, r.WithContext(ctx))
}

func (p *Public) health(w http.ResponseWriter, _ *http.Request) {
	state := p.pairing.State()
	answer(w, http.StatusOK, protocol.HealthReply{
		OK: true, ProtocolVersion: protocol.Version, Paired: state == Paired,
	})
}

// versioned reads the two members that only say which protocol is spoken.
type versioned struct {
	ProtocolVersion *json.Number `json:"protocol_version"`
	Protocol        *json.Number `json:"protocol"`
}

// challenge signs the control plane's challenge. It does not use up the token.
func (p *Public) challenge(w http.ResponseWriter, r *http.Request) {
	var req protocol.ChallengeRequest
	if !p.read(w, r, &req) || !p.admit(w, r, req.Token) {
		return
	}
	if req.VeyraOrigin != "" {
		from, err := protocol.ParseOwnerOrigin(req.VeyraOrigin)
		if err != nil || !slices.Contains(p.pairing.config.Origins, from) {
			p.log.Warn("a connection link came by another origin: nothing signed",
				"origin", quoted(req.VeyraOrigin), "address", p.address(r))
			deny(w, http.StatusForbidden, errOrigin.Error())
			return
		}
	}
	if err := p.pairing.admitSignature(req.Token); err != nil {
		deny(w, http.StatusForbidden, err.Error())
		return
	}
	p.sign(w, r, req)
}

func (p *Public) sign(w http.ResponseWriter, r *http.Request, req protocol.ChallengeRequest) {
	id := p.pairing.config.RuntimeID
	signature, err := p.signer.Sign(r.Context(), signer.Connect{Challenge: req.Challenge, RuntimeID: id})
	switch {
	case errors.Is(err, signer.ErrRefused):
		deny(w, http.StatusBadRequest, "The challenge must be 24 to 256 characters of A-Z, a-z, 0-9, - and _.")
		return
	case err != nil:
		p.log.Error("a challenge could not be signed", "error", err)
		deny(w, http.StatusServiceUnavailable, "This runtime cannot sign at the moment. Its owner sees why in its log.")
		return
	}
	p.log.Info("challenge signed", "origin", quoted(req.VeyraOrigin), "address", p.address(r),
		"public_key", p.pairing.config.PublicKey)
	answer(w, http.StatusOK, p.challengeReply(req.Challenge, string(signature)))
}

func (p *Public) challengeReply(challenge, signature string) protocol.ChallengeReply {
	ready, message := p.intro.Provide()
	return protocol.ChallengeReply{
		RuntimeID: p.pairing.config.RuntimeID, Challenge: challenge, Signature: signature,
		PublicKey:      p.pairing.config.PublicKey,
		RuntimeVersion: cut(orUnset(p.intro.Version), protocol.MaxRuntimeVersion),
		Provider:       cut(orUnset(p.intro.Provider), protocol.MaxProvider),
		Model:          cut(orUnset(p.intro.Model), protocol.MaxModel),
		ProviderReady:  ready, ProviderMessage: cut(message, protocol.MaxProviderMessage),
		ProtocolVersion: protocol.Version, Capabilities: protocol.CapabilitiesFor(p.intro.Role),
	}
}

// orUnset keeps a text that must not be empty from being so.
func orUnset(s string) string {
	if strings.TrimSpace(s) == "" {
		return "unset"
	}
	return s
}

// claim takes the binding.
func (p *Public) claim(w http.ResponseWriter, r *http.Request) {
	var req protocol.ClaimRequest
	if !p.read(w, r, &req) || !p.admit(w, r, req.Token) {
		return
	}
	origin, err := p.checkClaim(req)
	if err != nil {
		deny(w, http.StatusBadRequest, err.Error())
		return
	}
	err = p.pairing.Claim(req, origin)
	var bad errToken
	switch {
	case errors.As(err, &bad), errors.Is(err, errOther):
		deny(w, http.StatusForbidden, err.Error())
	case err != nil:
		p.log.Error("a claim could not be stored", "error", err)
		deny(w, http.StatusServiceUnavailable, "This runtime could not store the connection. Its owner sees why in its log.")
	default:
		p.log.Info("claimed", "agent", string(req.AgentID), "agent_name", quoted(req.AgentName),
			"origin", origin.String(), "public_key", p.pairing.config.PublicKey)
		answer(w, http.StatusCreated, protocol.ClaimReply{
			Connected: true, RuntimeID: p.pairing.config.RuntimeID, AgentID: req.AgentID,
		})
	}
}

// read decodes a body; what it can't take it answers by itself.
func (p *Public) read(w http.ResponseWriter, r *http.Request, v any) bool {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			deny(w, http.StatusRequestEntityTooLarge, "The request is too large.")
		} else {
			deny(w, http.StatusBadRequest, "The request could not be read.")
		}
		return false
	}
	var said versioned
	if protocol.Decode(raw, v, maxPublicBody) != nil || protocol.Decode(raw, &said, maxPublicBody) != nil {
		deny(w, http.StatusBadRequest, "The request is not the JSON that was expected.")
		return false
	}
	asked := r.URL.Query().Get("protocol")
	if !isOne(said.ProtocolVersion) || !isOne(said.Protocol) || asked != "" && asked != "1" {
		deny(w, http.StatusBadRequest, "This runtime speaks version 1 of the protocol only.")
		return false
	}
	return true
}

func isOne(n *json.Number) bool { return n == nil || *n == "1" }

// admit lets a right token pass before any limit is looked at; only unknown
// tokens count against their address (attack case H02).
func (p *Public) admit(w http.ResponseWriter, r *http.Request, token protocol.PairingToken) bool {
	err := p.pairing.Admit(token)
	if err == nil {
		return true
	}
	if isUnknown(err) && !p.wrong.allow(p.address(r), time.Now()) {
		w.Header().Set("Retry-After", "60")
		deny(w, http.StatusTooManyRequests, "Too many wrong connection links from this address.")
		return false
	}
	deny(w, http.StatusForbidden, err.Error())
	return false
}

// address is the caller's. In front of us there may be the owner's proxy: then
// the last X-Forwarded-For entry, written by the proxy itself, names the caller.
func (p *Public) address(r *http.Request) netip.Addr {
	peer := peerOf(r.RemoteAddr)
	if !p.behindProxy || !isNear(peer) {
		return peer
	}
	values := r.Header.Values("X-Forwarded-For")
	if len(values) == 0 {
		return peer
	}
	entries := strings.Split(values[len(values)-1], ",")
	last, err := netip.ParseAddr(strings.TrimSpace(entries[len(entries)-1]))
	if err != nil {
		return peer
	}
	return last.Unmap()
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // signed texts pass as they are
	_ = encoder.Encode(body)
}

// deny refuses with a sentence that an owner reads on the control plane's page.
func deny(w http.ResponseWriter, status int, sentence string) {
	answer(w, status, protocol.ErrorBody{Detail: sentence})
}
