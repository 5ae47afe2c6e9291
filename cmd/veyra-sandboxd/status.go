package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func statusCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say what the daemon does, and why no job comes", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return status(cmd.Context(), o) },
	}
}

func status(ctx context.Context, o *options) error {
	s, err := o.settings()
	if err != nil {
		return err
	}
	c, err := control(s)
	if err != nil {
		return noDaemon(err, s)
	}
	st, err := c.Status(ctx)
	if err != nil {
		return noDaemon(err, s)
	}
	if o.json {
		return printJSON(st)
	}
	printStatus(st)
	return nil
}

func noDaemon(err error, s *Settings) error {
	if errors.Is(err, supervisor.ErrNoDaemon) {
		return withCode(exitWrongState, "no daemon runs on %s: start it with `veyra-sandboxd --state-dir %s`", s.StateDir, s.StateDir)
	}
	return err
}

// printStatus escapes control characters: some of the words are the control
// plane's (attack case A14).
func printStatus(st supervisor.Status) {
	to := escaping{os.Stdout}
	fmt.Fprintln(to, st.Why)
	fmt.Fprintf(to, "instance   %s, version %s, role %s\n", st.Instance, st.Version, st.Role)
	fmt.Fprintf(to, "identity   %s, public key %s\n", st.RuntimeID, st.PublicKey)
	fmt.Fprintf(to, "pairing    %s", st.Pairing)
	if st.AgentID != "" {
		fmt.Fprintf(to, " as %q (%s) with %s", st.AgentName, st.AgentID, st.Origin)
	}
	fmt.Fprintln(to)
	if !st.LastBeat.IsZero() {
		fmt.Fprintf(to, "beat       %s ago: %s\n", time.Since(st.LastBeat).Round(time.Second), st.BeatResult)
	}
	for _, sentence := range st.Accepted {
		fmt.Fprintln(to, "accepted   "+sentence)
	}
	if r := st.Running; r != nil {
		fmt.Fprintf(to, "running    %s %s, lease %s, %s, %d s of the lease left\n", r.Kind, r.ID, r.Lease, r.Phase, r.LeaseSeconds)
	}
	for _, out := range st.Outbox {
		fmt.Fprintf(to, "to deliver %s %s, sent %d times; last answer: %q\n", out.Kind, out.ID, out.Sends, out.LastSaid)
	}
	for _, e := range st.DeliveryErrors {
		fmt.Fprintf(to, "the control plane could not deliver: %q: %q\n", e.Stage, e.Message)
	}
}
