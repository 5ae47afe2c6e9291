package main

import (
	"context"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// measured wraps a backend with metrics; the steps of a job know of none.
type measured struct {
	sandbox.Backend
	metrics *telemetry.Metrics
	// closed is called when a job's room was closed.
	closed func()
}

func (m measured) OpenJob(ctx context.Context, spec sandbox.JobSpec) (sandbox.Job, error) {
	job, err := m.Backend.OpenJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	return measuredJob{job, m.metrics, m.closed}, nil
}

type measuredJob struct {
	sandbox.Job
	metrics *telemetry.Metrics
	closed  func()
}

func (m measuredJob) Close(ctx context.Context) error {
	defer m.closed()
	return m.Job.Close(ctx)
}

func (m measuredJob) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	started := time.Now()
	place, err := m.Job.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	m.metrics.SandboxStarted("oci", time.Since(started))
	m.metrics.SandboxesRunning.Inc()
	return &measuredSandbox{Sandbox: place, metrics: m.metrics}, nil
}

// measuredSandbox counts its own end once. One goroutine owns it, as it owns
// the sandbox.
type measuredSandbox struct {
	sandbox.Sandbox
	metrics *telemetry.Metrics
	ended   bool
}

func (m *measuredSandbox) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	exit, err := m.Sandbox.Run(ctx, cmd)
	if err == nil {
		m.metrics.SandboxExec.Observe(exit.Duration.Seconds())
	}
	for _, limit := range exit.Limits {
		m.metrics.LimitHit(string(limit))
	}
	return exit, err
}

func (m *measuredSandbox) Close(ctx context.Context) error {
	if !m.ended {
		m.ended = true
		m.metrics.SandboxesRunning.Dec()
	}
	return m.Sandbox.Close(ctx)
}
