package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"rsc.io/qr"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func linkCommand(o *options) *cobra.Command {
	var rotate bool
	cmd := &cobra.Command{
		Use: "link", Short: "Print the connection link for the control plane's form", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return link(cmd.Context(), o, rotate) },
	}
	cmd.Flags().BoolVar(&rotate, "rotate", false, "revoke the current link and make a new one")
	return cmd
}

// link asks the daemon, or makes identity and link by itself where none runs.
func link(ctx context.Context, o *options, rotate bool) error {
	s, err := o.settings()
	if err != nil {
		return err
	}
	text, err := linkFromDaemon(ctx, s, rotate)
	if errors.Is(err, supervisor.ErrNoDaemon) {
		text, err = linkFromState(ctx, s, rotate)
	}
	if errors.Is(err, supervisor.ErrPaired) {
		return withCode(exitWrongState, "this instance is already paired; a new link is possible once the control plane has revoked it")
	}
	if err != nil {
		return err
	}
	return printLink(o, text)
}

func printLink(o *options, text string) error {
	if o.json {
		return printJSON(map[string]string{"link": text})
	}
	fmt.Println(text)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		printQR(text)
	}
	return nil
}

// printQR draws two modules a character, the light ones in the terminal's
// foreground: most are light on dark, and readers take either. A terminal too narrow shows a mess,
// and the link stands above it all the same.
func printQR(text string) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return
	}
	for y := -2; y < code.Size+2; y += 2 {
		for x := -2; x < code.Size+2; x++ {
			fmt.Fprint(os.Stderr, [4]string{"█", "▀", "▄", " "}[bit(code.Black(x, y))<<1|bit(code.Black(x, y+1))])
		}
		fmt.Fprintln(os.Stderr)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// control finds the socket of the daemon that uses the state directory.
func control(s *Settings) (*supervisor.Control, error) {
	id, err := signer.ReadRuntimeID(filepath.Join(s.StateDir, "identity"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no identity yet: %w", s.StateDir, supervisor.ErrNoDaemon)
	}
	if err != nil {
		return nil, err
	}
	return supervisor.NewControl(controlPath(id.Instance())), nil
}

func linkFromDaemon(ctx context.Context, s *Settings, rotate bool) (string, error) {
	c, err := control(s)
	if err != nil {
		return "", err
	}
	return c.Link(ctx, rotate)
}

// linkFromState holds the state's lock, so that no daemon starts meanwhile.
func linkFromState(ctx context.Context, s *Settings, rotate bool) (string, error) {
	lock, err := journal.Lock(s.StateDir)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	binding := pathsOf(s.StateDir).binding
	if err := os.MkdirAll(binding, 0o700); err != nil {
		return "", fmt.Errorf("%w: %w", supervisor.ErrState, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	key, err := signer.Start(ctx, exe, signer.Config{StateDir: s.StateDir, UID: confine.Stay, GID: confine.Stay, Stderr: os.Stderr})
	if err != nil {
		return "", err
	}
	defer key.Close()
	pairing, err := openPairing(s, binding, key, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	text, err := pairing.Link(rotate)
	if err == nil {
		fmt.Fprintln(os.Stderr, "veyra-sandboxd: no daemon runs here: start it before you enter the link, or the control plane can't reach it")
	}
	return text, err
}
