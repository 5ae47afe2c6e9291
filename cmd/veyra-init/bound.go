package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/internal/initwire"
)

// bound writes limits of the user namespace that it was started in, NAME=VALUE
// each, says that it is done and waits for the end of its input: whoever started
// it takes the namespace meanwhile. In a sandbox, where nobody has the right to,
// it can only fail.
func bound(limits []string, in io.Reader, out io.Writer) error {
	for _, limit := range limits {
		name, value, _ := strings.Cut(limit, "=")
		if name == "" || name != filepath.Base(name) {
			return errUsage
		}
		if err := os.WriteFile(filepath.Join("/proc/sys/user", name), []byte(value), 0); err != nil {
			return fmt.Errorf("bounding a user namespace: %w", err)
		}
	}
	_, saidErr := fmt.Fprintln(out, initwire.Bounded)
	_, err := io.Copy(io.Discard, in)
	return errors.Join(saidErr, err)
}
