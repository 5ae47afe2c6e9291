package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

const (
	// configurationEvery is how often the owner's choices are asked for anew.
	configurationEvery = 3 * time.Minute
	// configurationAgain is the longest pause after a failed question.
	configurationAgain = 30 * time.Second
)

// configurer asks for the configuration; controlplane.Client is the real one.
type configurer interface {
	Configuration(ctx context.Context) controlplane.Answer[protocol.Configuration]
}

// settings keeps what the owner chose at the control plane, as last heard.
type settings struct {
	role    protocol.Role
	pairing *Pairing
	client  func() configurer // nil while unpaired
	changed func()            // told when the role begins to fit, or ceases to
	log     *slog.Logger

	last atomic.Pointer[protocol.Configuration]

	// failures belongs to the goroutine that calls step.
	failures int
}

// read is the last configuration heard, or false.
func (s *settings) read() (protocol.Configuration, bool) {
	if c := s.last.Load(); c != nil {
		return *c, true
	}
	return protocol.Configuration{}, false
}

// mismatch says why this host can't work for its agent, or "".
func (s *settings) mismatch() string {
	c, heard := s.read()
	if !heard || c.Agent.AgentRole == "" || c.Agent.AgentRole == s.role {
		return ""
	}
	return fmt.Sprintf("The agent's role is %s but this host is set up as %s: change VEYRA_RUNTIME_ROLE or pair with another agent.",
		oneLine(string(c.Agent.AgentRole), 20), s.role)
}

// run asks until ctx ends. woken wakes it when the pairing changed.
func (s *settings) run(ctx context.Context, woken <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-timer.C:
		}
		timer.Reset(time.Until(s.step(ctx, time.Now())))
	}
}

// step asks once and returns when to ask again.
func (s *settings) step(ctx context.Context, now time.Time) time.Time {
	client := s.client()
	switch {
	case s.pairing.State() != Paired:
		return now.Add(configurationEvery) // a change wakes us
	case client == nil:
		return now.Add(100 * time.Millisecond) // the heart is about to make it
	}
	a := client.Configuration(ctx)
	if a.Class != protocol.ClassTaken || a.Reply.Agent.ID != s.pairing.current.Load().AgentID {
		s.failures++
		s.log.Debug("the configuration was not answered", "said", a.Say())
		wait := min(time.Second<<min(s.failures, 5), configurationAgain)
		return now.Add(max(wait-rand.N(wait/4), a.RetryAfter))
	}
	s.failures = 0
	before := s.mismatch()
	s.last.Store(&a.Reply)
	after := s.mismatch()
	if after != "" && before == "" {
		s.log.Error("role mismatch: no work is taken", "why", after)
	}
	if after != before {
		s.changed()
	}
	return now.Add(configurationEvery)
}
