package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	listen    string
	dir       string
	model     string
	key       string
	json      bool
	qualified bool
	verify    bool
	attempts  int
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve control plane, git, pull requests and model on one loopback port",
		Long: "Serves on one loopback port until it is interrupted:\n" +
			"  /api/v1/agent-runtime/    the control plane\n" +
			"  /<owner>/<name>.git       git over smart HTTP\n" +
			"  /api/v3/repos/…           pull requests in GitHub's form\n" +
			"  /v1/chat/completions      the scripted model\n" +
			"  /devplane/link, jobs, verifications, state, wait   what scripts drive it by\n" +
			"A line on stdout tells the addresses, then one line each step.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("serve takes no arguments (%w)", errUsage)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), o, cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:0", "loopback address and port; port 0 takes a free one")
	flags.StringVar(&o.dir, "dir", "", "directory for the repositories (default: a temporary one, removed at the end)")
	flags.StringVar(&o.model, "model", "scripted", "name of the model")
	flags.StringVar(&o.key, "key", "", "key that model requests must carry (default: any)")
	flags.BoolVar(&o.json, "json", false, "print JSON lines")
	flags.BoolVar(&o.qualified, "qualified", false, "take agents without a qualification")
	flags.BoolVar(&o.verify, "verify", false, "offer each accepted success to a verifier at once")
	flags.IntVar(&o.attempts, "attempts", 0, "how often a job is given out in all (default: four)")
	return cmd
}

// serve runs until ctx ends and takes its temporary directory away.
func serve(ctx context.Context, o serveOptions, out io.Writer) (err error) {
	listener, err := listenLoopback(o.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	dir, done, err := openDir(o.dir)
	if err != nil {
		return fmt.Errorf("making a directory for repositories: %w", err)
	}
	defer func() { err = errors.Join(err, done()) }()
	w := newWorld(worldOptions{
		Origin: "http://" + listener.Addr().String(), Dir: dir, Model: o.model, Key: o.key,
		Qualified: o.qualified, Verify: o.verify, Attempts: o.attempts,
	})
	server := &http.Server{Handler: w, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	told := make(chan struct{})
	follow, stop := context.WithCancel(ctx)
	go func() { defer close(told); w.tell(follow, newTeller(out, o.json)) }()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-served:
	}
	stop()
	_ = server.Close()
	<-told
	return err
}

// listenLoopback refuses every address that others could reach: nothing here
// asks who is calling.
func listenLoopback(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is no address:port (%w)", address, errUsage)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--listen %q is not on loopback, as in 127.0.0.1:0 (%w)", address, errUsage)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return listener, nil
}

// openDir makes the directory, whole names for git's sake; done removes it if
// nobody named it.
func openDir(name string) (dir string, done func() error, err error) {
	if name == "" {
		dir, err = os.MkdirTemp("", "veyra-devplane-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	if dir, err = filepath.Abs(name); err != nil {
		return "", nil, err
	}
	return dir, func() error { return nil }, os.MkdirAll(dir, 0o755)
}
