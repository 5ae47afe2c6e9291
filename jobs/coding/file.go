package coding

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// watchedPlace notices that a command took the whole sandbox with it. That ends
// the round, not the job: what was changed by then can still be collected.
type watchedPlace struct {
	Place
	gone *bool
}

func (w watchedPlace) Run(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	exit, err := w.Place.Run(ctx, cmd)
	*w.gone = *w.gone || exit.Gone
	return exit, err
}

// readFile reads a file of the workspace through init's helper, which follows
// no link. It tells false for what is no readable regular file within bounds.
func readFile(ctx context.Context, place Place, name string) ([]byte, bool, error) {
	output := &capped{left: maxEditFile + 1}
	exit, err := place.Run(ctx, sandbox.Command{
		Argv:   []string{sandbox.InitPath, "read", sandbox.Workspace + "/" + name, strconv.Itoa(maxEditFile)},
		Stdout: output, Stderr: &capped{left: 4096}, Timeout: commandTime,
	})
	if err != nil {
		return nil, false, fmt.Errorf("reading a file of the workspace: %w", err)
	}
	return output.Bytes(), exit.Code == 0, nil
}

// writeFile returns why the sandbox refused, in words for the model.
func writeFile(ctx context.Context, place Place, name string, content []byte) (string, error) {
	errors := &capped{left: 4096}
	exit, err := place.Run(ctx, sandbox.Command{
		Argv:   []string{sandbox.InitPath, "write", sandbox.Workspace + "/" + name},
		Stdin:  bytes.NewReader(content),
		Stdout: &capped{left: 4096}, Stderr: errors, Timeout: commandTime,
	})
	if err != nil {
		return "", fmt.Errorf("writing a file of the workspace: %w", err)
	}
	if exit.Code != 0 {
		return "the file could not be written: " + strings.TrimSpace(Observe(errors.String())), nil
	}
	return "", nil
}

// capped keeps the first bytes and swallows the rest.
type capped struct {
	bytes.Buffer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	c.Buffer.Write(p[:n])
	return len(p), nil
}
