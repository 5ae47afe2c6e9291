package telemetry

import (
	"slices"
	"time"
)

// Beat counts a beat by its result, one of BeatResults.
func (m *Metrics) Beat(result string) {
	m.beats.WithLabelValues(listed(BeatResults, result)).Inc()
}

// ControlPlane notes one call; code 0 means that no answer came.
func (m *Metrics) ControlPlane(endpoint string, status int, took time.Duration) {
	m.controlPlaneCalls.WithLabelValues(listed(endpoints, endpoint), code(status)).Inc()
	m.controlPlaneTime.Observe(seconds(took))
}

// Job counts a run that ended. stage is empty unless it FAILED.
func (m *Metrics) Job(role, outcome, stage string, took time.Duration) {
	if stage == "" {
		stage = "none"
	}
	role = listed(roles, role)
	m.jobs.WithLabelValues(role, listed(outcomes, outcome), listed(stages, stage)).Inc()
	m.jobDuration.WithLabelValues(role).Observe(seconds(took))
}

// phases are the phases that may be a label: those of workers, then those that
// only verifiers have.
var phases = []string{
	"PREPARING_REPOSITORY", "PREPARING_ENVIRONMENT", "BASELINE_VALIDATION",
	"GENERATING_IMPLEMENTATION", "POST_CHANGE_VALIDATION", "REPAIRING_IMPLEMENTATION",
	"CREATING_COMMIT", "PUSHING_BRANCH", "CREATING_PULL_REQUEST", "SUBMITTING_RESULT",
	"PREPARING_REVIEW", "CHECKING_OUT_COMMIT", "RUNNING_VALIDATION", "EVALUATING_REQUIREMENTS", "SUBMITTING_VERDICT",
}

// Phase notes how long a phase of a run took. The two that end a run have no
// duration and are left out.
func (m *Metrics) Phase(phase string, took time.Duration) {
	if slices.Contains(phases, phase) {
		m.phaseDuration.WithLabelValues(phase).Observe(seconds(took))
	}
}

// SandboxStarted notes a start by backend.
func (m *Metrics) SandboxStarted(backend string, took time.Duration) {
	m.sandboxStart.WithLabelValues(listed(backends, backend)).Observe(seconds(took))
}

// LimitHit counts a limit that a command reached.
func (m *Metrics) LimitHit(limit string) {
	m.limitHits.WithLabelValues(listed(Limits, limit)).Inc()
}

// Swept counts removed left-overs of one kind.
func (m *Metrics) Swept(kind string, n int) {
	m.swept.WithLabelValues(listed(SweptKinds, kind)).Add(float64(max(n, 0)))
}

// Provider notes one request to the model provider.
func (m *Metrics) Provider(status int, took time.Duration) {
	m.providerCalls.WithLabelValues(code(status)).Inc()
	m.ProviderDuration.Observe(seconds(took))
}

// Tokens counts model tokens; negative counts of a broken provider are left out.
func (m *Metrics) Tokens(input, output int64) {
	m.providerTokens.WithLabelValues("input").Add(float64(max(input, 0)))
	m.providerTokens.WithLabelValues("output").Add(float64(max(output, 0)))
}

// Signed counts a statement that was signed.
func (m *Metrics) Signed(statement string) {
	m.signatures.WithLabelValues(listed(Statements, statement)).Inc()
}

// Violation counts a broken rule; rule is a failure code, never a path.
func (m *Metrics) Violation(rule string) {
	m.violations.WithLabelValues(listed([]string{
		"POLICY_PATH_VIOLATION", "PROTECTED_FILE_CHANGED", "CHANGE_UNSUPPORTED",
		"CHANGE_TOO_LARGE", "SECRETS_FOUND",
	}, rule)).Inc()
}
