package main

import (
	"fmt"
	"os"

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
			Use: "show [NAME]", Short: "Print a policy's text", Args: atMostArguments(1),
			RunE: func(_ *cobra.Command, args []string) error { return showPolicy(o, args) },
		},
		&cobra.Command{
			Use: "explain [NAME]", Short: "Print the effective policy as its digest covers it, and what it weakens", Args: atMostArguments(1),
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
	if len(args) == 1 {
		policy, err := policies.Load(args[0])
		if err != nil {
			return policy, &codeError{code: exitUsage, err: err}
		}
		return policy, nil
	}
	s, err := o.settings()
	if err != nil {
		return policies.Policy{}, err
	}
	policy, err := policies.Load(s.Policy)
	if err != nil {
		return policy, fmt.Errorf("%w: %w", errSettings, err)
	}
	return policy, nil
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
