package controlplanetest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// PairOptions bend a pairing for tests. The zero value pairs well.
type PairOptions struct {
	// AgentID is the agent to bind; empty: a new one.
	AgentID string
	// Origin is sent as veyra_origin; nil: the plane's own.
	Origin *string
	// LoseClaim drops the claim's answer: the agent never becomes connected.
	LoseClaim bool
	// Claim may change the claim before it is sent.
	Claim func(map[string]any)
	// Transport carries both calls; nil: the plane's own.
	Transport http.RoundTripper
}

// Refusal is what a runtime said instead of taking part.
type Refusal struct {
	Status int
	Detail string
}

// Error returns status and detail.
func (r *Refusal) Error() string {
	return fmt.Sprintf("runtime answered %d: %s", r.Status, r.Detail)
}

// Pair redeems a connection link as the control plane does and returns the id
// of the agent that was bound.
func (p *Plane) Pair(ctx context.Context, link string) (agentID string, err error) {
	return p.PairWith(ctx, link, PairOptions{})
}

// PairWith is Pair with options. What the runtime refuses is a *Refusal.
func (p *Plane) PairWith(ctx context.Context, link string, opts PairOptions) (string, error) {
	base, token, err := parseLink(link)
	if err != nil {
		return "", err
	}
	id := opts.AgentID
	if id == "" {
		id = p.AddAgent(AgentSpec{})
	}
	caller := p.newCaller(base, opts.Transport)
	defer caller.client.CloseIdleConnections()
	identity, err := p.challenge(ctx, caller, token, id, opts)
	if err != nil {
		return "", err
	}
	return id, p.claim(ctx, caller, token, id, identity, opts)
}

var linkToken = regexp.MustCompile(`^/connect/([A-Za-z0-9_-]{24,256})$`)

func parseLink(link string) (base, token string, err error) {
	u, err := url.Parse(strings.TrimSpace(link))
	if err != nil || len(link) > 2000 {
		return "", "", errors.New("the link can't be read")
	}
	m := linkToken.FindStringSubmatch(u.Path)
	if u.Scheme != "veyra-connect" || m == nil || u.User != nil || u.Fragment != "" ||
		u.RawQuery != "protocol=1" || u.Host == "" {
		return "", "", errors.New("the link is not veyra-connect://host/connect/<token>?protocol=1")
	}
	scheme := "https"
	switch u.Hostname() {
	case "localhost", "127.0.0.1", "::1":
		scheme = "http"
	}
	return scheme + "://" + u.Host, m[1], nil
}

// caller keeps one connection alive for both calls.
type caller struct {
	base   string
	client *http.Client
}

func (p *Plane) newCaller(base string, way http.RoundTripper) caller {
	if way == nil {
		way = p.opts.Transport
	}
	if way == nil {
		way = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.opts.Roots}}
	}
	return caller{base, &http.Client{
		Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
		Transport: way,
	}}
}

func (c caller) post(ctx context.Context, path string, body map[string]any, want int) (map[string]any, error) {
	raw, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Veyra-Control-Plane/1")
	res, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	var got map[string]any
	_ = json.Unmarshal(raw, &got)
	if res.StatusCode != want {
		detail, _ := got["detail"].(string)
		return nil, &Refusal{res.StatusCode, detail}
	}
	return got, nil
}

// identity is what a challenge proved.
type identity struct {
	runtimeID, role string
	key             ed25519.PublicKey
}

func (p *Plane) challenge(ctx context.Context, c caller, token, agentID string, opts PairOptions) (identity, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:])
	challenge := base64.RawURLEncoding.EncodeToString(raw[:])
	origin := p.Origin()
	if opts.Origin != nil {
		origin = *opts.Origin
	}
	got, err := c.post(ctx, "/veyra/connect/challenge",
		map[string]any{"token": token, "challenge": challenge, "veyra_origin": origin}, http.StatusOK)
	if err != nil {
		return identity{}, err
	}
	who, err := checkChallenge(got, challenge)
	if err != nil {
		return identity{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	p.counts.Challenges++
	return who, p.mayBind(who, agentID)
}

var runtimeIDSyntax = regexp.MustCompile(`^runtime-[0-9a-f-]{36}$`)

func checkChallenge(got map[string]any, challenge string) (identity, error) {
	text := func(name string) string { s, _ := got[name].(string); return s }
	who := identity{runtimeID: text("runtime_id")}
	key, err1 := base64.RawURLEncoding.DecodeString(strings.TrimRight(text("public_key"), "="))
	signature, err2 := base64.RawURLEncoding.DecodeString(strings.TrimRight(text("signature"), "="))
	if err1 != nil || err2 != nil || len(key) != ed25519.PublicKeySize {
		return who, errors.New("public_key or signature can't be read")
	}
	who.key = key
	message := "veyra-connect-v1:" + challenge + ":" + who.runtimeID
	if !runtimeIDSyntax.MatchString(who.runtimeID) || text("challenge") != challenge ||
		!ed25519.Verify(key, []byte(message), signature) {
		return who, errors.New("the challenge is not signed by this runtime")
	}
	for name, most := range map[string]int{"runtime_version": 64, "provider": 80, "model": 160} {
		if n := len([]rune(text(name))); n == 0 || n > most {
			return who, fmt.Errorf("%s is empty or too long", name)
		}
	}
	if got["protocol_version"] != 1.0 {
		return who, errors.New("protocol_version is not 1")
	}
	if ready, _ := got["provider_ready"].(bool); !ready {
		return who, fmt.Errorf("the provider is not ready: %s", text("provider_message"))
	}
	return who, checkCapabilities(got["capabilities"], &who)
}

func checkCapabilities(v any, who *identity) error {
	got, _ := v.(map[string]any)
	who.role, _ = got["role"].(string)
	worker := who.role == "WORKER"
	access := "read-only"
	if worker {
		access = "job-scoped-write"
	}
	for name, want := range map[string]any{
		"coding": worker, "verification": who.role == "VERIFIER", "testing": true, "git": true,
		"repository_access": access, "job_transport": "veyra-outbound-heartbeat-v1",
	} {
		if got[name] != want {
			return fmt.Errorf("capability %s is %v, not %v", name, got[name], want)
		}
	}
	return nil
}

// mayBind refuses an identity that belongs to another agent, a changed key, and
// dead agents. p.mu is held.
func (p *Plane) mayBind(who identity, agentID string) error {
	for _, a := range p.order {
		if a.runtimeID == who.runtimeID && a.id != agentID {
			return errors.New("this runtime belongs to another agent")
		}
	}
	a := p.agents[agentID]
	switch {
	case a == nil:
		return errors.New("no such agent")
	case a.status == statusDead:
		return errors.New("this agent failed its qualification for good")
	case a.key != nil && !a.key.Equal(who.key):
		return errors.New("the runtime's key has changed")
	}
	return nil
}

// claim stores the credential first and the connection only once the answer is
// there: a beat in between is answered 500.
func (p *Plane) claim(ctx context.Context, c caller, token, agentID string, who identity, opts PairOptions) error {
	var raw [48]byte
	_, _ = rand.Read(raw[:])
	credential := base64.RawURLEncoding.EncodeToString(raw[:])
	body := p.prepareClaim(token, agentID, credential, who)
	if opts.Claim != nil {
		opts.Claim(body)
	}
	got, err := c.post(ctx, "/veyra/connect/claim", body, http.StatusCreated)
	if err != nil {
		return err
	}
	if got["connected"] != true || got["runtime_id"] != who.runtimeID || got["agent_id"] != body["agent_id"] {
		return errors.New("the claim's answer is about something else")
	}
	if opts.LoseClaim {
		return nil
	}
	if p.opts.BeforeStore != nil {
		p.opts.BeforeStore()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	p.counts.Claims++
	p.connect(p.agents[agentID])
	return nil
}

func (p *Plane) prepareClaim(token, agentID, credential string, who identity) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.agents[agentID]
	a.credential, a.runtimeID, a.key, a.connected = credential, who.runtimeID, who.key, false
	return map[string]any{
		"token": token, "agent_id": agentID, "agent_name": a.name, "runtime_credential": credential,
		"heartbeat_url": p.url(Heartbeat), "configuration_url": p.url(Configuration), "protocol_version": 1,
	}
}

// connect is what the stored answer of a claim does. p.mu is held.
func (p *Plane) connect(a *agent) {
	a.connected = true
	switch {
	case p.opts.Qualified || passed(a) || a.role == "VERIFIER":
		a.status = statusActive
	default:
		a.status = statusConnected
		if len(a.qualifications) == 0 {
			a.qualifications = append(a.qualifications, newQualification(defaultQualification(), 1))
		}
	}
}
