package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// autoRuntime takes the strongest OCI runtime of this host that passes its probe.
const autoRuntime = "auto"

// knownRuntime says whether a word names a runtime of the chosen backend.
func (s *Settings) knownRuntime(word string) bool {
	return word == autoRuntime || slices.Contains(s.runtimes(), word)
}

func (s *Settings) runtimes() []string {
	if s.usesDocker() {
		return docker.Runtimes()
	}
	return oci.Runtimes()
}

func (s *Settings) runtimeChoices() string {
	all := append([]string{autoRuntime}, s.runtimes()...)
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// passedOver is a runtime that is stronger than the chosen one, or would be, and
// why it was not taken. Nothing is passed over in silence.
type passedOver struct {
	Name string `json:"name"`
	// Installed says that there is one, which is not as it should be.
	Installed bool   `json:"installed"`
	Why       string `json:"why"`
}

// chosen is a runner with the runtime that the owner's word allows.
type chosen struct {
	client *runner.Client
	report sandbox.Report
	advice []policies.Finding // about what the report names
	over   []passedOver
}

// chooseRuntime starts a runner with the wanted runtime and really starts a
// sandbox under the policy with it. With auto the strongest comes first, and one
// that is not there, can be replaced by others, fails its probe, or has a flaw that
// the policy refuses, is named and the next is tried. ctx bounds the starts and probes.
func chooseRuntime(ctx context.Context, s *Settings, instance, disks string) (chosen, error) {
	var c chosen
	failed := checkHelpers()
	if failed != nil {
		return c, failed
	}
	for _, name := range s.wantedRuntimes() {
		err := c.try(ctx, s, name, instance, disks)
		if err == nil {
			return c, nil
		}
		c.over = append(c.over, passedOver{Name: name, Installed: !errors.Is(err, oci.ErrNotInstalled), Why: err.Error()})
		failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
	}
	return c, failed
}

// wantedRuntimes are tried in turn. An engine's are the engine's to list: the
// driver takes the strongest, and there is no second try.
func (s *Settings) wantedRuntimes() []string {
	if s.Sandbox.Runtime == autoRuntime && rootless() {
		return []string{rootlessRuntime}
	}
	if s.Sandbox.Runtime == autoRuntime && !s.usesDocker() {
		return oci.Runtimes()
	}
	return []string{s.Sandbox.Runtime}
}

// try leaves a runner only if everything that the policy wants was seen.
func (c *chosen) try(ctx context.Context, s *Settings, name, instance, disks string) error {
	client, err := startRunner(ctx, s, name, instance, disks)
	if err != nil {
		return err
	}
	report, err := client.Probe(ctx)
	if report.Path != "" {
		c.report = report // also of one that failed: it says what was seen
	}
	// Also where no sandbox started: what was measured before says why.
	err = bothReasons(unenforced(report), err)
	if err == nil {
		c.advice, err = advise(ctx, s, report)
	}
	if err != nil {
		return errors.Join(err, client.Close())
	}
	c.client = client
	return nil
}

// bothReasons is one sentence of two, of which either may be missing.
func bothReasons(a, b error) error {
	if a == nil || b == nil {
		return errors.Join(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// runtimeReason says why a runtime was chosen.
func (s *Settings) runtimeReason() string {
	if s.Sandbox.Runtime != autoRuntime {
		return "named by sandbox.runtime"
	}
	if s.usesDocker() {
		return "the strongest that the Docker Engine lists (sandbox.runtime: auto)"
	}
	return "the strongest of this host that passes its probe (sandbox.runtime: auto)"
}

// startRunner starts the privileged process for an instance of this host, with
// an OCI runtime by name.
func startRunner(ctx context.Context, s *Settings, name, instance, disks string) (*runner.Client, error) {
	if err := checkHelpers(); err != nil {
		return nil, err
	}
	if err := s.checkRootless(name); err != nil {
		return nil, err
	}
	policy, err := s.readPolicy()
	if err != nil {
		return nil, err
	}
	config := runner.Config{
		Instance: instance, Policy: s.Policy, Read: &policy, Images: filepath.Join(s.CacheDir, "images"),
		Disks: disks, Stderr: os.Stderr,
	}
	if err := s.aim(&config, name); err != nil {
		return nil, err
	}
	if rootless() {
		if err := s.aimRootless(ctx, &config); err != nil {
			return nil, err
		}
	}
	return runner.Start(ctx, config)
}

// aimRootless refuses what an ordinary user can't have before anything is started.
func (s *Settings) aimRootless(ctx context.Context, config *runner.Config) (err error) {
	if _, err := measureRootless(ctx, *config.Read); err != nil {
		return err
	}
	config.Rootless = true
	config.Run, err = s.rootlessRun()
	return err
}

func findRuntime(name string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	return oci.FindRuntime(name, own, os.Getenv("PATH"))
}

// tellPassedOver says which stronger runtimes there could have been, and warns of
// those that are there.
func tellPassedOver(log *slog.Logger, over []passedOver) {
	for _, p := range over {
		level := slog.LevelInfo
		if p.Installed {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "a stronger OCI runtime was passed over", "runtime", p.Name, "why", p.Why)
	}
}

// rootless measures what sandboxes of an ordinary user are held by here, before
// one is started: if none can be, that tells what is missing.
func (d *diagnosis) rootless(ctx context.Context, s *Settings) error {
	policy, err := s.readPolicy()
	if err != nil {
		return err
	}
	d.Backend.Backend = "oci"
	if err := s.checkRootless(s.Sandbox.Runtime); err != nil {
		return err
	}
	if d.Backend.Controls, err = measureRootless(ctx, policy); err != nil {
		return err
	}
	return s.checkCache()
}
