package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/internal/treedir"
	"github.com/veyra-labs/veyra-sandboxd/internal/treestream"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// Exit codes of sandbox run, besides those of the command itself.
const (
	exitTimedOut   = 124
	exitNotStarted = 125
	exitLimit      = 137
)

type sandboxOptions struct {
	image, backend, runtime, network string
	dir, changes                     string
	timeout                          time.Duration
}

func sandboxCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", Short: "Use a sandbox without a job", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var so sandboxOptions
	run := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT…]",
		Short: "Run one command in a throwaway sandbox under the policy",
		Long: "Runs one command in a throwaway sandbox under the policy and returns its exit status; 124 timed out,\n" +
			"125 the sandbox could not be started, 137 a limit ended it (named on stderr).\n" +
			"Stopping this command with ^Z for more than 30 seconds ends the sandbox.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return withCode(exitUsage, "sandbox run needs a command after -- (see --help)")
			}
			return sandboxRun(cmd.Context(), o, so, args)
		},
	}
	flags := run.Flags()
	flags.StringVar(&so.image, "image", "python", "image to run on, by name or digest")
	flags.StringVar(&so.backend, "backend", "", "backend (oci or docker; default: the setting sandbox.backend)")
	flags.StringVar(&so.runtime, "runtime", "", "OCI runtime (runsc, runc or crun; default: the setting sandbox.runtime)")
	flags.StringVar(&so.network, "network", "none", "network phase (none)")
	flags.StringVarP(&so.dir, "directory", "C", "", "directory to copy in as the workspace; it is never modified")
	flags.StringVar(&so.changes, "changes", "", "new or empty directory for what the command changed")
	flags.DurationVar(&so.timeout, "timeout", 0, "end the command after this time")
	cmd.AddCommand(run)
	return cmd
}

// throwaway is one sandbox of this command's own: its own runner, its own
// instance, no state directory.
type throwaway struct {
	options sandboxOptions
	policy  policies.Policy
	image   images.Digest
	client  *runner.Client
	source  *os.Root // -C, or nil
	target  *os.Root // --changes, or nil
	json    bool
}

// notStarted gives every failure of ours its exit code.
func notStarted(err error) error {
	var own *codeError
	if err == nil || errors.As(err, &own) && own.code == exitUsage {
		return err
	}
	return &codeError{code: exitNotStarted, err: err}
}

func sandboxRun(ctx context.Context, o *options, so sandboxOptions, args []string) error {
	t, err := prepareThrowaway(ctx, o, so)
	if err != nil {
		return notStarted(err)
	}
	defer t.client.Close()
	code, err := t.run(ctx, args)
	if err != nil {
		return notStarted(err)
	}
	if code != 0 {
		return &codeError{code: code, silent: true, err: errors.New("the command's own status")}
	}
	return nil
}

func (so sandboxOptions) check() error {
	switch {
	case so.backend != "" && !knownBackend(so.backend):
		return withCode(exitUsage, "--backend must be %s", backendChoices)
	case so.network != string(sandbox.NetworkNone):
		return withCode(exitUsage, "--network must be none in this version")
	case so.timeout < 0:
		return withCode(exitUsage, "--timeout must not be negative")
	}
	return nil
}

// choose puts the flags over the settings. A runtime of the settings may be one
// that the flag's backend hasn't got.
func (so sandboxOptions) choose(s *Settings) error {
	if so.backend != "" {
		s.Sandbox.Backend = so.backend
	}
	if so.runtime != "" {
		s.Sandbox.Runtime = so.runtime
	}
	if !s.knownRuntime(s.Sandbox.Runtime) {
		return withCode(exitUsage, "--runtime must be %s on this backend", s.runtimeChoices())
	}
	return nil
}

func prepareThrowaway(ctx context.Context, o *options, so sandboxOptions) (*throwaway, error) {
	if err := so.check(); err != nil {
		return nil, err
	}
	s, err := o.settings()
	if err != nil {
		return nil, err
	}
	if err := so.choose(s); err != nil {
		return nil, err
	}
	if err := s.checkCache(); err != nil {
		return nil, err
	}
	t := &throwaway{options: so, json: o.json}
	if err := t.openDirectories(); err != nil {
		return nil, err
	}
	store, err := images.Open(filepath.Join(s.CacheDir, "images"))
	if err != nil {
		return nil, err
	}
	image, err := store.Lookup(so.image)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w (`veyra-sandboxd image build python` makes it)", so.image, err)
	}
	t.image = image.Digest
	disks := filepath.Join(s.CacheDir, "disks")
	if err := os.MkdirAll(disks, 0o700); err != nil {
		return nil, err
	}
	if t.policy, err = scaledPolicy(s, disks); err != nil {
		return nil, err
	}
	if err := t.start(ctx, s, disks); err != nil {
		return nil, err
	}
	return t, t.giveUp()
}

// start makes the runner. A runtime that was named needs no probe: every sandbox
// is read back before its first command.
func (t *throwaway) start(ctx context.Context, s *Settings, disks string) error {
	instance := "run-" + randomHex(4)
	if s.Sandbox.Runtime != autoRuntime {
		var err error
		if t.client, err = startRunner(ctx, s, s.Sandbox.Runtime, instance, disks); err != nil {
			return err
		}
		report, err := t.client.Facts(ctx)
		if err != nil {
			return err
		}
		_, err = advise(ctx, s, report)
		return err
	}
	c, err := chooseRuntime(ctx, s, instance, disks)
	if err != nil {
		return err
	}
	t.client = c.client
	for _, p := range c.over {
		if p.Installed {
			fmt.Fprintf(os.Stderr, "veyra-sandboxd: the stronger OCI runtime %s was passed over: %s\n", p.Name, p.Why)
		}
	}
	return nil
}

// openDirectories happens before anything is started, so that a wrong name
// costs nothing.
func (t *throwaway) openDirectories() (err error) {
	if t.options.dir != "" {
		if t.source, err = treedir.Open(t.options.dir); err != nil {
			return err
		}
	}
	if t.options.changes == "" {
		return nil
	}
	if inside(t.options.changes, t.options.dir) {
		return withCode(exitUsage, "--changes must lie outside of the directory that is copied in")
	}
	if err := os.MkdirAll(t.options.changes, 0o755); err != nil {
		return err
	}
	if t.target, err = treedir.Open(t.options.changes); err != nil {
		return err
	}
	empty, err := treedir.Empty(t.target)
	if err == nil && !empty {
		return withCode(exitUsage, "--changes must name a new or empty directory")
	}
	return err
}

func inside(inner, outer string) bool {
	if outer == "" {
		return false
	}
	in, inErr := filepath.Abs(inner)
	out, outErr := filepath.Abs(outer)
	return inErr == nil && outErr == nil && (in == out || strings.HasPrefix(in, out+"/"))
}

// giveUp keeps one capability where there is an owner's directory to read, else
// none.
func (t *throwaway) giveUp() error {
	var keep []confine.Capability
	if t.source != nil && !rootless() {
		keep = append(keep, unix.CAP_DAC_READ_SEARCH)
	}
	_, err := confine.Lockdown{UID: confine.Stay, GID: confine.Stay, Keep: keep}.Apply()
	if err != nil {
		return errors.Join(fmt.Errorf("giving up capabilities: %w", err), t.client.Close())
	}
	return nil
}

func (t *throwaway) run(ctx context.Context, args []string) (int, error) {
	job, err := t.client.OpenJob(ctx, sandbox.JobSpec{ID: "sandbox-run", Limits: t.policy.Limits})
	if err != nil {
		return 0, err
	}
	defer job.Close(context.WithoutCancel(ctx))
	layers, err := t.workspace(ctx, job)
	if err != nil {
		return 0, err
	}
	place, err := job.Create(ctx, sandbox.Spec{
		Image: t.image, Layers: layers, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: t.policy.Limits,
	})
	if err != nil {
		return 0, err
	}
	defer place.Close(context.WithoutCancel(ctx))
	exit, err := place.Run(ctx, sandbox.Command{
		Argv: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Timeout: t.options.timeout,
		OutputBytes: t.policy.Limits.OutputReadBytes,
	})
	if err != nil {
		return 0, err
	}
	if t.target != nil && !exit.Gone {
		if err := t.copyOut(ctx, place); err != nil {
			return 0, err
		}
	}
	return statusOf(exit), nil
}

// statusOf names limits on stderr.
func statusOf(exit sandbox.Exit) int {
	for _, limit := range exit.Limits {
		if limit != exit.Ended {
			fmt.Fprintf(os.Stderr, "veyra-sandboxd: the limit %s was reached\n", limit)
		}
	}
	switch exit.Ended {
	case "":
		return exit.Code
	case sandbox.LimitTimeout:
		fmt.Fprintln(os.Stderr, "veyra-sandboxd: the command timed out")
		return exitTimedOut
	}
	fmt.Fprintf(os.Stderr, "veyra-sandboxd: the command was ended by the limit %s\n", exit.Ended)
	return exitLimit
}

// workspace puts the directory into a layer of its own, by a sandbox without
// an image: what lies above it later is what the command changed.
func (t *throwaway) workspace(ctx context.Context, job sandbox.Job) ([]sandbox.LayerID, error) {
	if t.source == nil {
		return nil, nil
	}
	place, err := job.Create(ctx, sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileGit, Limits: t.policy.Limits})
	if err != nil {
		return nil, err
	}
	defer place.Close(context.WithoutCancel(ctx))
	if err := t.copyIn(ctx, place); err != nil {
		return nil, err
	}
	layers, err := place.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	if err != nil {
		return nil, fmt.Errorf("keeping the copy of %s: %w", t.options.dir, err)
	}
	return layers, nil
}

// copyIn streams the directory into the workspace, links as they are.
func (t *throwaway) copyIn(ctx context.Context, place sandbox.Sandbox) error {
	out, in := io.Pipe()
	read := make(chan error, 1)
	go func() {
		skipped, err := treedir.Read(t.source, treestream.NewWriter(in, treestream.Options{
			Links: true, Limits: treestream.Limits{Entries: t.policy.Limits.Inodes, Bytes: t.policy.Limits.DiskBytes},
		}), t.policy.Limits.Inodes)
		for _, name := range skipped {
			fmt.Fprintf(os.Stderr, "veyra-sandboxd: not copied (no regular file): %q\n", name)
		}
		in.CloseWithError(err)
		read <- err
	}()
	var words strings.Builder
	exit, err := place.Run(ctx, sandbox.Command{
		Argv: []string{sandbox.InitPath, "unpack", sandbox.Workspace}, Stdin: out, Stdout: &words, OutputBytes: 64 << 10,
	})
	out.Close()
	if readErr := <-read; readErr != nil && !errors.Is(readErr, io.ErrClosedPipe) {
		return fmt.Errorf("copying %s in: %w", t.options.dir, readErr)
	}
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("exit status %d: %.300q", exit.Code, words.String())
	}
	if err != nil {
		return fmt.Errorf("copying %s in: %w", t.options.dir, err)
	}
	return nil
}

// copyOut writes what the command changed and lists the rest.
func (t *throwaway) copyOut(ctx context.Context, place sandbox.Sandbox) error {
	out, in := io.Pipe()
	go func() { in.CloseWithError(place.Collect(ctx, in)) }()
	defer out.Close()
	stream, err := treestream.NewReader(out, treestream.Limits{Entries: t.policy.Limits.Inodes, Bytes: t.policy.Limits.DiskBytes})
	if err != nil {
		return fmt.Errorf("collecting the changes: %w", err)
	}
	left, err := treedir.Write(t.target, stream)
	if err != nil {
		return err
	}
	return t.tell(left)
}

func (t *throwaway) tell(left []treedir.Left) error {
	if t.json {
		return printJSONTo(os.Stderr, append([]treedir.Left{}, left...))
	}
	for _, l := range left {
		fmt.Fprintf(os.Stderr, "veyra-sandboxd: %s: %q\n", l.Kind, l.Path)
	}
	return nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
