package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

func doctorCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Measure what this host can enforce, and say what is missing", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return doctor(cmd.Context(), o) },
	}
}

// diagnosis is what doctor prints. Enforceable is about the chosen policy.
type diagnosis struct {
	Policy      string            `json:"policy"`
	Enforceable bool              `json:"enforceable"`
	Missing     string            `json:"missing,omitempty"`
	Backend     sandbox.Report    `json:"backend"`
	Why         string            `json:"why"` // this runtime
	PassedOver  []passedOver      `json:"passed_over"`
	Host        []sandbox.Control `json:"host"`
	Weakenings  []string          `json:"weakenings"`
}

func doctor(ctx context.Context, o *options) error {
	s, err := o.settings()
	if err != nil {
		return err
	}
	d := diagnosis{Policy: s.Policy, Host: hostLines(s), Weakenings: []string{}, PassedOver: []passedOver{}}
	if err = d.probe(ctx, s); err != nil {
		d.Missing = err.Error()
	}
	d.Enforceable = err == nil
	if o.json {
		if err := printJSON(d); err != nil {
			return err
		}
	} else {
		d.print()
	}
	if !d.Enforceable {
		return &codeError{code: exitHost, silent: o.json, err: fmt.Errorf("this host can't enforce the policy %s: %s", s.Policy, d.Missing)}
	}
	return nil
}

// probe really starts a sandbox under the policy, in an instance of its own.
func (d *diagnosis) probe(ctx context.Context, s *Settings) error {
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
	if err != nil {
		return err
	}
	d.Why = s.runtimeReason()
	return c.client.Close()
}

// unenforced names the first control that was not seen.
func unenforced(report sandbox.Report) error {
	for _, control := range report.Controls {
		if !control.Enforced && !control.Waived {
			return fmt.Errorf("%s: %s (%s)", control.Name, control.Seen, control.Fix)
		}
	}
	return nil
}

func (d diagnosis) print() {
	fmt.Printf("policy %s, backend %s, runtime %s %s (%s)\n", d.Policy, d.Backend.Backend, d.Backend.Runtime, d.Backend.Version, d.Backend.Path)
	if d.Why != "" {
		fmt.Println("this runtime: " + d.Why)
	}
	for _, p := range d.PassedOver {
		fmt.Printf("passed   %-22s %s\n", p.Name, p.Why)
	}
	for _, controls := range [][]sandbox.Control{d.Backend.Controls, d.Host} {
		for _, c := range controls {
			mark := "ok     "
			switch {
			case c.Waived:
				mark = "waived "
			case !c.Enforced:
				mark = "missing"
			}
			fmt.Printf("%s  %-22s %s", mark, c.Name, c.Seen)
			if c.Fix != "" && !c.Enforced {
				fmt.Printf("  → %s", c.Fix)
			}
			fmt.Println()
		}
	}
	for _, warning := range d.Weakenings {
		fmt.Println("weaker   " + warning)
	}
}

// hostLines are facts that no sandbox is needed for.
func hostLines(s *Settings) []sandbox.Control {
	return []sandbox.Control{kernelLine(), landlockLine(), imageLine(s), corePatternLine(), stateLine(s)}
}

func kernelLine() sandbox.Control {
	var name unix.Utsname
	_ = unix.Uname(&name)
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return sandbox.Control{
		Name: "kernel", Seen: release, Enforced: err == nil && (major > 5 || major == 5 && minor >= 12), Fix: "a kernel from 5.12 up",
	}
}

func landlockLine() sandbox.Control {
	abi := confine.LandlockABI()
	return sandbox.Control{
		Name: "landlock", Seen: fmt.Sprintf("version %d of its interface", abi), Enforced: abi > 0,
		Fix: "a kernel with Landlock among its security modules; without it the supervisor's file access is not confined",
	}
}

func imageLine(s *Settings) sandbox.Control {
	control := sandbox.Control{Name: "image python", Fix: "veyra-sandboxd image build python"}
	store, err := images.Open(filepath.Join(s.CacheDir, "images"))
	if err != nil {
		control.Seen = err.Error()
		return control
	}
	image, err := store.Lookup("python")
	if err != nil {
		control.Seen = "not built yet"
		if !errors.Is(err, images.ErrMissing) {
			control.Seen = err.Error()
		}
		return control
	}
	control.Seen, control.Enforced = string(image.Digest), true
	return control
}

// corePatternLine: a pipe there runs a program of the host on a job's core,
// whatever the job's limits say (core(5)).
func corePatternLine() sandbox.Control {
	text, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	pattern := strings.TrimSpace(string(text))
	return sandbox.Control{
		Name: "core_pattern", Seen: fmt.Sprintf("%.100q", pattern), Enforced: err == nil && !strings.HasPrefix(pattern, "|"),
		Fix: "sysctl kernel.core_pattern=core, or a pipe program that you trust with strangers' crashes",
	}
}

func stateLine(s *Settings) sandbox.Control {
	control := sandbox.Control{Name: "state directory", Seen: s.StateDir + " is not there yet", Enforced: true, Fix: "chmod 0700 " + s.StateDir}
	info, err := os.Lstat(s.StateDir)
	if err == nil {
		control.Seen = fmt.Sprintf("%s, mode %04o", s.StateDir, info.Mode().Perm())
		control.Enforced = info.IsDir() && info.Mode().Perm()&0o077 == 0
	}
	return control
}
