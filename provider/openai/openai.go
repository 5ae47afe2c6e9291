// Package openai speaks the OpenAI-compatible chat dialect without streaming:
// POST {base}/chat/completions and GET {base}/models. It takes the quirks of
// many servers (numeric ids, arguments as objects, errors with status 200) and
// gives one clean Reply or a *provider.Error. The key goes to the configured
// address only: no redirect is followed. Start reading at Client.Chat.
package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/veyra-labs/veyra-sandboxd/provider"
)

// Bounds on what is exchanged with a provider.
const (
	maxBody       = 16 << 20          // bytes of a request or an answer
	tries         = 3                 // of one request
	maxRetryAfter = 120 * time.Second // a longer wait is given up at once
)

// Config says where the model is and what opens it.
type Config struct {
	// BaseURL as the owner gave it, for example "https://api.example/v1". Plain
	// http is for loopback and for origins that the owner listed.
	BaseURL string
	Model   string
	// Key may be empty for a loopback address (a local model).
	Key provider.Key
	// Timeout bounds one request with its whole answer.
	Timeout time.Duration
	// Transport is http.DefaultTransport's kin; nil: one of our own.
	Transport http.RoundTripper
	// FirstPause is the pause before the second try, doubled for the third;
	// 0: half a second.
	FirstPause time.Duration
	// Observe is told each answer's status (0: none) and time; may be nil.
	Observe func(status int, took time.Duration)
}

// Client is a provider. Its methods may run at once.
type Client struct {
	cfg  Config
	base string
	http *http.Client
	// newLimitName is set once the server refused max_tokens.
	newLimitName atomic.Bool
}

var _ provider.Provider = (*Client)(nil)

// New checks the configuration. A *provider.Error of kind NotConfigured says
// what the owner has to set.
func New(cfg Config) (*Client, error) {
	base, err := checkBase(cfg)
	if err != nil {
		return nil, &provider.Error{Kind: provider.NotConfigured, Err: err}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Minute
	}
	if cfg.FirstPause <= 0 {
		cfg.FirstPause = 500 * time.Millisecond
	}
	if cfg.Transport == nil {
		cfg.Transport = newTransport()
	}
	client := &http.Client{
		Transport:     cfg.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Client{cfg: cfg, base: base, http: client}, nil
}

// newTransport has limits of its own and no compression, so that caps count
// what is held in memory.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = 64 << 10
	t.TLSHandshakeTimeout = 10 * time.Second
	t.MaxIdleConnsPerHost = 2
	return t
}

func checkBase(cfg Config) (string, error) {
	if cfg.BaseURL == "" {
		return "", errors.New("no base URL is set: set AI_BASE_URL or provider.base_url")
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the base URL must be scheme://host[:port]/path: check AI_BASE_URL")
	}
	local := isLoopback(u.Hostname())
	if u.Scheme != "https" && !(u.Scheme == "http" && local) {
		return "", errors.New("the base URL must be https (http only on loopback): check AI_BASE_URL")
	}
	if cfg.Model == "" {
		return "", errors.New("no model is named: set AI_MODEL or provider.model")
	}
	if cfg.Key == "" && !local {
		return "", errors.New("no key is set: set AI_API_KEY_FILE or provider.key_file")
	}
	return strings.TrimRight(cfg.BaseURL, "/"), nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Chat sends one request and tries passing trouble again.
func (c *Client) Chat(ctx context.Context, req provider.Request) (provider.Reply, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.Multiplier, pauses.RandomizationFactor = c.cfg.FirstPause, 2, 0.25
	reply, err := backoff.Retry(ctx, func() (provider.Reply, error) {
		reply, err := c.chatOnce(ctx, req)
		return reply, retryRule(ctx, err)
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(tries), backoff.WithMaxElapsedTime(0))
	return reply, unwrapRetry(ctx, err)
}

// retryRule marks what another try can't cure as permanent.
func retryRule(ctx context.Context, err error) error {
	var e *provider.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	switch e.Kind {
	case provider.RateLimited, provider.Unavailable, provider.BadResponse:
	default:
		return backoff.Permanent(err)
	}
	if e.RetryAfter > maxRetryAfter || tooLate(ctx, e.RetryAfter) {
		return backoff.Permanent(err)
	}
	if e.RetryAfter > 0 {
		return &waitError{error: err, after: &backoff.RetryAfterError{Duration: e.RetryAfter}}
	}
	return err
}

// waitError carries the provider's wish to the loop and keeps the cause.
type waitError struct {
	error
	after *backoff.RetryAfterError
}

func (w *waitError) Unwrap() []error { return []error{w.error, w.after} }

func tooLate(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < wait
}

// unwrapRetry gives the caller our own error, not the loop's dress around it.
func unwrapRetry(ctx context.Context, err error) error {
	var e *provider.Error
	if err == nil {
		return nil
	}
	if errors.As(err, &e) {
		return e
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c *Client) chatOnce(ctx context.Context, req provider.Request) (provider.Reply, error) {
	body, err := encodeRequest(c.cfg.Model, req, c.newLimitName.Load())
	if err != nil {
		return provider.Reply{}, err
	}
	answer, err := c.post(ctx, "/chat/completions", body)
	if err != nil {
		return provider.Reply{}, err
	}
	if answer.status == http.StatusBadRequest && !c.newLimitName.Load() && answer.names("max_tokens") {
		c.newLimitName.Store(true)
		return c.chatOnce(ctx, req)
	}
	return answer.reply(req, len(body))
}

// answer is what came back, read whole and capped.
type answer struct {
	status     int
	retryAfter time.Duration
	body       []byte
}

func (c *Client) post(ctx context.Context, path string, body []byte) (answer, error) {
	if len(body) > maxBody {
		return answer{}, &provider.Error{Kind: provider.ContextOverflow, Err: fmt.Errorf("request of %d bytes", len(body))}
	}
	return c.do(ctx, http.MethodPost, path, body)
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) (answer, error) {
	inner, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(inner, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, &provider.Error{Kind: provider.NotConfigured, Err: errors.New("the base URL can't be used")}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+string(c.cfg.Key))
	}
	started := time.Now()
	got, err := c.roundTrip(req)
	if c.cfg.Observe != nil {
		c.cfg.Observe(got.status, time.Since(started))
	}
	return got, transportError(ctx, inner, err)
}

func (c *Client) roundTrip(req *http.Request) (answer, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return answer{}, err
	}
	if len(body) > maxBody {
		return answer{}, &provider.Error{Kind: provider.BadResponse, Status: resp.StatusCode, Err: errors.New("answer over 16 MiB")}
	}
	return answer{status: resp.StatusCode, body: body, retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}, nil
}

// transportError names what happened below HTTP. The address may hold a secret
// of the owner's, so the cause is told by kind, never by its text.
func transportError(outer, inner context.Context, err error) error {
	var ours *provider.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return ours
	case outer.Err() != nil:
		return outer.Err()
	case inner.Err() != nil || isTimeout(err):
		return &provider.Error{Kind: provider.TimedOut, Err: errors.New("no whole answer in time")}
	}
	return &provider.Error{Kind: provider.Unavailable, Err: errors.New("no answer over the network")}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
