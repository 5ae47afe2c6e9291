package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// options are the flags that all commands share.
type options struct {
	policy   string
	config   string
	stateDir string
	user     string
	json     bool
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.policy, "policy", "", "policy that sandboxes are held to: strict, standard or relaxed")
	flags.StringVar(&o.config, "config", "", "configuration file (YAML)")
	flags.StringVar(&o.stateDir, "state-dir", "", "directory of identity, journal and jobs")
	flags.BoolVar(&o.json, "json", false, "print data as JSON")
	cmd.Flags().StringVar(&o.user, "user", "", "user that the supervisor becomes (default: an id of its own)")
}

// settings reads file, environment and flags, in rising order.
func (o *options) settings() (*Settings, error) {
	s := defaultSettings()
	if o.config != "" {
		if err := s.readFile(o.config); err != nil {
			return nil, err
		}
	}
	if err := s.readEnvironment(os.Environ()); err != nil {
		return nil, err
	}
	for _, flag := range []struct{ value, field *string }{
		{&o.policy, &s.Policy}, {&o.stateDir, &s.StateDir}, {&o.user, &s.User},
	} {
		if *flag.value != "" {
			*flag.field = *flag.value
		}
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
