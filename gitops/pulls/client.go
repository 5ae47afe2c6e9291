package pulls

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Config says which repository's pull requests, and how to reach them.
type Config struct {
	// API is the interface's root, for example "https://api.github.com".
	API string
	// PlainHTTP lets http through to hosts other than loopback.
	PlainHTTP bool
	// Owner and Name are the leased repository's.
	Owner, Name string
	// Token gives the job's credential; fresh asks for another than before.
	Token func(ctx context.Context, fresh bool) (protocol.RepoToken, error)
	// Transport carries the requests. It must follow no redirect by itself,
	// which no http.RoundTripper does.
	Transport http.RoundTripper
	// UserAgent names the program; hosts refuse requests without one.
	UserAgent string
	// Sleep waits between two tries; nil waits for real. An error ends the
	// call with it.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Client is the pull requests of one repository. It may be used by several
// goroutines.
type Client struct {
	cfg    Config
	root   *url.URL
	client *http.Client
}

var repoPart = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}$`)

func checkRepoPart(s string) error {
	if !repoPart.MatchString(s) || s == "." || s == ".." {
		return fmt.Errorf("checking repository name %q: %w", s, ErrInvalid)
	}
	return nil
}

// New checks the configuration and makes a Client; nothing is sent.
func New(cfg Config) (*Client, error) {
	root, err := parseRoot(cfg.API, cfg.PlainHTTP)
	if err != nil {
		return nil, err
	}
	for _, part := range []string{cfg.Owner, cfg.Name} {
		if err := checkRepoPart(part); err != nil {
			return nil, err
		}
	}
	if cfg.Token == nil || cfg.Transport == nil {
		return nil, fmt.Errorf("making client: no token source or transport: %w", ErrInvalid)
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "veyra-sandboxd"
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	return &Client{cfg: cfg, root: root, client: &http.Client{
		Transport:     cfg.Transport,
		Timeout:       2 * time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// parseRoot accepts "https://host[:port][/path]", and http for a loopback host
// or where the owner's policy lets plain text through.
func parseRoot(s string, plain bool) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, fmt.Errorf("reading API address %q: %w", s, ErrInvalid)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !plain && !loopback(u.Hostname())) {
		return nil, fmt.Errorf("reading API address %q: scheme: %w", s, ErrInvalid)
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: strings.TrimRight(u.Path, "/")}, nil
}
