package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/jobs"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func runCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "Run the daemon in the foreground (the same as without a command)", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.user, "user", "", "user that the supervisor becomes (default: an id of its own)")
	return cmd
}

// runDaemon wires from the inside out: what needs power comes first, then the
// powers go, then everything that touches strangers' bytes.
//
// Signals are collected from the first line on: one that arrives during the
// start drains the daemon as soon as it serves, and everything is closed in
// order. The command's own context ends with an interrupt, so it is left.
func runDaemon(ctx context.Context, o *options) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	ctx = context.WithoutCancel(ctx)
	s, err := o.settings()
	if err != nil {
		return err
	}
	if err := s.readKey(); err != nil {
		return err
	}
	secrets := redact.New()
	log := newLog(secrets)
	slog.SetDefault(log)
	if s.key != "" && secrets.Add(s.key) != nil {
		s.note("the provider key is shorter than 12 bytes, so it is not taken out of logs and results")
	}
	tellStart(log, s)
	host, err := openHost(ctx, s, secrets, log)
	if err != nil {
		return err
	}
	defer host.close()
	if err := host.giveUp(); err != nil {
		return err
	}
	return serve(ctx, s, host, secrets, log, signals)
}

// newLog writes text to a terminal and JSON elsewhere, without the secrets.
func newLog(secrets *redact.Set) *slog.Logger {
	var handler slog.Handler = slog.NewJSONHandler(os.Stderr, nil)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		handler = slog.NewTextHandler(os.Stderr, nil)
	}
	return slog.New(secrets.Handler(handler))
}

func tellStart(log *slog.Logger, s *Settings) {
	log.Info("starting", "version", version, "instance_name", s.name, "state_dir", s.StateDir, "policy", s.Policy, "role", s.Role)
	for _, note := range s.notes {
		log.Warn(note)
	}
}

// serve runs with the powers gone.
func serve(ctx context.Context, s *Settings, host *host, secrets *redact.Set, log *slog.Logger, signals <-chan os.Signal) error {
	records, err := journal.OpenLocked(host.paths.state)
	if err != nil {
		return err
	}
	defer records.Close()
	metrics := host.metrics()
	records.Timed(func(took time.Duration) { metrics.JournalCommit.Observe(took.Seconds()) })
	model := newModel(s, metrics, log)
	model.askFirst(ctx)
	go model.watch(ctx)
	keeper := newKeeper(s, host, supervisor.Archive{Journal: records, JobsDir: host.paths.jobs}, metrics, log)
	config := jobsConfig(s, host, model, keeper, secrets, metrics, log)
	parts := supervisor.Parts{
		Pairing: host.pairing, Signer: host.signer, Journal: records,
		Checks: checks(s, host, model), Secrets: secrets, Metrics: metrics, Log: log,
		Public: host.public, Admin: host.admin, Control: host.control,
	}
	giveRole(&parts, s, config)
	super, err := supervisor.New(supervisorConfig(s, host), parts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var tidying sync.WaitGroup
	defer tidying.Wait() // before the journal is closed
	defer cancel()
	tidying.Go(func() { keeper.watch(ctx) })
	go drainOnSignal(super, cancel, log, signals)
	go host.watch(ctx, log)
	go host.fitness.watch(ctx, host.runner, log)
	go host.tls.serve(ctx, log)
	host.notify("READY=1")
	tellReady(log, host)
	return super.Run(ctx)
}

// giveRole makes what the host's role does and nothing else: a verifier's process
// holds nothing that could push.
func giveRole(parts *supervisor.Parts, s *Settings, config jobs.Config) {
	if s.Role == string(protocol.RoleVerifier) {
		parts.Verifier = jobs.NewVerifier(config)
		return
	}
	parts.Worker, parts.Qualifier = jobs.NewWorker(config), jobs.NewQualifier(config)
}

// metrics begins with what the start has shown.
func (h *host) metrics() *telemetry.Metrics {
	m := telemetry.New(version)
	m.PolicyWeakenings.Set(float64(len(h.policy.Warnings()) + len(h.weakenings)))
	m.ImagesBytes.Set(float64(h.imageBytes))
	for kind, n := range h.swept {
		m.Swept(kind, n)
	}
	return m
}

func supervisorConfig(s *Settings, host *host) supervisor.Config {
	return supervisor.Config{
		Git:  s.gitOrigins(),
		Role: protocol.Role(s.Role), Version: version, Provider: s.provider(), Model: s.Provider.Model,
		Policy: host.policy.Name, Accepted: acceptedSentences(host.advice), Heartbeat: s.ControlPlane.Heartbeat, JobsDir: host.paths.jobs, SigningLog: host.paths.signingLog,
		OwnerUID: os.Getuid(), BehindProxy: s.Public.TLS.Mode == "proxy",
	}
}

// provider is what is shown; the setting is free text.
func (s *Settings) provider() string {
	if s.shownProvider == "" {
		return "openai-compatible"
	}
	return s.shownProvider
}

func tellReady(log *slog.Logger, host *host) {
	for _, warning := range append(host.policy.Warnings(), host.weakenings...) {
		log.Warn("weakening: " + warning)
	}
	log.Info("serving", "instance", host.instance, "runtime_id", host.signer.RuntimeID(),
		"public", host.public.Addr().String(), "admin", host.admin.Addr().String(),
		"backend", host.report.Backend, "runtime", host.report.Runtime, "runtime_version", host.report.Version,
		"image", host.imageWord())
	if host.pairing.State() != supervisor.Paired {
		log.Info("not paired: `veyra-sandboxd link` prints the connection link")
		if why := host.settings.unreachable(); why != "" {
			log.Warn("no link can be made yet: " + why)
		}
	}
}

// drainOnSignal: the first SIGTERM drains, the second cancels; an interrupt
// does the same.
func drainOnSignal(super *supervisor.Supervisor, cancel context.CancelFunc, log *slog.Logger, signals <-chan os.Signal) {
	<-signals
	log.Info("draining: no new work; a second signal cancels what runs")
	super.Drain()
	<-signals
	log.Warn("cancelling what runs")
	super.Cancel()
	time.AfterFunc(20*time.Second, cancel)
}

// notify tells systemd, through a socket that was opened while that was still
// allowed (sd_notify(3)).
func (h *host) notify(state string) {
	if h.systemd != nil {
		_, _ = h.systemd.Write([]byte(state))
	}
}

func (h *host) imageWord() string {
	var all []string
	for toolchain, digest := range h.images {
		all = append(all, fmt.Sprintf("%s=%s", toolchain, digest))
	}
	if len(all) == 0 {
		return "none: `veyra-sandboxd image build python` makes the first"
	}
	return strings.Join(all, " ")
}
