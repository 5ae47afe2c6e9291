package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// options are the flags that all commands share.
type options struct {
	policy   string
	config   string
	envFile  string
	stateDir string
	user     string
	json     bool
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.policy, "policy", "", "policy that sandboxes are held to: strict, standard, relaxed, or a file that extends one")
	flags.StringVar(&o.config, "config", "", "configuration file (YAML)")
	flags.StringVar(&o.envFile, "env-file", "", "file of NAME=value lines, such as the reference runtime's .env")
	flags.StringVar(&o.stateDir, "state-dir", "", "directory of identity, journal and jobs")
	flags.BoolVar(&o.json, "json", false, "print data as JSON")
	cmd.Flags().StringVar(&o.user, "user", "", "user that the supervisor becomes (default: an id of its own)")
}

// settings reads file, env file, environment and flags, in rising order.
func (o *options) settings() (*Settings, error) {
	s := defaultSettings()
	if o.config != "" {
		if err := s.readFile(o.config); err != nil {
			return nil, err
		}
	}
	if o.envFile != "" {
		if err := s.readEnvFile(o.envFile); err != nil {
			return nil, err
		}
	}
	if err := s.readEnvironment(os.Environ()); err != nil {
		return nil, err
	}
	for _, flag := range []struct{ value, field *string }{
		{&o.policy, &s.Policy}, {&o.user, &s.User},
	} {
		if *flag.value != "" {
			*flag.field = *flag.value
		}
	}
	// A shell's words are meant from where they were typed; a file's and the
	// environment's are not, so those must be whole.
	if policies.IsFile(o.policy) {
		whole, err := filepath.Abs(o.policy)
		if err != nil {
			return nil, fmt.Errorf("%w: --policy: %w", errSettings, err)
		}
		s.Policy = whole
	}
	if o.stateDir != "" {
		whole, err := filepath.Abs(o.stateDir)
		if err != nil {
			return nil, fmt.Errorf("%w: --state-dir: %w", errSettings, err)
		}
		s.StateDir = whole
	}
	s.finish()
	return s, s.check()
}

// printJSON prints data for scripts.
func printJSON(v any) error { return printJSONTo(os.Stdout, v) }

func printJSONTo(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
