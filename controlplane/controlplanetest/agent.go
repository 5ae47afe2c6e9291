package controlplanetest

import (
	"crypto/ed25519"
	"time"
)

// The statuses of an agent.
const (
	statusPending      = "PENDING"
	statusConnected    = "CONNECTED"
	statusActive       = "ACTIVE"
	statusDead         = "DEAD"
	statusDisconnected = "DISCONNECTED"
)

// agent is the control plane's record of one agent. Plane.mu guards it.
type agent struct {
	id, name, role string
	config         map[string]any

	// runtimeID and key are pinned by the first claim: an identity belongs to
	// one agent for ever.
	runtimeID  string
	key        ed25519.PublicKey
	credential string

	status         string
	connected      bool // the claim's answer was stored
	healthy        bool
	beatAt         time.Time
	lastBeat       map[string]any
	qualifications []*qualification
	deliveryErrors []map[string]any
}

// AgentSpec is what an owner fills in for a new agent.
type AgentSpec struct {
	ID   string // empty: a new one
	Name string
	Role string // empty: WORKER
	// Configuration replaces members of the default configuration's agent.
	Configuration map[string]any
}

// AddAgent makes an agent that waits for its runtime and returns its id.
func (p *Plane) AddAgent(spec AgentSpec) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	a := newAgent(spec)
	p.agents[a.id] = a
	p.order = append(p.order, a)
	return a.id
}

func newAgent(spec AgentSpec) *agent {
	if spec.ID == "" {
		spec.ID = newUUID()
	}
	if spec.Role == "" {
		spec.Role = "WORKER"
	}
	if spec.Name == "" {
		spec.Name = "test agent"
	}
	config := map[string]any{
		"id": spec.ID, "name": spec.Name, "agent_role": spec.Role,
		"specialisation": "general", "languages": []any{"python"}, "frameworks": []any{},
		"testing_tools": []any{}, "task_types": []any{}, "maximum_active_jobs": 1,
		"maximum_execution_minutes": 60, "allow_new_dependencies": true,
		"allow_database_migrations": true, "protected_paths": []any{},
	}
	for name, value := range spec.Configuration {
		config[name] = value
	}
	return &agent{id: spec.ID, name: spec.Name, role: spec.Role, config: config, status: statusPending}
}

// Disconnect does what an owner's "disconnect" does: the credential is unknown
// from now on.
func (p *Plane) Disconnect(agentID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	if a := p.agents[agentID]; a != nil {
		a.credential, a.connected, a.status = "", false, statusDisconnected
	}
}

// DeliveryErrors makes the next beats of an agent carry these errors instead of
// a task; with none given beats are as usual again.
func (p *Plane) DeliveryErrors(agentID string, messages ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.agents[agentID]
	a.deliveryErrors = nil
	for _, message := range messages {
		a.deliveryErrors = append(a.deliveryErrors, map[string]any{"stage": "job", "message": message})
	}
}

// configuration answers GET configuration. p.mu is held.
func (p *Plane) configuration(c call) reply {
	a := c.agent
	return ok(map[string]any{
		"agent":   a.config,
		"runtime": map[string]any{"provider": a.lastBeat["provider"], "model": a.lastBeat["model"], "protocol_version": 1},
	})
}
