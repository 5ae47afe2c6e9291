package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/internal/hostcheck"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func doctorCommand(o *options) *cobra.Command {
	var acceptID string
	var attacked bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Measure what this host can enforce, and say what is missing", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := acceptFirst(o, acceptID); err != nil {
				return err
			}
			return doctor(cmd.Context(), o, attacked)
		},
	}
	cmd.Flags().StringVar(&acceptID, "accept-runtime", "", "record that strict may go on with a runtime that has this advisory (an id, such as CVE-2025-31133)")
	cmd.Flags().BoolVar(&attacked, "prove", false, "attack real sandboxes and tell what came of it, control by control; keep the proof for evidence")
	return cmd
}

// acceptFirst records what the owner accepts, so that the diagnosis counts it.
func acceptFirst(o *options, id string) error {
	if id == "" {
		return nil
	}
	s, err := o.settings()
	if err != nil {
		return err
	}
	return accept(s.StateDir, id, time.Now())
}

// diagnosis is what doctor prints. Enforceable is about the chosen policy.
type diagnosis struct {
	Policy      string             `json:"policy"`
	Enforceable bool               `json:"enforceable"`
	Missing     string             `json:"missing,omitempty"`
	Backend     sandbox.Report     `json:"backend"`
	Why         string             `json:"why"` // this runtime
	PassedOver  []passedOver       `json:"passed_over"`
	Advisories  []policies.Finding `json:"advisories"`
	Host        []hostcheck.Line   `json:"host"`
	Proof       *proofRecord       `json:"proof,omitempty"` // with --prove
	Weakenings  []string           `json:"weakenings"`
}

func doctor(ctx context.Context, o *options, attacked bool) error {
	s, err := o.settings()
	if err != nil {
		return err
	}
	policy, err := s.readPolicy()
	if err != nil {
		return err
	}
	if _, err := acceptedIDs(s.StateDir); err != nil {
		return err
	}
	d := diagnosis{Policy: policy.Name, Advisories: []policies.Finding{}, Weakenings: []string{}, PassedOver: []passedOver{}}
	if err = d.probe(ctx, s, attacked); err != nil {
		d.Missing = err.Error()
	}
	d.Enforceable = err == nil
	d.Host = hostLines(s) // after the probe, which loads what modules it needs
	if o.json {
		if err := printJSON(d); err != nil {
			return err
		}
	} else {
		d.print()
	}
	if !d.Enforceable {
		return &codeError{code: exitHost, silent: o.json, err: fmt.Errorf("this host can't enforce the policy %s: %s", d.Policy, d.Missing)}
	}
	return nil
}

// probe really starts a sandbox under the policy, in an instance of its own, and
// may attack more of them.
func (d *diagnosis) probe(ctx context.Context, s *Settings, attacked bool) error {
	if rootless() {
		if attacked {
			return withCode(exitHost, "--prove attacks every control, and an ordinary user's sandboxes lack some: start it as root or with sudo")
		}
		if err := d.rootless(ctx, s); err != nil {
			return err
		}
	}
	disks := filepath.Join(s.CacheDir, "disks")
	if err := os.MkdirAll(disks, 0o700); err != nil {
		return err
	}
	policy, err := scaledPolicy(s, disks)
	if err != nil {
		return err
	}
	d.Weakenings = append(d.Weakenings, policy.Warnings()...)
	c, err := chooseRuntime(ctx, s, "run-"+randomHex(4), disks)
	d.Backend, d.PassedOver = c.report, append(d.PassedOver, c.over...)
	d.Advisories = append(d.Advisories, c.advice...)
	d.Weakenings = append(d.Weakenings, adviceWeakenings(c.advice)...)
	if err != nil {
		return err
	}
	d.Why = s.runtimeReason()
	if attacked {
		err = d.prove(ctx, s, c, policy)
	}
	return errors.Join(err, c.client.Close())
}

// unenforced names every control that was not seen and that the policy does not
// go without.
func unenforced(report sandbox.Report) error {
	var missing []string
	for _, c := range report.Controls {
		if c.Enforced || c.Waived {
			continue
		}
		text := c.Name + ": " + c.Seen
		if c.Fix != "" {
			text += " (" + c.Fix + ")"
		}
		missing = append(missing, text)
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New(strings.Join(missing, "; "))
}

func (d diagnosis) print() {
	with := "no sandbox was started"
	if d.Backend.Runtime != "" {
		with = fmt.Sprintf("runtime %s %s (%s)", d.Backend.Runtime, d.Backend.Version, d.Backend.Path)
	}
	fmt.Printf("policy %s, backend %s, %s\n", d.Policy, d.Backend.Backend, with)
	if d.Why != "" {
		fmt.Println("this runtime: " + d.Why)
	}
	for _, p := range d.PassedOver {
		fmt.Printf("passed   %-22s %s\n", p.Name, p.Why)
	}
	for _, c := range d.Backend.Controls {
		printLine(controlMark(c), hostcheck.Line{Name: c.Name, Good: c.Enforced, Seen: c.Seen, Fix: c.Fix})
	}
	for _, line := range d.Host {
		mark := "ok"
		if !line.Good {
			mark = "missing"
		}
		printLine(mark, line)
	}
	if d.Proof != nil {
		d.Proof.print()
	}
	d.printAdvice()
}

func controlMark(c sandbox.Control) string {
	switch {
	case c.Waived:
		return "waived"
	case !c.Enforced:
		return "missing"
	}
	return "ok"
}

// printLine says what was measured, what that means, and how to change it.
func printLine(mark string, line hostcheck.Line) {
	fmt.Printf("%-7s  %-22s %s", mark, line.Name, line.Seen)
	if line.Means != "" {
		fmt.Printf(": %s", line.Means)
	}
	if line.Fix != "" && !line.Good {
		fmt.Printf("  → %s", line.Fix)
	}
	fmt.Println()
}

// printAdvice tells what weakens; a note is no weakening and stands alone.
func (d diagnosis) printAdvice() {
	for _, f := range d.Advisories {
		if f.Strict == policies.VerdictNote {
			fmt.Println("note     " + f.Sentence())
		}
	}
	for _, warning := range d.Weakenings {
		fmt.Println("weaker   " + warning)
	}
}
