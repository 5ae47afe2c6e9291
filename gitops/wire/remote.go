package wire

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Config says which repository and how to reach it.
type Config struct {
	// Origin is the pinned host, for example "https://github.com".
	Origin string
	// PlainHTTP lets http through to hosts other than loopback.
	PlainHTTP bool
	// Owner and Name are the leased repository's, as the task says.
	Owner, Name string
	// Token gives the job's credential; fresh asks for another than before,
	// because that one was refused. It is called for every operation.
	Token func(ctx context.Context, fresh bool) (protocol.RepoToken, error)
	// Transport carries the requests; NewTransport makes one.
	Transport http.RoundTripper
	// UserAgent names the program.
	UserAgent string
	// MaxPack bounds a fetched pack in bytes; 0 means 1 GiB.
	MaxPack int64
	// Window is the time in which a transfer must move WindowBytes, or it is a
	// slow window; the fourth slow window ends the transfer. 0 means 30 s and
	// 256 bytes.
	Window      time.Duration
	WindowBytes int64
	// Log gets the server's own texts, quoted. Nil means none.
	Log *slog.Logger
}

// Remote is one repository on one host. It holds no connection state of its
// own and may be used by several goroutines; each method is one conversation.
type Remote struct {
	cfg    Config
	origin *url.URL
	client *http.Client
}

// New checks the configuration and makes a Remote; nothing is sent.
func New(cfg Config) (*Remote, error) {
	origin, err := parseOrigin(cfg.Origin, cfg.PlainHTTP)
	if err != nil {
		return nil, err
	}
	for _, part := range []string{cfg.Owner, cfg.Name} {
		if err := CheckRepoPart(part); err != nil {
			return nil, err
		}
	}
	if cfg.Token == nil || cfg.Transport == nil {
		return nil, fmt.Errorf("making remote: no token source or transport: %w", ErrInvalid)
	}
	setDefaults(&cfg)
	return &Remote{cfg: cfg, origin: origin, client: &http.Client{
		Transport: cfg.Transport,
		// Redirects are looked at by hand: the default would keep the token
		// for sub-domains and turn a POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func setDefaults(cfg *Config) {
	if cfg.MaxPack == 0 {
		cfg.MaxPack = 1 << 30
	}
	if cfg.Window == 0 {
		cfg.Window = 30 * time.Second
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = 256
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "veyra-sandboxd"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

// URL is the repository's address, for logs and comparison.
func (r *Remote) URL() string {
	return r.origin.String() + "/" + r.cfg.Owner + "/" + r.cfg.Name + ".git"
}
