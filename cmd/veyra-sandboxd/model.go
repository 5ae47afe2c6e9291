package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/provider/openai"
)

// How long a readiness answer counts.
const (
	askAgainReady    = 30 * time.Second
	askAgainNotReady = 10 * time.Second
	// firstAnswer is how long a start waits for the first one.
	firstAnswer = 3 * time.Second
)

// model is the provider with what is known of its readiness. The beat reads the
// last value; asking happens in the background. A real call's failure counts at
// once.
type model struct {
	provider provider.Provider
	tokens   func(input, output int64)
	skip     bool
	log      *slog.Logger
	last     atomic.Pointer[string]
}

var _ provider.Provider = (*model)(nil)

func newModel(s *Settings, metrics *telemetry.Metrics, log *slog.Logger) *model {
	m := &model{tokens: metrics.Tokens, skip: s.skipProbe, log: log}
	client, err := openai.New(openai.Config{
		BaseURL: s.Provider.BaseURL, Model: s.Provider.Model, Key: provider.Key(s.key), Timeout: s.Provider.Timeout, Observe: metrics.Provider,
	})
	if err != nil {
		m.provider = unconfigured{err}
		m.set("The model provider is not configured: " + err.Error())
		return m
	}
	m.provider = client
	if !m.skip {
		m.set("The model provider was not asked yet.")
	}
	return m
}

// unconfigured answers in the place of a provider that can't be made.
type unconfigured struct{ err error }

func (u unconfigured) Chat(context.Context, provider.Request) (provider.Reply, error) {
	return provider.Reply{}, u.err
}
func (u unconfigured) Ready(context.Context) error { return u.err }

// Chat passes a request on and takes notice of failures that only the owner
// can mend.
func (m *model) Chat(ctx context.Context, req provider.Request) (provider.Reply, error) {
	reply, err := m.provider.Chat(ctx, req)
	m.tokens(reply.Usage.Input, reply.Usage.Output)
	switch provider.KindOf(err) {
	case provider.AuthFailed, provider.QuotaExhausted, provider.ModelNotFound:
		m.set(readySentence(err))
	}
	return reply, err
}

// Ready asks and remembers.
func (m *model) Ready(ctx context.Context) error {
	err := m.provider.Ready(ctx)
	m.set(readySentence(err))
	return err
}

func (m *model) set(sentence string) {
	if old := m.last.Swap(&sentence); old == nil || *old != sentence {
		m.log.Info("model provider", "ready", sentence == "", "sentence", sentence)
	}
}

func (m *model) say() string {
	if last := m.last.Load(); last != nil {
		return *last
	}
	return ""
}

// askFirst asks before anybody is served: the control plane refuses a link while
// the provider isn't ready, and an owner may enter it at once.
func (m *model) askFirst(ctx context.Context) {
	if m.skip {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	_ = m.Ready(ctx) // what it means is remembered
}

// watch asks again and again, with jitter, until ctx ends.
func (m *model) watch(ctx context.Context) {
	if m.skip {
		return
	}
	for {
		wait := askAgainReady
		if m.say() != "" {
			wait = askAgainNotReady
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait*9/10 + rand.N(wait/5)):
		}
		_ = m.Ready(ctx)
	}
}

// readySentence is for the owner; it holds no text of the provider's own.
func readySentence(err error) string {
	switch provider.KindOf(err) {
	case "":
		if err != nil {
			return "The model provider could not be asked."
		}
		return ""
	case provider.NotConfigured:
		return "The model provider is not configured: " + err.Error()
	case provider.AuthFailed:
		return "The model provider refuses the key: check AI_API_KEY_FILE."
	case provider.QuotaExhausted:
		return "The model provider's account has no quota left."
	case provider.ModelNotFound:
		return "The model provider does not know this model or address: check AI_MODEL and AI_BASE_URL."
	}
	return "The model provider does not answer as it should (" + string(provider.KindOf(err)) + "); it is asked again."
}

// jobsConfig gives the jobs what every one of them shares.
func jobsConfig(s *Settings, h *host, m *model, k *keeper, secrets *redact.Set, metrics *telemetry.Metrics, log *slog.Logger) jobs.Config {
	loop := coding.LoopConfig{
		JobTokens: s.Budget.TokensPerJob, ContextCharacters: s.Provider.ContextCharacters, Redact: secrets.String,
	}
	return jobs.Config{
		Backend: measured{h.runner, metrics, k.jobClosed}, Report: h.report, Proof: h.provenNow,
		Image: func(t policies.Toolchain) (images.Digest, bool) {
			digest, found := h.images[t]
			return digest, found
		},
		Policy: h.policy, GitOrigins: s.gitOrigins(), API: s.Git.API,
		Engine: coding.NewLoop(m, loop), Single: coding.NewSingle(m, loop),
		Provider: s.provider(), Model: s.Provider.Model, Version: version,
		Secrets: secrets, Log: log,
		Observe: func(phase protocol.Phase, took time.Duration) { metrics.Phase(string(phase), took) },
	}
}
