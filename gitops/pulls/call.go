package pulls

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds one answer; a page of files carries their patches.
const maxAnswer = 16 << 20

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// call is one request with its answer.
type call struct {
	op     string
	method string
	path   string // below the repository, for example "/pulls/7"
	query  url.Values
	body   any
}

// do sends a call and decodes its answer into out when the status is want. A
// status of 422 comes back as *unprocessable.
func (c *Client) do(ctx context.Context, k call, want int, out any) error {
	base := *c.root
	base.Path += "/repos/" + c.cfg.Owner + "/" + c.cfg.Name
	resp, err := c.authorized(ctx, k, base)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close()
		if base, err = c.hop(k, base, resp.Header.Get("Location")); err != nil {
			return err
		}
		if resp, err = c.authorized(ctx, k, base); err != nil {
			return err
		}
	}
	defer resp.Body.Close()
	return c.answer(k, resp, want, out)
}

// authorized sends a call, once more with a fresh credential if it is refused.
func (c *Client) authorized(ctx context.Context, k call, base url.URL) (*http.Response, error) {
	for _, fresh := range []bool{false, true} {
		resp, err := c.send(ctx, k, base, fresh)
		if err != nil || !refused(resp) {
			return resp, err
		}
		_ = resp.Body.Close()
		if fresh {
			return nil, &Error{Kind: ErrRefused, Op: k.op, Status: resp.StatusCode}
		}
	}
	return nil, nil // not reached: the second round returns
}

// refused tells a refusal from a rate limit.
func refused(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusNotFound:
		return true
	case http.StatusForbidden:
		return !limited(resp)
	}
	return false
}

func limited(resp *http.Response) bool {
	return resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-RateLimit-Remaining") == "0"
}

func (c *Client) send(ctx context.Context, k call, base url.URL, fresh bool) (*http.Response, error) {
	token, err := c.cfg.Token(ctx, fresh)
	if err != nil {
		return nil, fmt.Errorf("%s: getting credential: %w", k.op, err)
	}
	req, err := newRequest(ctx, k, base)
	if err != nil {
		return nil, fail(ErrInvalid, k.op, "%w", err)
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, broken(ctx, k.op, err)
	}
	return resp, nil
}

func newRequest(ctx context.Context, k call, base url.URL) (*http.Request, error) {
	base.Path += k.path
	base.RawQuery = k.query.Encode()
	var body io.Reader
	if k.body != nil {
		b, err := json.Marshal(k.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, base.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func broken(ctx context.Context, op string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", op, cause)
	}
	return fail(ErrUnreachable, op, "%w", err)
}

// hop judges a redirect: a GET may go on once, on the same origin, to the
// leased repository in another spelling. An address by number hides the name,
// so it counts as moved.
func (c *Client) hop(k call, base url.URL, location string) (url.URL, error) {
	rel, err := url.Parse(location)
	if err != nil || location == "" || k.method != http.MethodGet {
		return base, fail(ErrUnreachable, k.op, "redirected to %.200q", location)
	}
	u := base.ResolveReference(rel)
	switch {
	case u.Scheme != base.Scheme || u.User != nil || u.Opaque != "":
		return base, fail(ErrUnreachable, k.op, "redirected to %.200q", location)
	case !strings.EqualFold(u.Host, base.Host):
		return base, fail(ErrMoved, k.op, "redirected to %.200q", location)
	}
	repo, ok := strings.CutSuffix(u.Path, k.path)
	names, inside := strings.CutPrefix(repo, c.root.Path+"/repos/")
	owner, name, pair := strings.Cut(names, "/")
	if !ok || !inside || !pair || !strings.EqualFold(owner, c.cfg.Owner) || !strings.EqualFold(name, c.cfg.Name) {
		return base, fail(ErrMoved, k.op, "redirected to %.200q", location)
	}
	base.Path = repo
	return base, nil
}

// unprocessable is a 422: the host understood and says no, for a reason that
// only its body tells.
type unprocessable struct {
	Errors []struct{ Field, Code string }
}

func (*unprocessable) Error() string { return "request cannot be processed" }

func (c *Client) answer(k call, resp *http.Response, want int, out any) error {
	switch code := resp.StatusCode; {
	case code == want:
		return decode(k.op, resp.Body, out)
	case code == http.StatusUnprocessableEntity:
		reason := &unprocessable{}
		_ = decode(k.op, resp.Body, reason) // an unreadable one has no fields
		return &Error{Kind: ErrRefused, Op: k.op, Status: code, Err: reason}
	case code == http.StatusTooManyRequests, code == http.StatusForbidden:
		return &Error{Kind: ErrUnreachable, Op: k.op, Status: code, After: pause(resp.Header)}
	case code >= 300 && code < 400:
		return &Error{Kind: ErrMoved, Op: k.op, Status: code}
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusConflict:
		return &Error{Kind: ErrRefused, Op: k.op, Status: code}
	default:
		return &Error{Kind: ErrUnreachable, Op: k.op, Status: code, After: pause(resp.Header)}
	}
}

func decode(op string, body io.Reader, out any) error {
	b, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("answer of more than %d bytes", maxAnswer)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return fail(ErrUnreachable, op, "reading answer: %w", err)
	}
	return nil
}

// pause reads Retry-After in seconds, or the time at which a spent rate limit
// is renewed; at most an hour.
func pause(h http.Header) time.Duration {
	if n, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
		return min(max(time.Duration(n)*time.Second, 0), time.Hour)
	}
	if at, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err == nil && h.Get("X-RateLimit-Remaining") == "0" {
		return min(max(time.Until(time.Unix(at, 0)), 0), time.Hour)
	}
	return 0
}
