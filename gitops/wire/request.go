package wire

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"

	maxAdvertisement = 16 << 20
)

// talk is one conversation: where the repository turned out to be and which
// credential was taken there.
type talk struct {
	*Remote
	service string
	op      string
	base    url.URL // the repository, after at most one redirect
	auth    string
	fresh   bool // a second credential has been asked for
	v2      bool // the server answered in protocol version 2
}

func (r *Remote) talk(service, op string) *talk {
	t := &talk{Remote: r, service: service, op: op, base: *r.origin}
	t.base.Path = "/" + r.cfg.Owner + "/" + r.cfg.Name + ".git"
	return t
}

func (t *talk) fail(kind error, format string, args ...any) error {
	return fail(kind, t.op, format, args...)
}

// credential fetches a token. It lives in this talk's header value only.
func (t *talk) credential(ctx context.Context) error {
	token, err := t.cfg.Token(ctx, t.fresh)
	if err != nil {
		return fmt.Errorf("%s: getting credential: %w", t.op, err)
	}
	t.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+string(token)))
	return nil
}

// authorized sends a request made by build and sends it once more, with a
// fresh credential, if the first one was refused.
func (t *talk) authorized(ctx context.Context, build func() (*http.Request, error)) (*http.Response, error) {
	for {
		if t.auth == "" {
			if err := t.credential(ctx); err != nil {
				return nil, err
			}
		}
		req, err := build()
		if err != nil {
			return nil, err
		}
		resp, err := t.send(ctx, req)
		if err != nil || !refused(resp) {
			return resp, err
		}
		closeBody(resp)
		if t.fresh {
			return nil, &Error{Kind: ErrRefused, Op: t.op, Status: resp.StatusCode}
		}
		t.fresh, t.auth = true, ""
	}
}

// refused tells a refusal from a rate limit. A private repository that the
// token may not see is a 404.
func refused(resp *http.Response) bool {
	limited := resp.StatusCode == http.StatusForbidden && resp.Header.Get("Retry-After") != ""
	return credentialStatus(resp.StatusCode) && !limited
}

func credentialStatus(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusNotFound
}

func (t *talk) send(ctx context.Context, req *http.Request) (*http.Response, error) {
	req.Header.Set("Authorization", t.auth)
	req.Header.Set("User-Agent", t.cfg.UserAgent)
	resp, err := t.client.Do(req.WithContext(ctx))
	if err != nil {
		return nil, t.broken(ctx, err)
	}
	return resp, nil
}

// broken names the kind of a transport's error: the caller's own end is passed
// on as it is, everything else may pass.
func (t *talk) broken(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) {
		return fmt.Errorf("%s: %w", t.op, cause)
	} else if cause != nil {
		err = cause
	}
	return t.fail(ErrUnreachable, "%w", err)
}

// status maps what is no success. Its bodies are not read.
func (t *talk) status(resp *http.Response) error {
	e := &Error{Kind: ErrUnreachable, Op: t.op, Status: resp.StatusCode}
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusTooManyRequests, code == http.StatusForbidden, code >= 500:
		e.After = retryAfter(resp.Header.Get("Retry-After"))
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code < 400:
	default:
		e.Kind = ErrRefused
	}
	return e
}

// retryAfter reads seconds or a date; an absurd value counts as an hour.
func retryAfter(s string) time.Duration {
	n, err := strconv.Atoi(s)
	after := time.Duration(min(max(n, 0), 3600)) * time.Second
	if at, bad := http.ParseTime(s); err != nil && bad == nil {
		after = min(max(time.Until(at), 0), time.Hour)
	}
	return after
}

// contentType wants exactly git's type: a login page is a 200, too.
func (t *talk) contentType(resp *http.Response, want string) error {
	got, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || got != want {
		return t.fail(ErrUnreachable, "content type %.80q", resp.Header.Get("Content-Type"))
	}
	return nil
}

// checked wants status 200 and the type of an answer, or closes it.
func (t *talk) checked(resp *http.Response, suffix string) (*http.Response, error) {
	err := t.status(resp)
	if err == nil {
		err = t.contentType(resp, "application/x-"+t.service+"-"+suffix)
	}
	if err != nil {
		closeBody(resp)
		return nil, err
	}
	return resp, nil
}

// closeBody gives a body up unread: waiting for the rest of it would be a way
// to hold us.
func closeBody(resp *http.Response) { _ = resp.Body.Close() }

// advertisement asks for a service's capabilities and refs, through one
// redirect at most. The caller closes the body.
func (t *talk) advertisement(ctx context.Context) (*http.Response, error) {
	resp, err := t.authorized(ctx, t.get)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		location := resp.Header.Get("Location")
		closeBody(resp)
		if err := t.hop(location); err != nil {
			return nil, err
		}
		if resp, err = t.authorized(ctx, t.get); err != nil {
			return nil, err
		}
		if again := resp.Header.Get("Location"); resp.StatusCode >= 300 && resp.StatusCode < 400 {
			closeBody(resp)
			return nil, t.secondHop(again)
		}
	}
	return t.checked(resp, "advertisement")
}

func (t *talk) get() (*http.Request, error) {
	req, err := http.NewRequest(http.MethodGet, t.base.String()+"/info/refs?service="+t.service, nil)
	if err == nil && t.service == uploadPack {
		// Not for receive-pack: it has no version 2, and some servers then
		// leave out the service line.
		req.Header.Set("Git-Protocol", "version=2")
	}
	return req, err
}

// hop judges the target of a redirect and moves the talk there: the same
// origin and still the leased repository, in any case of letters.
func (t *talk) hop(location string) error {
	u, err := t.target(location)
	if err != nil {
		return err
	}
	path, ok := strings.CutSuffix(u.Path, "/info/refs")
	owner, name, named := repoPath(path)
	same := strings.EqualFold(owner, t.cfg.Owner) && strings.EqualFold(name, t.cfg.Name)
	if !ok || !named || !same || u.RawQuery != "service="+t.service {
		return t.fail(ErrMoved, "redirected to %.200q", location)
	}
	if path == t.base.Path {
		return t.fail(ErrUnreachable, "redirected in a loop")
	}
	t.base.Path = path
	return nil
}

// target resolves a redirect and refuses what leaves the origin. Another
// scheme is a fault or an attack, another host may be a move.
func (t *talk) target(location string) (*url.URL, error) {
	rel, err := url.Parse(location)
	if err != nil || location == "" {
		return nil, t.fail(ErrUnreachable, "redirected to %.200q", location)
	}
	u := t.base.ResolveReference(rel)
	switch {
	case u.Scheme != t.base.Scheme || u.User != nil || u.Opaque != "":
		return nil, t.fail(ErrUnreachable, "redirected to %.200q", location)
	case !strings.EqualFold(u.Host, t.base.Host):
		return nil, t.fail(ErrMoved, "redirected to %.200q", location)
	}
	return u, nil
}

// secondHop names the end after one redirect too many: back to where it came
// from is a loop, anything else a move.
func (t *talk) secondHop(location string) error {
	u, err := t.target(location)
	if err != nil {
		return err
	}
	owner, name, ok := repoPath(strings.TrimSuffix(u.Path, "/info/refs"))
	if ok && strings.EqualFold(owner, t.cfg.Owner) && strings.EqualFold(name, t.cfg.Name) {
		return t.fail(ErrUnreachable, "redirected in a loop")
	}
	return t.fail(ErrMoved, "redirected twice")
}

// post sends a request body to the service and checks status and type of the
// answer. A redirect is never followed.
func (t *talk) post(ctx context.Context, body func() (io.Reader, int64, error)) (*http.Response, error) {
	resp, err := t.authorized(ctx, func() (*http.Request, error) {
		r, size, err := body()
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequest(http.MethodPost, t.base.String()+"/"+t.service, r)
		if err != nil {
			return nil, err
		}
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/x-"+t.service+"-request")
		req.Header.Set("Accept", "application/x-"+t.service+"-result")
		if t.v2 {
			req.Header.Set("Git-Protocol", "version=2")
		}
		return req, nil
	})
	if err != nil {
		return nil, err
	}
	return t.checked(resp, "result")
}
