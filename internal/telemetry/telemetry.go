// Package telemetry holds every metric of this program in one registry of its
// own, with names, labels and buckets that operators may rely on. Labels are
// closed lists, so that no id, path, branch or foreign text can become one
// (attack case D07). Start reading at Metrics.
package telemetry

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const namespace = "veyra_sandboxd"

// other is what a label value outside its closed list becomes.
const other = "other"

// The closed lists of label values.
var (
	// Reasons of ready{reason}, "ok" first.
	Reasons = []string{
		"ok", "not_paired", "role", "provider", "image", "runner", "signer", "policy",
		"disk", "budget", "draining", "panic",
	}
	// BeatResults of heartbeats_total{result}: "unhealthy" is the 500 that
	// answers an UNHEALTHY beat, which is no outage.
	BeatResults = []string{"ok", "unhealthy", "unauthorized", "refused", "error", "timeout"}
	// Limits of sandbox_limit_hits_total{limit}.
	Limits = []string{"oom", "pids", "disk", "inodes", "output", "timeout"}
	// SweptKinds of sandbox_swept_total{kind}.
	SweptKinds = []string{"container", "cgroup", "mount", "loop", "disk", "lock"}
	// Statements of signatures_total{statement}.
	Statements = []string{"connect", "qualification", "job_result", "verifier_result"}
	// RecordStates of journal_records{state}.
	RecordStates = []string{"accepted", "sealed", "delivered", "abandoned"}
	// TokenKinds of provider_tokens_total{kind}.
	TokenKinds = []string{"input", "output"}

	roles     = []string{"WORKER", "VERIFIER"}
	outcomes  = []string{"SUCCEEDED", "FAILED", "ABANDONED"}
	stages    = []string{"none", "runtime_preflight", "runtime_infrastructure", "runtime_execution"}
	endpoints = []string{
		"heartbeat", "configuration", "qualification", "job_credential", "job_result",
		"verification_credential", "verification_result",
	}
	backends = []string{"oci", "docker", "kubernetes"}
)

// Metrics is every metric that exists. All methods and fields may be used at
// once.
type Metrics struct {
	registry *prometheus.Registry
	present  *present

	LastBeat          prometheus.Gauge
	BeatGap           prometheus.Histogram
	ClockOffset       prometheus.Gauge
	SandboxesRunning  prometheus.Gauge
	SandboxExec       prometheus.Histogram
	JournalCommit     prometheus.Histogram
	ProviderDuration  prometheus.Histogram
	SignatureFailures prometheus.Counter
	PolicyWeakenings  prometheus.Gauge
	ImagesBytes       prometheus.Gauge
	controlPlaneTime  prometheus.Histogram
	beats             *prometheus.CounterVec
	controlPlaneCalls *prometheus.CounterVec
	jobs              *prometheus.CounterVec
	jobDuration       *prometheus.HistogramVec
	phaseDuration     *prometheus.HistogramVec
	sandboxStart      *prometheus.HistogramVec
	limitHits         *prometheus.CounterVec
	swept             *prometheus.CounterVec
	providerCalls     *prometheus.CounterVec
	providerTokens    *prometheus.CounterVec
	signatures        *prometheus.CounterVec
	violations        *prometheus.CounterVec
}

// New makes all metrics, with the series of closed lists started at 0, in a
// registry of its own.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gauge("build_info", "The version that runs; always 1.", "version").WithLabelValues(version).Set(1)
	m.makeGauges()
	m.makePresent()
	m.makeControlPlane()
	m.makeJobs()
	m.makeSandboxes()
	m.makeProvider()
	return m
}

func (m *Metrics) makeGauges() {
	m.PolicyWeakenings = m.plainGauge("policy_weakenings", "Settings that are weaker than strict.")
	m.ImagesBytes = m.plainGauge("images_bytes", "Bytes of the images in the store.")
	m.SignatureFailures = m.plainCounter("signature_failures_total", "Statements that the signer did not sign.")
	m.signatures = m.counter("signatures_total", "Statements signed.", "statement")
	start(m.signatures.WithLabelValues, Statements)
	m.violations = m.counter("policy_violations_total", "Changes that broke a rule of the policy.", "rule")
}

// says is how a momentary metric gets its series: one call each.
type says = func(value float64, labels ...string)

// makePresent adds what is asked anew with each scrape.
func (m *Metrics) makePresent() {
	m.present = &present{}
	m.Follow(unfollowed)
	gauge := prometheus.GaugeValue
	m.moment("paired", "1 while this instance is paired.", gauge, func(p Present, say says) { say(number(p.Paired)) })
	m.moment("ready", "1 for the reason that holds; ok when work is taken.", gauge, func(p Present, say says) {
		for _, reason := range Reasons {
			say(number(reason == p.Ready), reason)
		}
	}, "reason")
	m.moment("jobs_running", "Runs that are being executed now.", gauge, func(p Present, say says) { say(float64(p.Running)) })
	m.moment("lease_remaining_seconds", "Seconds left of the lease of the current run; absent without one.", gauge,
		func(p Present, say says) {
			if p.Lease != nil {
				say(seconds(*p.Lease))
			}
		})
	m.moment("outbox_depth", "Sealed results that are not delivered yet.", gauge, func(p Present, say says) { say(float64(p.Outbox)) })
	m.moment("outbox_oldest_timestamp_seconds", "When the oldest undelivered result was sealed; absent without one.", gauge,
		func(p Present, say says) {
			if !p.Oldest.IsZero() {
				say(float64(p.Oldest.UnixMilli()) / 1000)
			}
		})
	m.makeStored()
	m.registry.MustRegister(m.present)
}

// makeStored adds those that are read from the disk, and the count of the secrets.
func (m *Metrics) makeStored() {
	m.moment("state_free_bytes", "Free bytes of the file system of the state.", prometheus.GaugeValue, func(p Present, say says) {
		if p.FreeBytes != nil {
			say(float64(*p.FreeBytes))
		}
	})
	m.moment("journal_records", "Records of the journal by state.", prometheus.GaugeValue, func(p Present, say says) {
		for _, state := range RecordStates {
			if p.Records != nil {
				say(float64(p.Records[state]), state)
			}
		}
	}, "state")
	m.moment("secrets_redacted_total", "Exact secrets that were taken out of texts.", prometheus.CounterValue,
		func(p Present, say says) { say(float64(p.Redacted)) })
}

func (m *Metrics) makeControlPlane() {
	m.LastBeat = m.plainGauge("heartbeat_last_success_timestamp_seconds", "When a beat was last stored by the control plane.")
	m.BeatGap = m.histogram("heartbeat_gap_seconds", "Time between the starts of two beats.",
		2, 4, 5, 5.5, 6, 7, 10, 15, 20, 30, 35, 60)
	m.ClockOffset = m.plainGauge("clock_offset_seconds", "The control plane's clock minus ours.")
	m.beats = m.counter("heartbeats_total", "Beats by what became of them.", "result")
	start(m.beats.WithLabelValues, BeatResults)
	m.controlPlaneCalls = m.counter("control_plane_requests_total", "Calls of the control plane; code 0 is no answer.", "endpoint", "code")
	m.controlPlaneTime = m.histogram("control_plane_request_duration_seconds", "Duration of calls of the control plane.",
		.05, .1, .25, .5, 1, 2.5, 5, 10, 20)
}

func (m *Metrics) makeJobs() {
	m.jobs = m.counter("jobs_total", "Runs that ended, by outcome and the stage of the failure.", "role", "outcome", "stage")
	m.jobDuration = m.histograms("job_duration_seconds", "Duration of a run up to its seal.", "role",
		1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
	m.phaseDuration = m.histograms("job_phase_duration_seconds", "Duration of the phases of a run.", "phase",
		.05, .25, 1, 5, 15, 60, 300, 900, 1800)
}

func (m *Metrics) makeSandboxes() {
	m.SandboxesRunning = m.plainGauge("sandboxes_running", "Sandboxes that are up now.")
	m.JournalCommit = m.histogram("journal_commit_duration_seconds", "Duration of the journal's commits, which wait for the disk.",
		.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
	m.SandboxExec = m.histogram("sandbox_exec_duration_seconds", "Duration of commands in sandboxes.",
		.001, .002, .003, .005, .01, .05, .25, 1, 10, 60, 300, 1800)
	m.sandboxStart = m.histograms("sandbox_start_duration_seconds", "Time until a sandbox is ready.", "backend",
		.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5)
	m.limitHits = m.counter("sandbox_limit_hits_total", "Limits that commands reached.", "limit")
	start(m.limitHits.WithLabelValues, Limits)
	m.swept = m.counter("sandbox_swept_total", "Left-overs of crashes that were removed.", "kind")
	start(m.swept.WithLabelValues, SweptKinds)
}

func (m *Metrics) makeProvider() {
	m.providerCalls = m.counter("provider_requests_total", "Requests to the model provider; code 0 is no answer.", "code")
	m.ProviderDuration = m.histogram("provider_request_duration_seconds", "Duration of requests to the model provider.",
		.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 600)
	m.providerTokens = m.counter("provider_tokens_total", "Model tokens used.", "kind")
	start(m.providerTokens.WithLabelValues, TokenKinds)
}

// start makes the series of a closed list exist from the beginning.
func start[T any](with func(...string) T, values []string) {
	for _, value := range values {
		with(value)
	}
}

// Handler answers /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Registry is for tests that gather.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// listed keeps a label value inside its list.
func listed(list []string, value string) string {
	if slices.Contains(list, value) {
		return value
	}
	return other
}

// code keeps a status inside the numbers that HTTP knows.
func code(status int) string {
	if status != 0 && (status < 100 || status > 599) {
		return other
	}
	return strconv.Itoa(status)
}

func seconds(d time.Duration) float64 { return d.Seconds() }
