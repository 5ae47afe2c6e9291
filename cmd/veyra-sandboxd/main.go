// Command veyra-sandboxd is the daemon and its operator's commands, one file
// each; it wires the packages together and does nothing else. The daemon runs
// itself again for each of its processes (hidden subcommands, main.go); start
// reading at daemon.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/oci"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// version is set by the build.
var version = "0.1.0-dev"

// The exit codes that scripts rely on.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitWrongState = 3
	exitHost       = 4
	exitState      = 78
)

func main() {
	// The processes of the daemon branch off before anything else is read.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case signer.Subcommand:
			os.Exit(signer.Main(os.Args[2:]))
		case runner.Subcommand:
			os.Exit(runner.Main(os.Args[2:], runner.Parts{Open: openDriver, Embedded: embedded}))
		case oci.RootlessCommand:
			os.Exit(oci.RootlessMain(os.Args[2:]))
		case images.UnpackCommand:
			os.Exit(images.UnpackMain(os.Args[2:]))
		}
	}
	os.Exit(run(os.Args[1:]))
}

// run returns the exit code of an operator's command.
func run(args []string) int {
	if err := confine.CloseFrom(3); err != nil {
		return report(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	return report(root.ExecuteContext(ctx))
}

// codeError carries an exit code of its own and may have been told already.
type codeError struct {
	code   int
	silent bool
	err    error
}

func (e *codeError) Error() string { return fmt.Sprint(e.err) }
func (e *codeError) Unwrap() error { return e.err }

func withCode(code int, format string, args ...any) error {
	return &codeError{code: code, err: fmt.Errorf(format, args...)}
}

// report prints an error as one line that says what to do, and returns the
// exit code.
func report(err error) int {
	if err == nil {
		return exitDone
	}
	code := codeOf(err)
	var own *codeError
	if !errors.As(err, &own) || !own.silent {
		fmt.Fprintln(os.Stderr, "veyra-sandboxd: "+strings.Join(strings.Fields(err.Error()), " "))
	}
	return code
}

func codeOf(err error) int {
	var own *codeError
	switch {
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, errSettings), errors.Is(err, signer.ErrState), errors.Is(err, journal.ErrState), errors.Is(err, supervisor.ErrState):
		return exitState
	case errors.Is(err, supervisor.ErrPaired), errors.Is(err, supervisor.ErrUnreachable), errors.Is(err, supervisor.ErrNoDaemon),
		errors.Is(err, supervisor.ErrNoJob), errors.Is(err, supervisor.ErrBusyJob),
		errors.Is(err, supervisor.ErrDeleted), errors.Is(err, supervisor.ErrNoLog),
		errors.Is(err, journal.ErrLocked), errors.Is(err, fs.ErrNotExist):
		return exitWrongState
	}
	return exitFailed
}

func rootCommand() *cobra.Command {
	var options options
	root := &cobra.Command{
		Use:   "veyra-sandboxd",
		Short: "Runs leased coding jobs of the Veyra marketplace in hardened sandboxes",
		Long: "veyra-sandboxd runs leased coding jobs of the Veyra marketplace in hardened, throwaway sandboxes.\n" +
			"Without a command it runs the daemon in the foreground; SIGTERM drains it, a second one cancels.",
		SilenceUsage: true, SilenceErrors: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), &options) },
	}
	options.addTo(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withCode(exitUsage, "%w (see --help)", err) })
	root.AddCommand(
		runCommand(&options), linkCommand(&options), statusCommand(&options), jobsCommand(&options),
		doctorCommand(&options), sandboxCommand(&options), imageCommand(&options), policyCommand(&options), versionCommand(&options),
	)
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// noArguments gives a wrong command its exit code.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return withCode(exitUsage, "%q is no command of %s (see --help)", args[0], cmd.CommandPath())
	}
	return nil
}

func exactArguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return withCode(exitUsage, "%s takes %d arguments (see --help)", cmd.CommandPath(), n)
		}
		return nil
	}
}

func atMostArguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return withCode(exitUsage, "%s takes at most %d arguments (see --help)", cmd.CommandPath(), n)
		}
		return nil
	}
}
