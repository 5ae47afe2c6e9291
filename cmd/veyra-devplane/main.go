// Command veyra-devplane is a local stand-in for everything that a runtime
// talks to: a control plane, a git host with pull requests, and a scripted
// model. It is for trying and testing on one machine: it listens on loopback
// only and trusts whoever reaches it there. Start reading at world.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// version is set by the build.
var version = "0.1.0-dev"

// The exit codes, the same as the daemon's.
const (
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks what the caller can mend by other flags.
var errUsage = errors.New("see --help")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := rootCommand().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "veyra-devplane:", err)
	if errors.Is(err, errUsage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "veyra-devplane", Short: "A local control plane with a git host and a scripted model",
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w (%w)", err, errUsage) })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(serveCommand())
	return root
}
