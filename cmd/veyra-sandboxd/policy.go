package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

func policyCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Show the policies that sandboxes are held to", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the built-in policies", Args: noArguments,
			RunE: func(*cobra.Command, []string) error { return listPolicies(o) },
		},
		&cobra.Command{
			Use: "show [NAME|FILE]", Short: "Print a policy's text", Args: atMostArguments(1),
			RunE: func(_ *cobra.Command, args []string) error { return showPolicy(o, args) },
		},
		&cobra.Command{
			Use: "check FILE", Short: "Tell everything that is wrong with a policy file, and how it is weaker than what it extends", Args: exactArguments(1),
			RunE: func(_ *cobra.Command, args []string) error { return checkPolicy(o, args[0]) },
		},
		&cobra.Command{
			Use: "explain [NAME|FILE]", Short: "Print the effective policy as its digest covers it, and what it weakens", Args: atMostArguments(1),
			RunE: func(_ *cobra.Command, args []string) error { return explainPolicy(o, args) },
		},
	)
	return cmd
}

type policyLine struct {
	Name     string   `json:"name"`
	Warnings []string `json:"warnings"`
}

func listPolicies(o *options) error {
	var lines []policyLine
	for _, name := range policies.Names() {
		policy, err := policies.Builtin(name)
		if err != nil {
			return err
		}
		lines = append(lines, policyLine{Name: name, Warnings: append([]string{}, policy.Warnings()...)})
	}
	if o.json {
		return printJSON(lines)
	}
	for _, line := range lines {
		fmt.Printf("%s (%d settings weaker than strict)\n", line.Name, len(line.Warnings))
	}
	return nil
}

// chosenPolicy is the argument, else the setting.
func chosenPolicy(o *options, args []string) (policies.Policy, error) {
	if len(args) == 0 {
		s, err := o.settings()
		if err != nil {
			return policies.Policy{}, err
		}
		return s.readPolicy()
	}
	policy, err := policies.Load(args[0])
	switch {
	case err == nil:
		return policy, nil
	case policies.IsFile(args[0]):
		return policy, fmt.Errorf("%w: %w", errSettings, err)
	}
	return policy, &codeError{code: exitUsage, err: err}
}

func showPolicy(o *options, args []string) error {
	policy, err := chosenPolicy(o, args)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(policy)
	}
	fmt.Print(policy.YAML())
	return nil
}

// checkedPolicy is what policy check prints.
type checkedPolicy struct {
	File     string             `json:"file"`
	Valid    bool               `json:"valid"`
	Problems []policies.Problem `json:"problems"`
	Name     string             `json:"name,omitempty"`
	Extends  string             `json:"extends,omitempty"`
	SHA256   string             `json:"policy_sha256,omitempty"` // without an image
	Weaker   []string           `json:"weaker"`                  // than what it extends
}

func checkPolicy(o *options, file string) error {
	checked, err := examine(file)
	if err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	if o.json {
		err = printJSON(checked)
	} else {
		checked.print()
	}
	if err == nil && !checked.Valid {
		err = &codeError{code: exitState, silent: true, err: policies.ErrPolicyInvalid}
	}
	return err
}

// examine fails only where the file can't be read at all.
func examine(file string) (checkedPolicy, error) {
	checked := checkedPolicy{File: file, Problems: []policies.Problem{}, Weaker: []string{}}
	policy, err := policies.CheckFile(file)
	var wrong *policies.FileError
	if errors.As(err, &wrong) {
		checked.Problems = wrong.Problems
		return checked, nil
	}
	if err != nil {
		return checked, err
	}
	effective, err := policy.Effective()
	if err != nil {
		return checked, err
	}
	checked.Valid, checked.Name, checked.Extends = true, policy.Name, policy.Extends
	checked.Weaker = append(checked.Weaker, policy.WeakerThanBase()...)
	checked.SHA256, err = effective.Digest("")
	return checked, err
}

func (c checkedPolicy) print() {
	for _, problem := range c.Problems {
		fmt.Fprintf(os.Stderr, "%s: %s\n", c.File, strings.Join(strings.Fields(problem.String()), " "))
	}
	if !c.Valid {
		return
	}
	fmt.Printf("%s: the policy %s, which extends %s, can be used; its digest without an image is %s\n", c.File, c.Name, c.Extends, c.SHA256)
	for _, sentence := range c.Weaker {
		fmt.Printf("weaker than %s: %s\n", c.Extends, sentence)
	}
}

// explainPolicy prints the text whose digest goes into evidence, for a job
// without an image and without narrowing.
func explainPolicy(o *options, args []string) error {
	policy, err := chosenPolicy(o, args)
	if err != nil {
		return err
	}
	effective, err := policy.Effective()
	if err != nil {
		return err
	}
	explained, err := effective.Explain("")
	if err != nil {
		return err
	}
	fmt.Println(explained)
	for _, warning := range policy.Warnings() {
		fmt.Fprintln(os.Stderr, warning)
	}
	return nil
}
